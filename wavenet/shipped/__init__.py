"""Recordings and trained teachers that come with the package, with their cards."""

import importlib.resources
from pathlib import Path

TEACHER = "shipped-teacher"
FOLDERS = {
    TEACHER: "kathleen-teacher-16k",
    "shipped-two-voices": "kathleen-nathalie-teacher-24k",
    "shipped-universal-teacher": "universal-teacher-22k",
    "shipped-speech-16k": "speech-density-16k",
}


def recordings_folder() -> Path:
    """Return the folder of the shipped recordings, with `train/` and `dev/`.

    They are recordings of one woman speaking US English, at 24 kHz, under CC0.
    """
    return Path(str(importlib.resources.files(__name__))) / "kathleen"


def folder(name: str) -> Path:
    """Return the model folder of a shipped teacher, which `wavenet.model.load` reads."""
    return Path(str(importlib.resources.files(__name__))) / FOLDERS[name]


def model_folder(path: Path) -> Path:
    """Return the path, or a shipped teacher's folder if it is its name and not a folder's."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path
