"""Image files of noise, and what is said of those that cannot be read."""

import numpy as np
import pytest
from PIL import Image

from pixelcnn.data.corpus import DataError, ImageRules, read_corpus

COLOUR = ImageRules(8, 3)
GREY = ImageRules(8, 1)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def fill(folder, names, size=(8, 8)):
    """Writes an image of its own noise under each name."""
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(size[1], size[0], 3, seed=seed)).save(path)


def levels_of(path):
    """Return the levels of an image file, uint8 [height, width, channels]."""
    with Image.open(path) as opened:
        levels = np.asarray(opened)
    return levels[..., None] if levels.ndim == 2 else levels


def mistake(path, rules=COLOUR):
    """The one line that reading such a source raises, without the path."""
    with pytest.raises(DataError) as caught:
        read_corpus(path, rules)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path}/", "").replace(str(path), "SOURCE")
