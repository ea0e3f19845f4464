"""Captions for labelled images, to measure what a caption is worth.

Run as `python -m benchmarks.captions`.

The sign digits have labels and no text. Each image gets one sentence, of several, that says its
digit in words and whether it is a bright or a dark image, so that a model has to read.
"""

import argparse
from pathlib import Path

import numpy as np

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SENTENCES = (
    "a hand showing the number {digit} in a {light} picture",
    "a {light} photograph of somebody signing {digit}",
    "the sign for {digit}, {light}",
    "{digit}, as a hand says it. the picture is {light}",
    "this {light} picture is of a hand. it means {digit}",
)
SPLITS = ("train", "dev")


def captions(images: np.ndarray, labels: np.ndarray, middle: float, seed: int) -> list[str]:
    """Return one sentence for each image, a function of the seed.

    Args:
      images: uint8 [n, height, width, channels].
      labels: [n], digits.
      middle: mean level that parts bright images from dark ones.
      seed: of the noise.
    """
    chosen = np.random.default_rng(seed).integers(0, len(SENTENCES), len(images))
    return [
        SENTENCES[which].format(
            digit=DIGITS[label], light="bright" if image.mean() > middle else "dark"
        )
        for which, image, label in zip(chosen, images, labels, strict=True)
    ]


def write(source: Path, target: Path) -> None:
    """Write `captions_train.npz` and `captions_dev.npz` of a folder of the same pair of files."""
    target.mkdir(parents=True, exist_ok=True)
    files = {split: np.load(next(source.glob(f"*_{split}.npz"))) for split in SPLITS}
    middle = float(np.median(files["train"]["images"].mean((1, 2, 3))))
    for seed, (split, arrays) in enumerate(files.items()):
        text = captions(arrays["images"], arrays["labels"], middle, seed)
        np.savez_compressed(
            target / f"captions_{split}.npz", images=arrays["images"], captions=np.array(text)
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with *_train.npz and *_dev.npz")
    parser.add_argument("target", type=Path, help="folder to write; made if missing")
    given = parser.parse_args()
    write(given.source, given.target)
