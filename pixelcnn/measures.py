"""Measures of image models: lossless codecs for comparison, and the quality of samples.

The classifier that judges samples is trained once per corpus, only on the real training images and
independently of any generator; its cache file is named after the digest of the training data.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import io
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image

from onepass.foundation.files import write_npz
from onepass.foundation.measures import share_of
from onepass.foundation.rules import UserError
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train_network
from onepass.training.fit import WeightsModule
from pixelcnn import shipped
from pixelcnn.data.corpus import ImageSet

JPEG_XL = "pillow_jxl"  # module that adds JPEG XL to pillow; the extra `jxl` installs it
NAMES = {"webp": "WebP", "jpeg_xl": "JPEG XL"}  # codecs for 8-bit images
DEEP_NAMES = {"png": "16-bit PNG"}


def codec_bits_per_dim(images: Iterable[np.ndarray]) -> dict[str, float]:
    """Return {codec: mean bits per dimension} of images uint8 [height, width, 1 or 3].

    "jpeg_xl" is left out if its package is not installed. For uint16 images there is only "png".
    """
    return _means([_by_codec(image) for image in images])


def codec_bits_by_scale(
    images: Sequence[np.ndarray], size: int, doublings: Sequence[int]
) -> dict[str, dict]:
    """Return the bits that lossless files need for each doubling, per value that it adds.

    This is the file size of the sub-sampled image after the doubling minus the file size before it,
    divided by the number of values (pixels times channels) that the doubling adds: "codec" {name:
    mean bits per dimension over all doublings} and "codec_by_scale" {size: {name: mean}}.
    """
    if not doublings:
        return {"codec": {}, "codec_by_scale": {}}
    added: dict[int, list[dict[str, float]]] = {doubling: [] for doubling in doublings}
    totals = []
    for image in images:
        each = {*doublings, *(s // 2 for s in doublings)}
        scales = {s: np.ascontiguousarray(image[:: size // s, :: size // s]) for s in each}
        bits = {s: _by_codec(small) for s, small in scales.items()}
        sizes = {s: small.size for s, small in scales.items()}
        more = {
            s: {n: bits[s][n] * sizes[s] - bits[s // 2][n] * sizes[s // 2] for n in bits[s]}
            for s in doublings
        }
        new = {s: sizes[s] - sizes[s // 2] for s in doublings}
        for s in doublings:
            added[s].append({name: value / new[s] for name, value in more[s].items()})
        names = more[doublings[0]]
        totals.append({n: sum(of[n] for of in more.values()) / sum(new.values()) for n in names})
    return {"codec": _means(totals), "codec_by_scale": {s: _means(v) for s, v in added.items()}}


def _means(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([bits[name] for bits in each])) for name in each[0]}


def _by_codec(image: np.ndarray) -> dict[str, float]:
    if image.dtype == np.uint16:
        file = io.BytesIO()
        Image.fromarray(image[..., 0]).save(file, "PNG", optimize=True)
        return {"png": 8.0 * len(file.getvalue()) / image.size}
    found = {"webp": webp_bits_per_dim(image)}
    if importlib.util.find_spec(JPEG_XL) is not None:
        found["jpeg_xl"] = jpeg_xl_bits_per_dim(image)
    return found


def webp_bits_per_dim(image: np.ndarray) -> float:
    """Return bits per dimension of uint8 [height, width, 1 or 3] as lossless WebP, grey as RGB."""
    colour = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
    return _bits(colour, "WEBP", quality=100, method=6) / image.size


def jpeg_xl_bits_per_dim(image: np.ndarray) -> float:
    """Return the bits per dimension of uint8 [height, width, 1 or 3] in lossless JPEG XL."""
    importlib.import_module(JPEG_XL)
    return _bits(image[..., 0] if image.shape[-1] == 1 else image, "JXL", effort=9) / image.size


def _bits(image: np.ndarray, container: str, **options: Any) -> float:
    file = io.BytesIO()
    Image.fromarray(image).save(file, container, lossless=True, **options)
    return 8.0 * len(file.getvalue())


RECIPE = b"1"  # version of architecture and training, which is part of the digest
FEATURES = 64
WIDTHS = (24, 32, 48, 64)  # channels of each stage; a stage halves the image
STEPS, BATCH_SIZE = 1500, 64
# Averaged weights would not fit the moments of batch normalisation.
OPTIMIZER = OptimizerConfig(3e-3, 0, "cosine", epsilon=1e-7, clip_norm=0.0, average_decay=0.0)
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
        if path.exists() and (opened := load_classifier(path, known)) is not None:
            return opened
    return train_classifier(train, classes, cached)


def load_classifier(path: Path, known: str | None = None) -> Classifier | None:
    """Load a classifier; return None if `known` is not None and not its training images' digest."""
    with np.load(path, allow_pickle=False) as stored:
        if known not in (None, str(stored["digest"])):
            return None
        weights = [stored[f"weight_{i:02d}"] for i in range(int(stored["count"]))]
        side, channels, classes = map(int, stored["shape"])
        network = make_network(side, channels, classes)
        network.set_weights([weight.astype(np.float32) for weight in weights])
        return Classifier(network, stored["reference"].astype(np.float64))


