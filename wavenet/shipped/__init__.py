"""What comes with the package: recordings, and trained teachers with their cards."""

import importlib.resources
from pathlib import Path

TEACHER = "shipped-teacher"
FOLDERS = {
    TEACHER: "kathleen-teacher-16k",
    "shipped-two-voices": "kathleen-nathalie-teacher-24k",
    "shipped-universal-teacher": "universal-teacher-22k",
}


def recordings_folder() -> Path:
    """The folder of the shipped recordings: one US-English woman, 24 kHz, CC0, `train/`, `dev/`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen"


def folder(name: str) -> Path:
    """The folder of a shipped teacher: a model folder, see `wavenet.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / FOLDERS[name]


def model_folder(path: Path) -> Path:
    """The path; where it is a shipped teacher's name and no folder's, the teacher's folder."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path
