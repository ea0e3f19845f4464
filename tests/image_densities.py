"""Tiny image models that were never trained, of every architecture, whose weights matter."""

import numpy as np
import tensorflow as tf
from image_networks import QuickInitial, factor_config, image_of, perturbed
from image_runs import CLASSES, config_of, replaced

from onepass.trained import Trained
from pixelcnn.config import (
    ConditioningConfig,
    DataConfig,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
    PixelCNNConfig,
    PixelCNNTrainConfig,
)
from pixelcnn.density import ImageDensity
from pixelcnn.model import ImageFront, ImageSampler

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
    config = replaced(
        config_of(kind),
        output=fields,
        conditioning={"classes": classes},
        data={"channels": fields.get("channels", 1)},
    )
    density = perturbed(ImageDensity(config, QuickInitial(seed)))
    return Trained(ImageSampler(density), ImageFront(config, CLASSES), {"kind": config.kind})


def density_of(
    size, base=None, output=None, flows=(), dropout=0.0, amount=0.2, seed=0, crop=0,
    dropped_conditions=0.0, factor="A",
):  # fmt: skip
    """A density of images of three classes: a PixelCNN, or a multiscale model of a `base` size."""
    output, network = output or OutputConfig(components=2), PixelCNNConfig(1, 6, 8, dropout)
    config = dict(
        output=output,
        conditioning=ConditioningConfig("class", len(CLASSES), dropout=dropped_conditions),
        data=DataConfig(size, output.channels),
    )
    if base is None:
        train = PixelCNNTrainConfig(**config, network=network)
    else:
        factor = factor_config(factor, dropout=dropout)
        network = MultiscaleConfig(base, network, factor, crop, flows)
        train = MultiscaleTrainConfig(**config, network=network)
    return perturbed(ImageDensity(train, QuickInitial(seed)), amount)


def batch_of(size, rows, channels=3):
    """Images of noise with their classes and seeds."""
    levels = image_of(rows, size, size, channels, 256)
    seeds = tf.stack([tf.range(rows), tf.fill([rows], 9)], -1)
    return {"levels": levels, "label": tf.range(rows) % len(CLASSES), "seed": seeds}


def images_for(model: Trained, count: int, seed: int = 3) -> np.ndarray:
    """Images with white, black and noise in them, uint8 [count, size, size, channels]."""
    shape = [count, model.front.size, model.front.size, model.front.channels]
    draws = np.random.default_rng(seed).integers(-30, 31, shape)
    images = np.cumsum(draws, 2) + 128
    images[:, :2] = 255
    return np.clip(images, 0, 255).astype(np.uint8)


def conditions_for(model: Trained, count: int) -> list:
    kind = model.config.conditioning.kind
    if kind == "map":
        return [np.full([model.front.size, model.front.size], i % 2) for i in range(count)]
    known = ("stripes", "a slope") if kind == "text" else (2, "cat", 1)
    return [known[i % len(known)] for i in range(count)]
