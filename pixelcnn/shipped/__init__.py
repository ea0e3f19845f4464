"""Models and images that are shipped with the package."""

import importlib.resources
from pathlib import Path

from onepass.foundation.errors import UserError

FOLDERS = {
    "shipped-digits": "digits-multiscale-32",
    "shipped-digits-teacher": "digits-pixelcnn-32",
    "shipped-digits-flow": "digits-flow-32",
    "shipped-objects": "objects-multiscale-64",
    "shipped-objects-teacher": "objects-pixelcnn-64",
    "shipped-digits-64": "digits-multiscale-64",
    "shipped-digits-64-teacher": "digits-pixelcnn-64",
    "shipped-emoji": "emoji-multiscale-32",
    "shipped-upsample": "upsample-512",
}
CORPORA = ("digits-64", "digits", "emoji", "objects", "upsample")


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, for `pixelcnn.model.load`.

    Raises:
      UserError: If the model is only part of the source tree, not of the installed wheel.
    """
    return _check_packed(name, _here() / FOLDERS[name])


def dev_images(name: str) -> Path:
    """Return the npz file, or folder, of the dev images on which a shipped model is evaluated.

    Raises:
      UserError: If the images are only part of the source tree, not of the installed wheel.
    """
    photographs = _here() / f"{_corpus(name)}_dev"
    if photographs.exists():
        return photographs
    return _check_packed(name, photographs.with_suffix(".npz"))


def classifiers() -> tuple[Path, ...]:
    """Return the files of the shipped classifiers."""
    return tuple(sorted(_here().glob("*_classifier.npz")))


def classifier(name: str) -> Path | None:
    """Return the file of a shipped model's classifier, or None if there is none."""
    file = _here() / f"{_corpus(name)}_classifier.npz"
    return file if name in FOLDERS and file.exists() else None


def _corpus(name: str) -> str:
    found = (corpus for corpus in CORPORA if name.startswith(f"shipped-{corpus}"))
    return next(found) if name in FOLDERS else ""


def _check_packed(name: str, path: Path) -> Path:
    """Return the path; raise a UserError if the wheel was built without it."""
    if path.exists():
        return path
    raise UserError(
        f"{name} comes with the source of onepass, in pixelcnn/shipped, and not in the installed "
        "package; clone the repository and run `pip install -e .` there."
    )


def _here() -> Path:
    return Path(str(importlib.resources.files(__name__)))
