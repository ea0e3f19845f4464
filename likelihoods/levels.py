"""Levels: the integers a likelihood speaks of, and the numbers in [-1, 1] they stand for.

Level `l` of `num_levels` stands for `2 l / (num_levels - 1) - 1`; it owns a bin of half width
`1 / (num_levels - 1)` around that value, and the two outermost bins reach to infinity.
"""

import tensorflow as tf


def centred(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """float32 `2 l - (num_levels - 1)`, exact: the value of a level in half bins from zero."""
    return 2.0 * tf.cast(levels, tf.float32) - (num_levels - 1.0)


def value_of(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """float32 value in [-1, 1] of each level, `2 l / (num_levels - 1) - 1`."""
    # A product, because compilers turn the division into one and would move the last bit.
    return centred(levels, num_levels) * (1.0 / (num_levels - 1))


def real(parameters: tf.Tensor) -> tf.Tensor:
    """The parameters as float32, or as the float64 that they come in."""
    return parameters if parameters.dtype == tf.float64 else tf.cast(parameters, tf.float32)


def sample_level(
    mean: tf.Tensor, log_scale: tf.Tensor, noise: tf.Tensor, num_levels: int
) -> tf.Tensor:
    """int32 level of `mean + exp(log_scale) noise`.

    In float64: rounding to a level would turn the last bit of a float32, in which compilers
    differ, into a step of the sound.
    """
    mean, log_scale, noise = (tf.cast(x, tf.float64) for x in (mean, log_scale, noise))
    return nearest(mean + tf.exp(log_scale) * noise, num_levels)


def nearest(values: tf.Tensor, num_levels: int) -> tf.Tensor:
    """int32 level whose bin holds each value; values outside [-1, 1] fall to the outer levels."""
    position = (real(tf.convert_to_tensor(values)) + 1.0) * (0.5 * (num_levels - 1))
    return tf.cast(tf.clip_by_value(tf.round(position), 0.0, num_levels - 1.0), tf.int32)


class LinearLevels:
    """A mixin for likelihoods whose levels lie at equal distances."""

    levels: int

    def encode(self, waveform: tf.Tensor) -> tf.Tensor:
        """int32 [...] nearest levels of a waveform [...]; outside [-1, 1] the outer levels."""
        return nearest(waveform, self.levels)

    def decode(self, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...] waveform in [-1, 1]."""
        return value_of(levels, self.levels)

    def scale(self, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...] in [-1, 1], what a network reads; the same as `decode`."""
        return value_of(levels, self.levels)
