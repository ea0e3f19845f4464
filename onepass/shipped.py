"""The models that are part of the package, by name, read without TensorFlow."""

from pathlib import Path

SHIPPED = {
    "shipped": "sound",
    "shipped-teacher": "sound",
    "shipped-two-voices": "sound",
    "shipped-universal-teacher": "sound",
    "shipped-digits": "images",
    "shipped-digits-teacher": "images",
    "shipped-digits-flow": "images",
    "shipped-objects": "images",
    "shipped-objects-teacher": "images",
    "shipped-emoji": "images",
}
"""The output of each model."""


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, with model.json and card.md."""
    from distill.shipped import student_folder
    from pixelcnn.shipped import folder as image_folder
    from wavenet import shipped as teachers

    if name in teachers.FOLDERS:
        return teachers.folder(name)
    return student_folder() if name == "shipped" else image_folder(name)
