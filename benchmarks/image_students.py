"""Images of distilled models of classes and of their teacher, measured alike, as a table.

    python -m benchmarks.image_students shipped-digits run guided --data IMAGES --out grids

All draw the same classes with the same seed. The teacher's bits are what an image costs under the
teacher, bits per dimension: less than for its own samples is too likely, as where modes are lost.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.measures import format_measure
from onepass.foundation.progress import Progress
from onepass.trained import Trained
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import classifier_for
from pixelcnn.measures import Classifier, sample_quality
from pixelcnn.model import load
from pixelcnn.sampling.grids import grid, write_png

COLUMNS = (
    "model",
    "passes",
    "seconds an image",
    "teacher's bits",
    "class accuracy",
    "Frechet distance",
    "precision",
    "recall",
    "bits of dev",
)
SHOWN = 40  # images in a grid, classes in columns


@dataclasses.dataclass(frozen=True)
class Measured:
    """Samples of a model, uint8 [num, side, side, channels], and seconds that one of them took."""

    images: np.ndarray
    seconds: float


def sampled(model: Trained, labels: list[int], seed: int, guidance: float) -> Measured:
    """Return images of classes, one at a time; the first, which compiles, is not timed."""
    images, times = [], []
    with Progress(len(labels), "drawing", "image") as progress:
        drawn = model.stream(len(labels), seed=seed, condition=labels, guidance=guidance)
        for (image,) in drawn:
            images.append(image)
            times.append(time.perf_counter())
            progress.advance()
    return Measured(np.stack(images), float(np.median(np.diff(times))))


def passes(model: Trained) -> int:
    """Network passes, or cached steps of pixels, that an image takes."""
    if model.network.multiscale is None:
        return model.front.size**2
    side = model.network.multiscale.config.base_size
    base = 1 if model.network.multiscale.has_flow else side**2
    return base + 3 * round(math.log2(model.front.size / side))


def bits(model: Trained, images: np.ndarray, labels: list[int]) -> float:
    """Mean bits per dimension of images under a model; a bound from above where it has a flow."""
    return -float(np.mean(model.log_prob(images, labels))) / model.network.num_dims / math.log(2.0)


def line(
    name: str,
    model: Trained,
    teacher: Trained,
    dev: Any,
    classifier: Classifier,
    drawn: Measured,
    labels: list[int],
) -> str:
    """Return the row of a model.

    Args:
      name: of the system.
      model: that drew the images.
      teacher: its teacher.
      dev: images and labels that neither has seen.
      classifier: of the classes.
      drawn: samples of the classes `labels`.
      labels: the requested classes.
    """
    quality: dict[str, Any] = sample_quality(classifier, list(drawn.images), np.array(labels))
    cells = [
        name,
        str(passes(model)),
        f"{drawn.seconds:.4f}",
        f"{bits(teacher, drawn.images, labels):.3f}",
        f"{format_measure(quality['class_accuracy'], 100.0, 1, '%')}",
        *(f"{quality[key]:.2f}" for key in ("frechet_distance", "precision", "recall")),
        f"{bits(model, dev.images, list(map(int, dev.labels))):.3f}",
    ]
    return row(cells)


def row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, and prints the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="the teacher first; each can be NAME@GUIDANCE")
    parser.add_argument("--data", required=True, help="the images that they were trained on")
    parser.add_argument("--num", type=int, default=200, help="samples of each")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--out", type=Path, help="folder for a grid of each model's images")
    given = parser.parse_args()
    teacher = load(given.models[0].partition("@")[0])
    dataset = ImageDataset.for_evaluation(given.data, teacher.config, teacher.front.classes)
    classifier = classifier_for(teacher, given.models[0], [given.data])
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    labels = [row % len(teacher.front.classes) for row in range(given.num)]
    if classifier is None:
        parser.error("--data has no training images, which a classifier is trained on")
    print(row(COLUMNS), row(["---"] * len(COLUMNS)), sep="\n", flush=True)
    for said in given.models:
        name, _, guidance = said.partition("@")
        model = load(name)
        drawn = sampled(model, labels, given.seed, float(guidance or 0))
        dev = dataset.source.splits["dev"]
        print(line(said, model, teacher, dev, classifier, drawn, labels), flush=True)
        if given.out:
            sheet = grid(list(drawn.images[:SHOWN]), len(teacher.front.classes))
            write_png(given.out / f"{Path(said).name}.png", sheet)


if __name__ == "__main__":
    main()
