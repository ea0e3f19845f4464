"""Find how many rows above a pixel a masked image network reads."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from onepass.step.random_weights import with_random_weights

PROBED = (40, 4)  # height and width of the test images
MOST = PROBED[0] // 2  # largest number of rows that can be found
NOISE = 1e-5  # changes below are rounding


def rows_above(call: Callable[..., tf.Tensor], inputs: tf.TensorSpec) -> int | None:
    """Return the number of image rows above a pixel that its outputs depend on.

    It is found by evaluating the network with random weights, so taps that a mask disables are not
    counted.

    Args:
      call: the network, from images to outputs [batch, height, width, parameters].
      inputs: spec of the network's first argument, [batch, height, width, channels].

    Returns:
      The number of rows; None if no rows can be left out because outputs depend on the position in
      the image or on more than `MOST` rows, or the network takes images of only one size.
    """
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
    """Return for each image row whether two outputs differ in it, bool [height]."""
    first, second = (np.asarray(tf.cast(x, tf.float64))[0] for x in (first, second))
    distance = np.abs(first - second) / (1.0 + np.abs(first))
    return distance.max(axis=(1, 2)) > NOISE
