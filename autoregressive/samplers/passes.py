"""One pass of a network over symbols, for samplers that use whole passes."""

import tensorflow as tf

from autoregressive.prompts import Prompt
from autoregressive.symbols import SymbolNetwork
from likelihoods.capabilities import pixel_channels
from likelihoods.distribution import Distribution


def empty_symbols(distribution: Distribution, noise: tf.Tensor) -> tf.Tensor:
    """Return zeros of the shape and type of the symbols that the noise is for.

    Args:
      distribution: the distribution of a symbol; if it has `channels`, one noise vector is for all
        channels.
      noise: [batch, time, noise channels] for time order; for raster order [batch, height, width,
        noise channels] of whole pixels, or [batch, height, width, channels, noise channels].
    """
    dtype = tf.float32 if distribution.levels is None else tf.int32
    shape = tf.shape(noise)[:-1]
    channels = pixel_channels(distribution)
    if channels is not None:
        shape = tf.concat([shape, [channels]], 0)
    return tf.zeros(shape, dtype)


def redrawn(
    network: SymbolNetwork,
    distribution: Distribution,
    symbols: tf.Tensor,
    noise: tf.Tensor,
    condition: tf.Tensor | None,
    temperature: float | tf.Tensor,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Return every symbol sampled from the symbols before it and its noise, or as it is known."""
    parameters = network.parameters(symbols, condition)
    drawn = distribution.sample(parameters, noise, temperature)
    drawn = tf.cast(tf.ensure_shape(drawn, symbols.shape), symbols.dtype)
    return drawn if prompt is None else prompt.over(drawn, 0)
