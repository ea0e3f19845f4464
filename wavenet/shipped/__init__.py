"""Recordings and trained teachers that come with the package, with their cards."""

import importlib.resources
from pathlib import Path

TEACHER = "shipped-teacher"
FOLDERS = {
    TEACHER: "kathleen-teacher-16k",
    "shipped-two-voices": "kathleen-nathalie-teacher-24k",
    "shipped-universal-teacher": "universal-teacher-22k",
}


def recordings_folder() -> Path:
    """Return the folder of the shipped recordings, `train/` and `dev/`.

    They are of one US-English woman, at 24 kHz, CC0.
    """
    return Path(str(importlib.resources.files(__name__))) / "kathleen"


def folder(name: str) -> Path:
    """Return the folder of a shipped teacher: a model folder, see `wavenet.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / FOLDERS[name]


def model_folder(path: Path) -> Path:
    """Return the path, or the shipped teacher's folder for its name where no folder has it."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path
