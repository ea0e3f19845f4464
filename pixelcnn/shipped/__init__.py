"""Models and images that are shipped with the package."""

from pathlib import Path

from onepass.foundation.model_folders import FOLDERS, check_packed

CORPORA = ("digits-64", "digits", "emoji", "objects", "upsample")
HERE = Path(__file__).resolve().parent


def dev_images(name: str) -> Path:
    """Return the npz file, or folder, of the dev images on which a shipped model is evaluated."""
    photographs = HERE / f"{_corpus(name)}_dev"
    if photographs.exists():
        return photographs
    return check_packed(name, photographs.with_suffix(".npz"))


def classifiers() -> tuple[Path, ...]:
    """Return the files of the shipped classifiers."""
    return tuple(sorted(HERE.glob("*_classifier.npz")))


def classifier(name: str) -> Path | None:
    """Return the file of a shipped model's classifier, or None if there is none."""
    corpus = _corpus(name)
    file = HERE / f"{corpus}_classifier.npz"
    return file if corpus and file.exists() else None


def _corpus(name: str) -> str:
    found = (corpus for corpus in CORPORA if name.startswith(f"shipped-{corpus}"))
    return next(found, "") if name in FOLDERS else ""
