"""Photographs of any shape as they are evaluated: whole, a batch for each."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pixelcnn.data.batch_sampling import example_seeds, example_words


def whole_photographs(photographs: Sequence[np.ndarray], multiple: int) -> list[dict]:
    """Return a batch for every photograph, its sides cut at both ends to multiples of a number.

    Args:
      photographs: uint8 [height, width, channels] each.
      multiple: of the sides, in pixels.
    """
    batches = []
    for n, photograph in enumerate(photographs):
        cut = []
        for length in photograph.shape[:2]:
            first = length % multiple // 2
            cut.append(slice(first, first + length // multiple * multiple))
        levels = tf.constant(photograph[tuple(cut)][np.newaxis].astype(np.int32))
        seeds = example_seeds(example_words(0, n, 1, 1)[0])
        batches.append({"levels": levels, "seed": tf.constant(seeds)})
    return batches
