"""Names and folders of the models that are part of the package; needs no TensorFlow."""

from pathlib import Path

SHIPPED = {
    "shipped": "sound",
    "shipped-small": "sound",
    "shipped-kathleen": "sound",
    "shipped-teacher": "sound",
    "shipped-two-voices": "sound",
    "shipped-universal-teacher": "sound",
    "shipped-speech-16k": "sound",
    "shipped-digits": "images",
    "shipped-digits-teacher": "images",
    "shipped-digits-flow": "images",
    "shipped-digits-64": "images",
    "shipped-digits-64-teacher": "images",
    "shipped-emoji": "images",
    "shipped-upsample": "images",
}
"""What each model makes, by name."""

SOURCE_ONLY = {"shipped-objects": "images", "shipped-objects-teacher": "images"}
"""What each model makes that only a checkout of the source contains, so that measurements can be
repeated. These models can be loaded by name, but are not listed."""


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, with model.json and card.md."""
    from distill import shipped as students
    from pixelcnn import shipped as images
    from wavenet import shipped as teachers

    return next(kind.folder(name) for kind in (students, teachers, images) if name in kind.FOLDERS)
