"""Names and folders of the models in the package; this module does not import TensorFlow."""

from pathlib import Path

from distill import shipped as students
from distill.families import FAMILIES
from pixelcnn import shipped as images
from wavenet import shipped as teachers

SOURCE_ONLY = ("shipped-objects", "shipped-objects-teacher")
"""Models that are only in a checkout of the source, for repeating measurements. They can be loaded
by name, but are not listed."""

SHIPPED = {
    name: family.makes
    for makes in ("sound", "images")
    for family in sorted(FAMILIES, key=lambda family: family.verb)
    if family.makes == makes
    for name in family.shipped
    if name not in SOURCE_ONLY
}
"""What each model makes, by name: sound first, students before their teachers."""


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, with model.json and card.md."""
    return next(kind.folder(name) for kind in (students, teachers, images) if name in kind.FOLDERS)
