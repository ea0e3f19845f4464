"""Levels, the integer symbols of a likelihood, and the numbers in [-1, 1] that they represent.

Level `l` of `num_levels` represents `2 l / (num_levels - 1) - 1`; its bin has half width
`1 / (num_levels - 1)` around that value, and the two outermost bins extend to infinity.
"""

import tensorflow as tf


def centre_levels(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return `2 l - (num_levels - 1)`, the exact value in half bins from zero, float32."""
    return 2.0 * tf.cast(levels, tf.float32) - (num_levels - 1.0)


def value_of(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return the value in [-1, 1] of each level, `2 l / (num_levels - 1) - 1`, float32."""
    # A product, because compilers turn a division into a product, which changes the last bit.
    return centre_levels(levels, num_levels) * (1.0 / (num_levels - 1))


def real(parameters: tf.Tensor) -> tf.Tensor:
    """Return the parameters as float32, or unchanged if they are float64."""
    return parameters if parameters.dtype == tf.float64 else tf.cast(parameters, tf.float32)


def edge_distance(edges: tf.Tensor, means: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return edges minus means in half bins: `edge - mean * (num_levels - 1)`.

    A direct product would lose precision that narrow scales need: for a mean near 1 and 2^16 levels
    its error is 1/500. Here the coarse part of the mean, a multiple of a power of two, is exact,
    and the rest is small. The edges are whole half bins from zero, `centre_levels` +- 1, exact in
    float32; means are in units in which the grid spans [-1, 1], and gradients flow only to them.
    """
    half_bins = num_levels - 1.0
    unit = 2.0 ** -max(0, 22 - (num_levels - 1).bit_length())
    coarse = tf.stop_gradient(tf.round(means / unit) * unit)
    return (edges - coarse * half_bins) - (means - coarse) * half_bins


def sample_level(
    mean: tf.Tensor, log_scale: tf.Tensor, noise: tf.Tensor, num_levels: int
) -> tf.Tensor:
    """Return the level nearest to `mean + exp(log_scale) * noise`, int32.

    It is computed in float64: otherwise the last bit of a float32, which depends on the compiler,
    could change the level.
    """
    mean, log_scale, noise = (tf.cast(x, tf.float64) for x in (mean, log_scale, noise))
    return nearest(mean + tf.exp(log_scale) * noise, num_levels)


def sample_symbol(
    mean: tf.Tensor, log_scale: tf.Tensor, noise: tf.Tensor, num_levels: int | None
) -> tf.Tensor:
    """Return `sample_level`, or the number before rounding, float32, if `num_levels` is None."""
    if num_levels is not None:
        return sample_level(mean, log_scale, noise, num_levels)
    return tf.cast(mean + tf.exp(log_scale) * tf.cast(noise, mean.dtype), tf.float32)


def symbol_of(values: tf.Tensor, num_levels: int | None) -> tf.Tensor:
    """Return the levels nearest to values, int32, or the values if `num_levels` is None."""
    return values if num_levels is None else nearest(values, num_levels)


def nearest(values: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return the level whose bin contains each value, int32; outside [-1, 1], an outer level.

    On the border between two bins, the upper one is chosen. The number of levels below the middle
    is added last, to integers: float32 numbers near 2^15 cannot distinguish quiet 16-bit samples.
    """
    middle, rest = divmod(num_levels, 2)
    position = real(tf.convert_to_tensor(values)) * (0.5 * (num_levels - 1)) + 0.5 * rest
    above = tf.clip_by_value(tf.floor(position), -float(middle), float(num_levels - 1 - middle))
    return tf.cast(above, tf.int32) + middle
