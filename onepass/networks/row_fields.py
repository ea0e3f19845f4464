"""Find how many rows above a pixel a masked image network reads."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from onepass.step.random_weights import with_random_weights

PROBED = (40, 4)  # height and width of the test images
MOST = PROBED[0] // 2  # largest number of rows that can be found
NOISE = 1e-5  # changes below are rounding


def rows_above(call: Callable[..., tf.Tensor], inputs: tf.TensorSpec) -> int | None:
    """Return how many image rows above a pixel outputs depend on; None if none can be left out."""
    if any(size is not None for size in inputs.shape[1:3]):
        return None
    generator = np.random.default_rng(0)
    images = [
        _draw_tensor(generator, [1, *PROBED, inputs.shape[-1]], inputs.dtype) for _ in range(2)
    ]
    images[1] = tf.concat([images[1][:, :1], images[0][:, 1:]], 1)
    try:
        random = with_random_weights(call, 0, images[0])
        whole, other = (random(image) for image in images)
        rows = 0
        changed = _rows(whole, other)
        if changed.any():
            rows = int(np.flatnonzero(changed)[-1])
        if rows > MOST:
            return None
        below = random(images[0][:, MOST - rows :])
    except (ValueError, TypeError, tf.errors.OpError):
        return None
    return None if _rows(below[:, rows:], whole[:, MOST:]).any() else rows


def _draw_tensor(
    generator: np.random.Generator, shape: Sequence[int], dtype: tf.DType
) -> tf.Tensor:
    drawn = generator.integers(0, 2, shape) if dtype.is_integer else generator.normal(size=shape)
    return tf.constant(drawn, dtype)


def _rows(first: tf.Tensor, second: tf.Tensor) -> np.ndarray:
    first, second = (np.asarray(tf.cast(x, tf.float64))[0] for x in (first, second))
    distance = np.abs(first - second) / (1.0 + np.abs(first))
    return distance.max(axis=(1, 2)) > NOISE