def train_classifier(train: ImageSet, classes: int, path: Path, seed: int = 0) -> Classifier:
    """Train a classifier, as determined by the seed, and write it to a file."""
    side, channels = train.images.shape[2:]
    network = make_network(side, channels, classes, seed)
    examples = tf.data.Dataset.from_tensor_slices({"image": train.images, "label": train.labels})
    batches = examples.shuffle(len(train.images), seed=seed).repeat().batch(BATCH_SIZE)

    def loss(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        logits, _ = network(batch["image"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        return tf.reduce_mean(losses), {}

    train_network(
        WeightsModule([variable.value for variable in network.trainable_variables]),
        loss,
        OPTIMIZER,
        LoopConfig(num_steps(len(train.images))),
        lambda *_: batches,
        title="training a classifier of the real images, once",
    )
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

    In training, images are distorted at random, but not mirrored: a mirrored hand is another sign.
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


NEIGHBOURS = 3  # k of the k-nearest neighbours, as in Kynkaanniemi et al.


def sample_quality(
    classifier: Classifier, images: Sequence[np.ndarray], labels: np.ndarray
) -> dict[str, Any]:
    """Return measures of samples uint8 [side, side, channels] with the requested classes `labels`.

    They are class_accuracy, the share of samples classified as requested, a `Measure`;
    frechet_distance, precision and recall relative to real training images; and too_few_images,
    whether there are not more samples than features, so that their covariance is singular and the
    distance depends mostly on the number of samples.
    """
    seen = classifier(images)
    precision, recall = precision_recall(classifier.reference, seen.features)
    return {
        "class_accuracy": dataclasses.asdict(share_of(seen.labels == labels)),
        "frechet_distance": frechet_distance(classifier.reference, seen.features),
        "precision": precision,
        "recall": recall,
        "too_few_images": len(images) <= seen.features.shape[1],
    }


def frechet_distance(real: np.ndarray, made: np.ndarray) -> float:
    """Return the Frechet distance between normal distributions fitted to features [n, channels].

        |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2))

    The distance is biased upwards for few images, so compare equal numbers of images. Source:
    Heusel et al. 2017, arXiv:1706.08500, equation 6.
    """
    if (fewest := min(len(real), len(made))) < 2:
        raise UserError(f"A Frechet distance needs at least 2 images, got {fewest}.")
    difference = real.mean(0) - made.mean(0)
    covariances = [np.cov(features, rowvar=False) for features in (real, made)]
    # C_1 C_2 has the eigenvalues of a positive semi-definite matrix, up to rounding.
    roots = np.sqrt(np.maximum(np.linalg.eigvals(covariances[0] @ covariances[1]).real, 0.0))
    traces = sum(float(np.trace(covariance)) for covariance in covariances)
    return float(difference @ difference) + traces - 2.0 * float(roots.sum())


def precision_recall(real: np.ndarray, made: np.ndarray) -> tuple[float, float]:
    """Return precision and recall of generated features, [n, channels], in [0, 1].

    Precision is the share of generated features that are at most as far from some real feature as
    that feature's third nearest real neighbour; recall is the same with the roles exchanged.
    Source: Kynkaanniemi et al. 2019, arXiv:1904.06991, section 2.
    """
    between = _distances(real, made)
    precision = (between <= _radii(real)[:, np.newaxis]).any(0).mean()
    recall = (between <= _radii(made)).any(1).mean()
    return float(precision), float(recall)


def _radii(features: np.ndarray) -> np.ndarray:
    among = np.sort(_distances(features, features), 1)
    return among[:, min(NEIGHBOURS, len(features) - 1)]


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    squares = (first**2).sum(1)[:, np.newaxis] + (second**2).sum(1) - 2.0 * first @ second.T
    return np.sqrt(np.maximum(squares, 0.0))
