"""A student that comes with the package, distilled from the shipped teacher, with its card."""

import importlib.resources
from pathlib import Path

STUDENT = "shipped"


def model_folder(path: Path) -> Path:
    """Return the path, or the shipped student's folder for its name where no folder has it."""
    path = Path(path)
    return student_folder() if str(path) == STUDENT and not path.exists() else path


def student_folder() -> Path:
    """Return the folder of the shipped student: a model folder, see `distill.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen-student-16k"
