"""Evaluation of an image model: bits per dimension, lossless codecs, and its samples."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import CodeLengths, share_of, weighted_mean
from onepass.foundation.progress import Progress, during, show_progress
from onepass.interface import Draw
from onepass.trained import Trained
from pixelcnn import shipped
from pixelcnn.config import GROUPS, dtype_of
from pixelcnn.data.corpus import is_dev_file, read_corpus
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.image_file import EIGHT, rescale_levels
from pixelcnn.data.sources import DataError
from pixelcnn.density import CompiledNats, size_of
from pixelcnn.measures import (
    Classifier,
    classifier_of,
    codec_bits_by_scale,
    codec_bits_per_dim,
    load_classifier,
    sample_quality,
)

MOST_MIXED = 20  # maximum number of classes for which every image is evaluated under every class
Parts = Mapping[str, np.ndarray]
Measure = Callable[[tf.data.Dataset, str], CodeLengths]


def evaluate(model: Trained, dataset: ImageDataset, seed: int = 0) -> dict:
    """Evaluate a model on the dev images and return what `evaluate --json` prints.

    Returns:
      A dict with:
      - bits_per_dim, an upper bound if the base is a flow (`ImageFlow.nats`);
      - seconds_per_picture at batch size 1, without compilation; None if the model lacks parts;
      - codec {name: bits per dimension of lossless files of the same images}; for a model of
        photographs, codec and codec_by_scale are the results of `codec_bits_by_scale`;
      - dev {"pictures": number of dev images, "of": number of images in the source};
      - measures {name: `Measure`}: bits_per_dim; bits per dimension of each scale (multiscale);
        bits per dimension under another image's condition, and the difference; the share of images
        more probable under their caption than under every other tried one; and, for at most
        `MOST_MIXED` classes, the bits saved by knowing the class (`_bits_for_the_class`).
    """
    measure = functools.partial(_measure, CompiledNats(model.network))
    lengths, dtype = measure(dataset.dev(), "evaluating"), dtype_of(dataset.config.data.bits)
    images = [image for each in dataset.dev() for image in each["levels"].numpy().astype(dtype)]
    total = lengths.bits_per_element
    measured = {"bits_per_dim": total}
    if model.network.multiscale is not None:
        measured |= _by_scale(
            lengths.parts, np.array([image.size for image in images]) / model.front.size**2
        )
    if model.config.conditioning.kind != "none" and len(total) > 1:
        doing, ways = "evaluating with others' conditions", range(1, dataset.shuffles + 1)
        shuffled = [measure(dataset.dev(shuffled=way), doing) for way in ways]
        others = np.array([way.bits_per_element for way in shuffled])
        measured["bits_per_dim_with_another_condition"] = others.mean(0)
        measured["bits_per_dim_gained_by_the_condition"] = others.mean(0) - total
        if model.config.conditioning.kind == "text":
            measured[f"caption_found_among_{len(others) + 1}"] = total < others.min(0)
    if model.config.conditioning.kind == "class" and len(model.front.classes) <= MOST_MIXED:
        measured["bits_per_image_gained_over_the_mean_of_all_classes"] = _bits_for_the_class(
            measure, dataset, len(model.front.classes), lengths
        )
    measures = {
        name: dataclasses.asdict(share_of(v) if v.dtype == bool else weighted_mean(v))
        for name, v in measured.items()
    }
    with during("compressing the images with lossless codecs"):
        if dataset.config.data.crop:
            parts = [size_of(part) for part in model.network.multiscale.factors]
            doublings = sorted(size for size in {*parts} if parts.count(size) == len(GROUPS))
            codecs = codec_bits_by_scale(images, model.front.size, doublings)
        else:
            codecs = {"codec": codec_bits_per_dim(images)}
    return {
        "bits_per_dim": measures["bits_per_dim"]["mean"],
        "seconds_per_picture": _seconds(model, dataset, seed) if model.network.whole else None,
        "measures": measures,
        **codecs,
        "dev": {"pictures": len(total), "of": dataset.num_found},
    }


def _measure(nats: CompiledNats, batches: tf.data.Dataset, doing: str) -> CodeLengths:
    return nats.code_lengths(show_progress(batches, doing, "batch"))


def _bits_for_the_class(
    measure: Measure, dataset: ImageDataset, classes: int, lengths: CodeLengths
) -> np.ndarray:
    """Return the bits per image saved by knowing the class, [images].

        log2 p(x | c) - log2 (1/C sum_k p(x | k))

    This is at most log2(C). For a model that is overconfident about classes, the bits gained over
    a wrong class grow without bound, while this measure becomes negative. `lengths` are those of
    every image under its true class.
    """
    doing = "evaluating with every class"
    each = []
    for label in range(classes):
        batches = dataset.dev().map(
            lambda batch, to=label: batch | {"label": tf.fill(tf.shape(batch["label"]), to)}
        )
        each.append(measure(batches, doing).nats)
    mixed = math.log(classes) - np.logaddexp.reduce(-np.array(each), axis=0)
    return (mixed - lengths.nats) / math.log(2.0)


def _by_scale(parts: Parts, per_pixel: np.ndarray) -> Parts:
    """Return each scale's bits per dimension; `per_pixel` is values over the size squared."""
    scales: dict[int, list[np.ndarray]] = {}
    for part, nats in parts.items():
        scales.setdefault(size_of(part), []).append(nats / math.log(2.0))
    each = {}
    for size, values in scales.items():
        if "." not in next(p for p in parts if p.split(".")[0] == str(size)):
            each[f"bits_per_dim_{size}x{size}"] = values[0] / (size**2 * per_pixel)
        elif len(values) == len(GROUPS):
            each[f"bits_per_dim_{size}x{size}"] = np.sum(values, 0) / (0.75 * size**2 * per_pixel)
    return each


