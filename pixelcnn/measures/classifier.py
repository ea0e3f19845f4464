"""A small classifier of a corpus's classes, which judges samples.

It is trained once per corpus, only on the real training images and independently of any generator;
its cache file is named after the digest of the training data.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from onepass.foundation.atomic_files import write_npz
from onepass.foundation.progress import Progress
from pixelcnn import shipped
from pixelcnn.data.corpus import ImageSet

RECIPE = b"1"  # version of architecture and training, which is part of the digest
FEATURES = 64
WIDTHS = (24, 32, 48, 64)  # channels of each stage; a stage halves the image
STEPS, BATCH_SIZE, LEARNING_RATE = 1500, 64, 3e-3
# A small training set would be memorised, so the number of epochs is limited.
MOST_EPOCHS, LEAST_STEPS = 200, 100
MOST_REFERENCES = 1000  # maximum number of training images whose features are stored
STORED = np.float16


class Seen(NamedTuple):
    """A classifier's predictions for images: labels int [n], and features float64 [n, FEATURES]."""

    labels: np.ndarray
    features: np.ndarray


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A trained classifier, and the features [n, FEATURES] of real training images."""

    network: Any
    reference: np.ndarray

    def __call__(self, images: Sequence[np.ndarray] | np.ndarray) -> Seen:
        """Return the labels and features of images uint8 [n, side, side, channels]."""
        levels = np.asarray(images, np.float32)
        logits, features = self.network.predict(levels, BATCH_SIZE, verbose=0)
        return Seen(np.argmax(logits, -1), features.astype(np.float64))


def classifier_of(train: ImageSet, classes: int) -> Classifier:
    """Return the classifier for training images: shipped, cached, or newly trained."""
    known = digest(train)
    cached = cache_folder() / f"{known}.npz"
    for path in (*shipped.classifiers(), cached):
        if path.exists() and (opened := opened_classifier(path, known)) is not None:
            return opened
    return train_classifier(train, classes, cached)


def opened_classifier(path: Path, known: str | None = None) -> Classifier | None:
    """Load a classifier; return None if `known` is not None and not its training images' digest."""
    with np.load(path, allow_pickle=False) as stored:
        if known not in (None, str(stored["digest"])):
            return None
        weights = [stored[f"weight_{i:02d}"] for i in range(int(stored["count"]))]
        network = make_network(*map(int, stored["shape"]))
        network.set_weights([weight.astype(np.float32) for weight in weights])
        return Classifier(network, stored["reference"].astype(np.float64))


def train_classifier(train: ImageSet, classes: int, path: Path, seed: int = 0) -> Classifier:
    """Train a classifier, as determined by the seed, and write it to a file."""
    side, channels = train.images.shape[2:]
    network = make_network(side, channels, classes, seed)
    steps = num_steps(len(train.images))
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    network.compile(
        keras.optimizers.Adam(schedule),
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None],
    )
    images = tf.data.Dataset.from_tensor_slices((train.images, train.labels))
    batches = images.shuffle(len(train.images), seed=seed).repeat().batch(BATCH_SIZE)
    with Progress(steps, "training a classifier of the real images, once", "step") as progress:
        advance = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_, **__: progress.advance()
        )
        network.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[advance])
    network.set_weights([w.astype(STORED).astype(np.float32) for w in network.get_weights()])
    kept = np.linspace(0, len(train.images) - 1, min(len(train.images), MOST_REFERENCES))
    features = Classifier(network, np.zeros([0, FEATURES]))(train.images[kept.astype(int)]).features
    weights = network.get_weights()
    arrays = {f"weight_{i:02d}": weight.astype(STORED) for i, weight in enumerate(weights)}
    arrays |= {
        "reference": features.astype(STORED),
        "digest": np.array(digest(train)),
        "count": np.array(len(weights)),
        "shape": np.array([side, channels, classes]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_npz(path, arrays)
    return Classifier(network, arrays["reference"].astype(np.float64))


def num_steps(images: int) -> int:
    """Return the number of training steps for a number of training images."""
    return min(STEPS, max(LEAST_STEPS, MOST_EPOCHS * images // BATCH_SIZE))


def make_network(side: int, channels: int, classes: int, seed: int = 0) -> Any:
    """Return a convolutional network from images to logits [n, classes] and features [n, FEATURES].

    In training, images are randomly rotated, shifted and scaled, but not mirrored, since a mirrored
    hand can show a different sign.
    """
    seeds = itertools.count(1000 * seed)
    image = keras.Input([side, side, channels])
    x = layers.Rescaling(1 / 127.5, -1)(image)
    x = layers.RandomRotation(0.05, "nearest", seed=next(seeds))(x)
    x = layers.RandomTranslation(0.1, 0.1, "nearest", seed=next(seeds))(x)
    x = layers.RandomZoom(0.15, fill_mode="nearest", seed=next(seeds))(x)
    for width in WIDTHS:
        for stride in (1, 2):
            kernels = keras.initializers.HeNormal(next(seeds))
            x = layers.Conv2D(width, 3, stride, "same", use_bias=False, kernel_initializer=kernels)(
                x
            )
            x = layers.ReLU()(layers.BatchNormalization()(x))
    features = layers.GlobalAveragePooling2D()(x)
    dropped = layers.Dropout(0.3, seed=next(seeds))(features)
    kernels = keras.initializers.GlorotUniform(next(seeds))
    logits = layers.Dense(classes, kernel_initializer=kernels)(dropped)
    return keras.Model(image, [logits, features])


def digest(train: ImageSet) -> str:
    """Return a hash of training images, their labels, and `RECIPE`."""
    found = hashlib.blake2b(RECIPE, digest_size=16)
    for array in (train.images, train.labels):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def cache_folder() -> Path:
    """Return the folder in which trained classifiers are cached."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "onepass" / "classifiers"
