"""Recordings that come with the package; each folder holds its licence and its source."""

import importlib.resources
from pathlib import Path


def recordings_folder() -> Path:
    """The folder of the shipped recordings: one US-English woman, 24 kHz, CC0, `train/`, `dev/`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen"
