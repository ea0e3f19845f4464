"""Batches of photographs of any shape: random squares for training, whole ones for evaluation."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pixelcnn.data.batch_sampling import (
    LANES,
    Arrays,
    example_seeds,
    example_words,
    flipped,
    sampled_examples,
    shard_rows,
)
from replicator.training.batches import as_dataset


def square_batches(
    photographs: Sequence[np.ndarray],
    *,
    side: int,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    flip: bool = False,
    shard_index: int = 0,
    num_shards: int = 1,
) -> tf.data.Dataset:
    """Return an endless dataset of random squares; every photograph gives one per epoch.

    Batch n depends only on the arguments and n.

    The photographs are uint8 [height, width, channels] each, no side below `side`; the other
    arguments are as for `batch_sampling.image_batch`.

    Yields:
      "levels" int32 [batch, side, side, channels]; "seed" int32 [batch, 2].
    """
    rows = shard_rows(batch_size, shard_index, num_shards)

    def make(step: int) -> Arrays:
        chosen = sampled_examples(seed, step, batch_size, len(photographs))[rows]
        seeds, flips, *corners, _ = example_words(seed, step, batch_size, LANES)[:, rows]
        located = zip(chosen, *corners, strict=True)
        squares = np.stack([_square(photographs[i], corner, side) for i, *corner in located])
        levels = (flipped(squares, flips) if flip else squares).astype(np.int32)
        return {"levels": levels, "seed": example_seeds(seeds)}

    return as_dataset(make, start_step, rows=batch_size // num_shards)


def _square(photograph: np.ndarray, corner: Sequence, side: int) -> np.ndarray:
    """Return the square whose corner two words determine, down and across."""
    cut = []
    for word, length in zip(corner, photograph.shape[:2], strict=True):
        places = np.uint64(length - side + 1)
        first = int((word >> np.uint64(32)) * places >> np.uint64(32))
        cut.append(slice(first, first + side))
    return photograph[tuple(cut)]


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
