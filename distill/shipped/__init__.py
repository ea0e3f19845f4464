"""Students that come with the package, distilled from the shipped teachers, and their cards."""

import importlib.resources
from pathlib import Path

STUDENT = "shipped"
FOLDERS = {
    STUDENT: "universal-student-22k",
    "shipped-small": "universal-small-22k",
    "shipped-kathleen": "kathleen-student-16k",
}


def folder(name: str) -> Path:
    """Return the model folder of a shipped student, which `distill.model.load` reads."""
    return Path(str(importlib.resources.files(__name__))) / FOLDERS[name]


def model_folder(path: Path) -> Path:
    """Return the path or, if it does not exist, the folder of the shipped student that it names."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path
