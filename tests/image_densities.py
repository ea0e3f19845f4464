"""Tiny image models that were never trained, of every architecture, whose weights matter."""

import dataclasses

import numpy as np
from image_networks import QuickInitial, perturbed
from image_runs import CLASSES, config_of

from onepass.trained import Trained
from pixelcnn.density import ImageDensity
from pixelcnn.front import ImageFront
from pixelcnn.model import ImageSampler

# Kind of `image_runs.config_of`, number of classes or labels, and fields of the output.
ARCHITECTURES = {
    "PixelCNN": ("pixelcnn", 3, {}),
    "PixelCNN, softmax": ("pixelcnn", 3, {"likelihood": "softmax", "softmax_units": 6}),
    "PixelCNN, maps": ("map", 2, {}),
    "multiscale A, colour": ("multiscale", 3, {"channels": 3}),
    "multiscale B, captions": ("text", 0, {}),
}


def model_of(architecture: str, seed: int = 0) -> Trained:
    kind, classes, fields = ARCHITECTURES[architecture]
    config = config_of(kind)
    channels = fields.get("channels", 1)
    config = dataclasses.replace(
        config,
        output=dataclasses.replace(config.output, **fields),
        conditioning=dataclasses.replace(config.conditioning, classes=classes),
        data=dataclasses.replace(config.data, channels=channels),
    )
    density = perturbed(ImageDensity(config, QuickInitial(seed)))
    return Trained(ImageSampler(density), ImageFront(config, CLASSES), {"kind": config.kind})


def images_for(model: Trained, count: int, seed: int = 3) -> np.ndarray:
    """Images with white, black and noise in them, uint8 [count, size, size, channels]."""
    draws = np.random.default_rng(seed)
    shape = [count, model.front.size, model.front.size, model.front.channels]
    images = np.cumsum(draws.integers(-30, 31, shape), 2) + 128
    images[:, :2] = 255
    return np.clip(images, 0, 255).astype(np.uint8)


def conditions_for(model: Trained, count: int) -> list:
    kind = model.config.conditioning.kind
    if kind == "map":
        return [np.full([model.front.size, model.front.size], i % 2) for i in range(count)]
    known = ("stripes", "a slope") if kind == "text" else (2, "cat", 1)
    return [known[i % len(known)] for i in range(count)]
