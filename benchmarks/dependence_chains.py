"""Longest chain of pixels of a PixelCNN's images in which each one changes the next.

    python -m benchmarks.dependence_chains shipped-digits-teacher --num 4

With its noise given, a pixel is a function of those before it. At an image that the model draws,
pixel i depends on pixel j where a change of j alone changes what one network pass draws at i. A
pass carries a change one link along every chain, so the longest chain is about the number of passes
after which an iteration without a forecast is final, wherever it starts near the image.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.likelihoods.noise import as_key
from onepass.trained import Trained
from pixelcnn.density import image_words
from pixelcnn.model import load

AT_ONCE = 32  # changed images per pass
HEADER = "| image | change of a pixel | pixels that it changes | longest chain |\n|---|---|---|---|"

Draw = Callable[[np.ndarray], np.ndarray]  # of images [n, height, width, channels], a pass of each


def one_level(image: np.ndarray, levels: int) -> np.ndarray:
    """Return the image with every number moved by one level, towards the middle."""
    return np.where(image < levels // 2, image + 1, image - 1)


def dependence(draw: Draw, image: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return which pixels change which, bool [pixels, pixels]: [i, j] where j changes i.

    Args:
      draw: returns what one pass draws at every pixel, given those before it.
      image: int32 [height, width, channels], a fixed point of `draw`.
      other: the value that each pixel is changed to, likewise.
    """
    height, width, channels = image.shape
    pixels = height * width
    found = np.zeros([pixels, pixels], bool)
    for first in range(0, pixels, AT_ONCE):
        changed = np.arange(first, min(first + AT_ONCE, pixels))
        images = np.repeat(image.reshape(1, pixels, channels), len(changed), 0)
        images[np.arange(len(changed)), changed] = other.reshape(pixels, channels)[changed]
        drawn = draw(images.reshape(-1, height, width, channels))
        found[:, changed] = (drawn != image).any(-1).reshape(-1, pixels).T
    return found


def longest_chain(depends: np.ndarray) -> int:
    """Return the number of pixels of the longest chain, where [i, j] needs j before i."""
    lengths = np.zeros(len(depends), int)
    for i in range(len(depends)):
        lengths[i] = 1 + max(lengths[:i][depends[i, :i]], default=0)
    return int(lengths.max())


def lines(model: Trained, num: int, seed: int) -> Iterator[str]:
    """Yield the rows of the table, for images 0, 1, ... of a seed, all classes in turn."""
    classes = model.config.conditioning.classes
    for row in range(num):
        value = row % classes if classes else None
        draws = [_draw(model, value, seed, number) for number in (row, num + row)]
        start = np.zeros([1, model.front.size, model.front.size, model.front.channels], np.int32)
        image = model.sample(condition=[value] * (row + 1), seed=seed, num=row + 1)[row].astype(
            np.int32
        )
        changes = {
            "by one level": one_level(image, model.front.levels),
            "to another draw": draws[1](start + image)[0],
        }
        for name, other in changes.items():
            depends = dependence(draws[0], image, other)
            each = depends.sum() / len(depends)
            yield f"| {row} | {name} | {each:.1f} | {longest_chain(depends)} |"


def _draw(model: Trained, value: Any, seed: int, row: int) -> Draw:
    """Return the pass of an image of a seed and a condition."""
    density: Any = model.network
    network = density.pixelcnn
    words = image_words(
        network, as_key(seed), tf.constant([row]), model.front.size, model.front.size
    )
    condition = network.add_coordinates(density.conditioner(model.front.condition(value)), words)

    @tf.function(autograph=False, reduce_retracing=True)
    def draw(levels):
        hidden = network.compute_hidden(levels, condition)
        return network.output.sample(hidden, tf.repeat(words, tf.shape(levels)[0], 0), 1.0)

    return lambda levels: draw(tf.constant(levels, tf.int32)).numpy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a PixelCNN: run directory, model folder or shipped name")
    parser.add_argument("--num", type=int, default=4, help="images")
    parser.add_argument("--seed", type=int, default=0, help="of their noise")
    given = parser.parse_args()
    print(HEADER, flush=True)
    for line in lines(load(given.model), given.num, given.seed):
        print(line, flush=True)
