"""What comes with the package: recordings, and a trained teacher with its card."""

import importlib.resources
from pathlib import Path

TEACHER = "shipped-teacher"


def recordings_folder() -> Path:
    """The folder of the shipped recordings: one US-English woman, 24 kHz, CC0, `train/`, `dev/`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen"


def teacher_folder() -> Path:
    """The folder of the shipped teacher: a model folder, see `wavenet.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen-teacher-16k"


def model_folder(path: Path) -> Path:
    """The path; where it is the shipped teacher's name and no folder's, the teacher's folder."""
    path = Path(path)
    return teacher_folder() if path == Path(TEACHER) and not path.exists() else path
