"""What comes with the package: images, and trained models with their cards."""

import importlib.resources
from pathlib import Path

FOLDERS = {
    "shipped-digits": "digits-multiscale-32",
    "shipped-digits-teacher": "digits-pixelcnn-32",
    "shipped-objects": "objects-multiscale-64",
    "shipped-objects-teacher": "objects-pixelcnn-64",
}


def folder(name: str) -> Path:
    """The folder of a shipped model: a model folder, see `pixelcnn.model.load`."""
    return _here() / FOLDERS[name]


def dev_images(name: str) -> Path:
    """Returns the npz file of the dev images that a shipped model is evaluated on."""
    return _here() / f"{name.split('-')[1]}_dev.npz"


def _here() -> Path:
    return Path(str(importlib.resources.files(__name__)))
