"""Models and images that come with the package, with their cards."""

import importlib.resources
from pathlib import Path

from foundation.errors import UserError

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
    """Return the model folder of a shipped model, which `pixelcnn.model.load` reads.

    Raises:
      UserError: the source has the model, and the wheel that was installed does not.
    """
    return _packed(name, _here() / FOLDERS[name])


def dev_images(name: str) -> Path:
    """Return the npz file, or folder, of the dev images that a shipped model is evaluated on.

    Raises:
      UserError: the source has the images, and the wheel that was installed does not.
    """
    photographs = _here() / f"{_corpus(name)}_dev"
    if photographs.exists():
        return photographs
    return _packed(name, photographs.with_suffix(".npz"))


def classifiers() -> tuple[Path, ...]:
    """Return the files of the classifiers that evaluate samples of shipped models."""
    return tuple(sorted(_here().glob("*_classifier.npz")))


def classifier(name: str) -> Path | None:
    """Return the file of a shipped model's classifier; None if it has no classifier."""
    file = _here() / f"{_corpus(name)}_classifier.npz"
    return file if name in FOLDERS and file.exists() else None


def _corpus(name: str) -> str:
    found = (corpus for corpus in CORPORA if name.startswith(f"shipped-{corpus}"))
    return next(found) if name in FOLDERS else ""


def _packed(name: str, path: Path) -> Path:
    """Return the path; raise UserError if the wheel was built without it."""
    if path.exists():
        return path
    raise UserError(
        f"{name} comes with the source of onepass, in pixelcnn/shipped, and not in the installed "
        "package; clone the repository and run `pip install -e .` there."
    )


def _here() -> Path:
    return Path(str(importlib.resources.files(__name__)))