def _seconds(model: Trained, dataset: ImageDataset, seed: int) -> float:
    batch = next(iter(dataset.dev(1)))
    condition = {name: v.numpy() for name, v in batch.items() if name not in ("levels", "seed")}
    asked = Draw(3, model.front.size, seed, condition)
    times = [time.perf_counter()]
    with during("compiling and timing the sampler"):
        for _ in model.model.images(asked):
            times.append(time.perf_counter())
    return float(np.mean(np.diff(times)[1:]))


def classifier_for(model: Trained, name: str, sources: Sequence[str]) -> Classifier | None:
    """Return a classifier for a model's classes, or None if there are no training images."""
    file = shipped.classifier(name)
    if file is not None:
        return load_classifier(file)
    for source in sources:
        with contextlib.suppress(DataError):
            if not is_dev_file(source):
                corpus = read_corpus(source, model.config.data)
                if corpus.classes == model.front.classes:
                    train = corpus.splits["train"]
                    shown = rescale_levels(train.images, model.front.bits, EIGHT)
                    train = dataclasses.replace(train, images=shown)
                    return classifier_of(train, len(corpus.classes))
    return None


def evaluate_samples(
    model: Trained,
    dataset: ImageDataset,
    classifier: Classifier,
    num: int,
    seed: int,
    guidance: float = 0.0,
    temperature: tuple[float, ...] = (1.0,),
) -> dict:
    """Return the measures of `sample_quality` for samples of all classes, or of dev captions.

    "dev" has the same measures for up to `num` real dev images, which a perfect model would reach.
    """
    dev: Any = dataset.source.splits["dev"]  # an `ImageSet` with labels
    chosen = np.linspace(0, len(dev.images) - 1, min(num, len(dev.images))).astype(int)
    labels: Any = np.arange(num) % len(model.front.classes)
    conditions: list = labels.tolist()
    if model.config.conditioning.kind == "text":
        rows = np.resize(chosen, num)
        labels, conditions = dev.labels[rows], [dev.captions[row] for row in rows]
    heat = temperature[0] if len(temperature) == 1 else temperature
    sampled = model.stream(
        num, seed=seed, condition=conditions, temperature=heat, guidance=guidance
    )
    drawn = []
    with Progress(num, "drawing", "image") as progress:
        for (image,) in sampled:
            drawn.append(rescale_levels(image, model.front.bits, EIGHT))
            progress.advance()
    shown = list(rescale_levels(dev.images[chosen], model.front.bits, EIGHT))
    real = sample_quality(classifier, shown, dev.labels[chosen])
    made = sample_quality(classifier, drawn, labels)
    asked = {"num": num, "guidance": guidance, "temperature": list(temperature)}
    return {**asked, **made, "dev": {"pictures": len(chosen), **real}}
