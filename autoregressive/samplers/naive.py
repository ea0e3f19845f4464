"""A sampler with a pass over the whole sequence per position, a slow reference."""

import tensorflow as tf

from autoregressive.named_conditions import over_time
from autoregressive.prompts import Prompt
from autoregressive.samplers.passes import empty_symbols
from autoregressive.samplers.registry import method
from autoregressive.symbols import SymbolNetwork
from likelihoods.distribution import Distribution


@method("naive")
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
      network: a network of symbols; one that says its `reach`, the symbols before one that it
        depends on, is evaluated on these alone, in whole blocks.
      distribution: the distribution of a symbol.
      noise: the noise of all positions, [batch, time, ..., noise channels], or [batch, height,
        width, ..., noise channels] for images; with an axis of channels where each has a symbol of
        its own.
      condition: the conditions that the network reads, or None.
      temperature: 1 samples the distribution, smaller values are closer to its mode.
      prompt: symbols that are given.
    """
    first = empty_symbols(distribution, noise)
    order, axes = network.positions(first), 2 if first.shape.rank == 4 else 1
    sizes = tf.shape(noise) if None in noise.shape else noise.shape

    def entry(values: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the entry of a position, [batch, 1, ...]; the axes of an image stay two."""
        rest = values.shape[1 + axes :]
        flat = tf.reshape(values, [sizes[0], -1, *rest])
        return tf.reshape(flat[:, position], [sizes[0], *[1] * axes, *rest])

    reach, block = getattr(network, "reach", None), getattr(network, "block", 1)

    def parameters_at(position: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        if reach is None or noise.shape[1] is None or reach + block >= noise.shape[1]:
            return entry(network.parameters(symbols, condition), position)
        # The window begins with the sequence or as far back as the network reads, in whole blocks,
        # so that the zeros a convolution pads with are those the sequence itself would have.
        first = tf.maximum(0, position - reach)
        first -= first % block
        places = tf.minimum(first + tf.range(reach + block), noise.shape[1] - 1)
        part = over_time(lambda x: tf.gather(x, places, axis=1), condition)
        parameters = network.parameters(tf.gather(symbols, places, axis=1), part)
        return entry(parameters, position - first)

    def body(position: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parameters = parameters_at(position, symbols)
        drawn = distribution.sample(parameters, entry(noise, position), temperature)
        symbols = tf.where(order == position, tf.cast(drawn, symbols.dtype), symbols)
        return position + 1, symbols if prompt is None else prompt.over(symbols, 0)

    count = sizes[1] if axes == 1 else sizes[1] * sizes[2]
    begin = 0 if prompt is None else tf.reduce_min(prompt.known)
    symbols = first if prompt is None else prompt.over(first, 0)
    return tf.while_loop(lambda position, _: position < count, body, (begin, symbols))[1]
