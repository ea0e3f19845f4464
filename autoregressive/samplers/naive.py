"""A sampler with a pass over the whole sequence per position, a slow reference."""

import tensorflow as tf

from autoregressive.prompts import Prompt
from autoregressive.samplers.passes import empty_symbols, redrawn
from autoregressive.symbols import SymbolNetwork
from likelihoods.distribution import Distribution


def naive(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Return symbols, int32 [batch, time, ...] or [batch, height, width, channels].

    Args:
      network: a network of symbols.
      distribution: the distribution of a symbol.
      noise: the noise of all positions, [batch, time, ..., noise channels], or [batch, height,
        width, ..., noise channels] for images; with an axis of channels where each has a symbol of
        its own.
      condition: the conditions that the network reads, or None.
      temperature: 1 samples the distribution, smaller values are closer to its mode.
      prompt: symbols that are given, in time order.
    """
    first = empty_symbols(distribution, noise)
    order = network.positions(first)

    def body(position: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = redrawn(network, distribution, symbols, noise, condition, temperature, prompt)
        return position + 1, tf.where(order == position, drawn, symbols)

    last = tf.reduce_max(order)
    return tf.while_loop(lambda position, _: position <= last, body, (0, first))[1]
