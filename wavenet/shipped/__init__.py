"""Recordings and trained teachers that are shipped with the package."""

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
    """Return the folder of the shipped recordings, with sub-folders `train/` and `dev/`.

    They contain one woman speaking US English, at 24 kHz, under CC0.
    """
    return Path(str(importlib.resources.files(__name__))) / "kathleen"


def folder(name: str) -> Path:
    """Return the model folder of a shipped teacher, for `wavenet.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / FOLDERS[name]


def model_folder(path: Path) -> Path:
    """Return a shipped teacher's folder if `path` is its name and does not exist, else `path`."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path
