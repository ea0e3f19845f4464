"""Create empty symbols and draw new ones, for samplers that make passes over all symbols."""

import tensorflow as tf

from onepass.likelihoods.capabilities import pixel_channels
from onepass.likelihoods.distribution import Distribution


def empty_symbols(distribution: Distribution, noise: tf.Tensor) -> tf.Tensor:
    """Return zeros with the shape and type of the symbols for the given noise.

    Args:
      distribution: the distribution of a symbol; if it has `channels`, all channels of a pixel
        share one noise vector.
      noise: [batch, time, noise channels] in time order; in raster order [batch, height, width,
        noise channels] for whole pixels, or [batch, height, width, channels, noise channels].
    """
    dtype = tf.float32 if distribution.levels is None else tf.int32
    sizes, channels = tf.unstack(tf.shape(noise)), pixel_channels(distribution)
    known = [sizes[axis] if size is None else size for axis, size in enumerate(noise.shape)]
    return tf.zeros([*known[:-1], *([] if channels is None else [channels])], dtype)


def sampled(
    parameters: tf.Tensor,
    distribution: Distribution,
    noise: tf.Tensor,
    temperature: float | tf.Tensor,
    like: tf.Tensor,
) -> tf.Tensor:
    """Draw symbols with the shape and type of `like`."""
    drawn = distribution.sample(parameters, noise, temperature)
    return tf.cast(tf.ensure_shape(drawn, like.shape), like.dtype)
