"""Evaluation of an image model: bits per dimension by scale, compared with lossless files."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from foundation.heartbeat import during
from foundation.intervals import share_of, weighted_mean
from foundation.progress import Progress
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.depth import dtype_of
from pixelcnn.measures.codecs import codec_bits_by_scale, codec_bits_per_dim
from pixelcnn.model import ImageModel
from pixelcnn.networks.config import GROUPS
from pixelcnn.networks.multiscale import size_of
from pixelcnn.sampling.generation import Request

MOST_MIXED = 20  # classes under each of which every image is evaluated
Parts = dict[str, np.ndarray]
Nats = Callable[[Mapping[str, tf.Tensor]], Mapping[str, tf.Tensor]]


def evaluate(model: ImageModel, dataset: ImageDataset, seed: int = 0) -> dict:
    """Return the metrics of a model on the dev images, as `evaluate --json` prints them.

    Returns:
      A dict with bits_per_dim, seconds_per_picture (batch 1, without compilation; None for a model
      that lacks parts), measures {name: `Measure`}, codec {name: bits per dimension of the same
      images in lossless files} and dev {"pictures", "of"}, their number and the source's. A model
      of photographs has as codec what the files of the dev images add to those of the start, per
      value that the model draws, and as codec_by_scale the same for every scale. Measures are
      bits_per_dim; for a multiscale model one per scale, over the values drawn at that scale; for
      a conditional model bits_per_dim under the condition of another image, and the difference,
      means over `dataset.shuffles`; for a model of captions the share of images that are likelier
      under their own than under each of those; for a model of at most `MOST_MIXED` classes the bits
      saved by knowing the class (`_bits_for_the_class`). If the base is a flow, bits are an upper
      bound, see `ImageFlow.nats`.
    """
    nats = tf.function(model.density.nats, autograph=False, reduce_retracing=True)
    parts = _bits(nats, dataset.dev(), "evaluating")
    images = list(_images(dataset))
    numbers = np.array([model.density.drawn_numbers(image[np.newaxis]) for image in images])
    total = np.sum(list(parts.values()), axis=0) / numbers
    measured = {"bits_per_dim": total}
    if model.multiscale is not None:
        measured |= _by_scale(parts, np.array([image.size for image in images]) / model.size**2)
    if model.config.conditioning.kind != "none" and len(total) > 1:
        others = _bits_of_others(nats, dataset) / numbers
        measured["bits_per_dim_with_another_condition"] = others.mean(0)
        measured["bits_per_dim_gained_by_the_condition"] = others.mean(0) - total
        if model.config.conditioning.kind == "text":
            measured[f"caption_found_among_{len(others) + 1}"] = total < others.min(0)
    if model.config.conditioning.kind == "class" and len(model.classes) <= MOST_MIXED:
        gained = _bits_for_the_class(nats, dataset, len(model.classes), total * numbers)
        measured["bits_per_image_gained_over_the_mean_of_all_classes"] = gained
    measures = {
        name: dataclasses.asdict(share_of(v) if v.dtype == bool else weighted_mean(v))
        for name, v in measured.items()
    }
    with during("compressing the images with lossless codecs"):
        if dataset.config.data.crop:
            codecs = codec_bits_by_scale(images, model.size, _doublings(model))
        else:
            codecs = {"codec": codec_bits_per_dim(images)}
    return {
        "bits_per_dim": measures["bits_per_dim"]["mean"],
        "seconds_per_picture": _seconds(model, dataset, seed) if model.whole else None,
        "measures": measures,
        **codecs,
        "dev": {"pictures": len(total), "of": dataset.found},
    }


def _bits(nats: Nats, batches: tf.data.Dataset, doing: str) -> Parts:
    """Return the bits of every image, [images], part by part."""
    found: dict[str, list[np.ndarray]] = {}
    with Progress(len(batches), doing, "batch") as progress:
        for batch in batches:
            for part, value in nats(batch).items():
                found.setdefault(part, []).append(-value.numpy().astype(np.float64) / math.log(2.0))
            progress.advance()
    return {part: np.concatenate(values) for part, values in found.items()}


def _bits_of_others(nats: Nats, dataset: ImageDataset) -> np.ndarray:
    """Return the bits of every image under other images' conditions, [shuffles, images]."""
    doing = "evaluating with others' conditions"
    ways = [_bits(nats, dataset.dev(shuffled=i + 1), doing) for i in range(dataset.shuffles)]
    return np.array([np.sum(list(parts.values()), axis=0) for parts in ways])


def _bits_for_the_class(
    nats: Nats, dataset: ImageDataset, classes: int, bits: np.ndarray
) -> np.ndarray:
    """Return the bits saved per image compared with a class drawn at random, [images].

        log2 p(x | c) - log2 (1/C sum_k p(x | k))

    This is at most log2(classes). If a model is too sure of its classes, the cost of another class
    (`gained_by_the_condition`) grows without bound, while this measure falls below 0. `bits` has
    the bits of every image under its own class.
    """
    doing = "evaluating with every class"
    each = []
    for label in range(classes):
        batches = dataset.dev().map(lambda batch, to=label: batch | _labelled(batch, to))
        each.append(np.sum(list(_bits(nats, batches, doing).values()), axis=0))
    mixed = math.log2(classes) - np.logaddexp2.reduce(-np.array(each), axis=0)
    return mixed - bits


def _labelled(batch: dict, label: int) -> dict:
    return {"label": tf.fill(tf.shape(batch["label"]), label)}


def _doublings(model: ImageModel) -> list[int]:
    """Return the sizes whose three factors are all trained."""
    parts = [] if model.multiscale is None else [size_of(p) for p in model.multiscale.factors]
    return sorted(size for size in set(parts) if parts.count(size) == len(GROUPS))


def _by_scale(parts: Parts, per_pixel: np.ndarray) -> Parts:
    """Return the bits per dimension that each scale adds, where all its parts exist.

    Args:
      parts: bits of every image, [images], part by part.
      per_pixel: number of values of each image per pixel of the square of its size, [images].
    """
    scales: dict[int, list[np.ndarray]] = {}
    for part, bits in parts.items():
        scales.setdefault(int(part.split(".")[0]), []).append(bits)
    each = {}
    for size, values in scales.items():
        if "." not in next(p for p in parts if p.split(".")[0] == str(size)):
            each[f"bits_per_dim_{size}x{size}"] = values[0] / (size**2 * per_pixel)
        elif len(values) == len(GROUPS):
            each[f"bits_per_dim_{size}x{size}"] = np.sum(values, 0) / (0.75 * size**2 * per_pixel)
    return each


def _seconds(model: ImageModel, dataset: ImageDataset, seed: int) -> float:
    """Return the seconds that an image takes, not counting the first one, which compiles."""
    batch = next(iter(dataset.dev(1)))
    condition = {name: v.numpy() for name, v in batch.items() if name not in ("levels", "seed")}
    request = Request((0, 1, 2), seed, model.size, condition)
    times = [time.perf_counter()]
    with during("compiling and timing the sampler"):
        for _ in model.sampler.images(request):
            times.append(time.perf_counter())
    return float(np.mean(np.diff(times)[1:]))


def _images(dataset: ImageDataset) -> Iterator[np.ndarray]:
    """Yield the dev images, uint8 or uint16 [height, width, channels]."""
    for batch in dataset.dev():
        yield from batch["levels"].numpy().astype(dtype_of(dataset.config.data.bits))
