"""A term of a flow's loss that compares a small classifier's features of drawn and real images.

It is feature matching (Salimans et al. 2016, arXiv 1606.03498, section 3.1) with a classifier
instead of a discriminator. The classifier is not the one that measures samples: it is trained with
a different seed, on images at the size that the flow draws.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import UserError
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.measures import Classifier, load_classifier, train_classifier

FILE = "classifier.npz"  # the file's name in a run directory
SEED = 1  # classifiers that measure samples have seed 0
EPSILON = 1e-3  # added to variances by batch normalisation in Keras
LEAST = 1e-6  # lower bound of the mean square in a denominator


def classifier_for(dataset: ImageDataset, size: int, path: Path) -> Classifier:
    """Load a classifier of images of `size` pixels, or train it if there is no file."""
    train: Any = dataset.source.splits["train"] if dataset.classes else None  # an `ImageSet`
    if train is None or train.labels is None:
        raise UserError("--targets.features needs images with classes.")
    every = train.images.shape[1] // size
    if path.exists() and (known := load_classifier(path)) is not None:
        return known
    small = dataclasses.replace(train, images=train.images[:, ::every, ::every])
    return train_classifier(small, len(dataset.classes), path, SEED)


class Features:
    """The features of a classifier, computed with its weights as constants."""

    def __init__(self, classifier: Classifier) -> None:
        *stages, _, _ = classifier.network.get_weights()
        self._layers = [fold_normalisation(*stages[i : i + 5]) for i in range(0, len(stages), 5)]

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        """Return features [batch, features] of images float32 [batch, height, width, channels]."""
        for number, (kernel, bias) in enumerate(self._layers):
            stride = 1 + number % 2
            values = tf.nn.relu(tf.nn.conv2d(values, kernel, stride, "SAME") + bias)
        return tf.reduce_mean(values, [1, 2])

    def distance(self, drawn: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Return `features_apart` for two batches of images, a scalar."""
        return features_apart(self.statistics(drawn, images))

    def statistics(self, drawn: tf.Tensor, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the means that `features_apart` reads; images are float32 in [-1, 1]."""
        found, wanted = self(drawn), tf.stop_gradient(self(images))
        return {
            "features": tf.reduce_mean(found, 0),
            "wanted_features": tf.reduce_mean(wanted, 0),
            "feature_energy": tf.reduce_mean(tf.square(wanted)),
        }


def features_apart(means: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the mean squared difference of mean features, over the mean square of real ones."""
    apart = tf.reduce_mean(tf.square(means["features"] - means["wanted_features"]))
    return apart / tf.maximum(means["feature_energy"], LEAST)


def fold_normalisation(
    kernel: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel [height, width, inputs, outputs] and bias merged with batch normalisation."""
    factor = scale / np.sqrt(variance + EPSILON)
    return kernel * factor, offset - mean * factor
