"""What comes with the package: a student, distilled from the shipped teacher, with its card."""

import importlib.resources
from pathlib import Path


def student_folder() -> Path:
    """The folder of the shipped student: a model folder, see `distill.model.load`."""
    return Path(str(importlib.resources.files(__name__))) / "kathleen-student-16k"
