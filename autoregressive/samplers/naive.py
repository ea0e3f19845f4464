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
      network: of symbols.
      distribution: of them.
      noise: [batch, time, noise channels], or [batch, height, width, ...] for images; see
        `passes.empty_symbols`.
      condition: of the network.
      temperature: as for `Distribution.sample`.
      prompt: symbols that are given, in time order.
    """
    first = empty_symbols(distribution, noise)
    order = network.positions(first)

    def body(position: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = redrawn(network, distribution, symbols, noise, condition, temperature, prompt)
        return position + 1, tf.where(order == position, drawn, symbols)

    last = tf.reduce_max(order)
    return tf.while_loop(lambda position, _: position <= last, body, (0, first))[1]
