"""Names and folders of the models in the package; this module imports no other of the library."""

from pathlib import Path

from onepass.foundation.errors import UserError

ROOT = Path(__file__).resolve().parents[1]  # of the packages, in a checkout or installed
FOLDERS = {
    "shipped": "distill/shipped/universal-student-22k",
    "shipped-small": "distill/shipped/universal-small-22k",
    "shipped-kathleen": "distill/shipped/kathleen-student-16k",
    "shipped-teacher": "wavenet/shipped/kathleen-teacher-16k",
    "shipped-two-voices": "wavenet/shipped/kathleen-nathalie-teacher-24k",
    "shipped-universal-teacher": "wavenet/shipped/universal-teacher-22k",
    "shipped-speech-16k": "wavenet/shipped/speech-density-16k",
    "shipped-digits": "pixelcnn/shipped/digits-multiscale-32",
    "shipped-digits-teacher": "pixelcnn/shipped/digits-pixelcnn-32",
    "shipped-digits-flow": "pixelcnn/shipped/digits-flow-32",
    "shipped-objects": "pixelcnn/shipped/objects-multiscale-64",
    "shipped-objects-teacher": "pixelcnn/shipped/objects-pixelcnn-64",
    "shipped-digits-64": "pixelcnn/shipped/digits-multiscale-64",
    "shipped-digits-64-teacher": "pixelcnn/shipped/digits-pixelcnn-64",
    "shipped-emoji": "pixelcnn/shipped/emoji-multiscale-32",
    "shipped-upsample": "pixelcnn/shipped/upsample-512",
}
"""The folder of each model, by name: sound first, students before their teachers."""

SOURCE_ONLY = ("shipped-objects", "shipped-objects-teacher")
"""Models that are only in a checkout of the source, for repeating measurements. They can be loaded
by name, but are not listed."""

SHIPPED = tuple(name for name in FOLDERS if name not in SOURCE_ONLY)
"""The names of the models that are listed, in this order."""


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, with model.json and card.md."""
    return check_packed(name, ROOT / FOLDERS[name])


def names_in(package: str) -> list[str]:
    """Return the names of the listed models that lie in a package, such as "wavenet"."""
    return [name for name in SHIPPED if FOLDERS[name].startswith(f"{package}/")]


def model_folder(path: Path | str) -> Path:
    """Return the path or, if it does not exist, the folder of the shipped model that it names."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path


def check_packed(name: str, path: Path) -> Path:
    """Return a path of a shipped model; raise a UserError if the wheel was built without it."""
    if path.exists():
        return path
    raise UserError(
        f"{name} comes with the source of onepass, in pixelcnn/shipped, and not in the installed "
        "package; clone the repository and run `pip install -e .` there."
    )
