"""Measures of a conditional model's samples, compared with real dev images."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.foundation.progress import Progress
from onepass.trained import Trained
from pixelcnn import shipped
from pixelcnn.data.corpus import is_dev_file, read_corpus
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.depth import EIGHT, rescale_levels
from pixelcnn.data.image_file import DataError
from pixelcnn.measures.classifier import Classifier, classifier_of, opened_classifier
from pixelcnn.measures.sample_quality import sample_quality


def classifier_for(model: Trained, name: str, sources: Sequence[str]) -> Classifier | None:
    """Return a classifier for a model's classes, or None if there are no training images.

    Some shipped models have a shipped classifier. Otherwise it is trained on the first of the
    `sources` (arguments of `read_corpus`) with training images of the model's classes.
    """
    file = shipped.classifier(name)
    if file is not None:
        return opened_classifier(file)
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

    The result also contains "num", "guidance", "temperature" and, as "dev", the same measures for
    up to `num` real dev images, which a perfect model would reach.
    """
    dev: Any = dataset.source.splits["dev"]  # an `ImageSet` with labels
    chosen = np.linspace(0, len(dev.images) - 1, min(num, len(dev.images))).astype(int)
    labels, conditions = _classes_and_conditions(model, dev, chosen, num)
    heat = temperature[0] if len(temperature) == 1 else temperature
    sampled = model.stream(
        num, seed=seed, condition=conditions, temperature=heat, guidance=guidance
    )
    drawn = []
    with Progress(num, "drawing", "image") as progress:
        for (image,) in sampled:
            drawn.append(rescale_levels(image, model.front.bits, EIGHT))
            progress.advance()
    real = sample_quality(
        classifier,
        list(rescale_levels(dev.images[chosen], model.front.bits, EIGHT)),
        dev.labels[chosen],
    )
    made = sample_quality(classifier, drawn, labels)
    asked = {"num": num, "guidance": guidance, "temperature": list(temperature)}
    return {**asked, **made, "dev": {"pictures": len(chosen), **real}}


def _classes_and_conditions(
    model: Trained, dev: Any, chosen: np.ndarray, num: int
) -> tuple[np.ndarray, list]:
    if model.config.conditioning.kind == "text":
        rows = np.resize(chosen, num)
        return dev.labels[rows], [dev.captions[row] for row in rows]
    labels = np.arange(num) % len(model.front.classes)
    return labels, labels.tolist()
