"""The naive sampler, a slow reference: a full pass over the sequence per position."""

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import counts_after, first_counts, with_counts
from onepass.networks.conditions import NOTHING, Condition, over_time
from onepass.networks.symbols import Prompt, SymbolNetwork
from onepass.samplers.fixed_point import empty_symbols
from onepass.samplers.registry import method


@method("naive")
def naive(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition = NOTHING,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Draw symbols [batch, time, ...] or [batch, height, width, channels], a pass per position.

    Args:
      network: a network of symbols. If it has a `reach`, the number of earlier symbols on which an
        output depends, each pass evaluates it only on these, in whole blocks.
      noise: the noise of all positions, [batch, time, ..., noise channels], or [batch, height,
        width, ..., noise channels] for images; with a channel axis if each channel has a separate
        symbol.
    """
    first = empty_symbols(distribution, noise)
    order, axes = network.positions(first), 2 if first.shape.rank == 4 else 1
    sizes = tf.shape(noise) if None in noise.shape else noise.shape

    def entry(values: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the entry at a position, [batch, 1, ...], or [batch, 1, 1, ...] for images."""
        rest = values.shape[1 + axes :]
        flat = tf.reshape(values, [sizes[0], -1, *rest])
        return tf.reshape(flat[:, position], [sizes[0], *[1] * axes, *rest])

    reach, block = getattr(network, "reach", None), getattr(network, "block", 1)

    def parameters_at(position: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        if reach is None or noise.shape[1] is None or reach + block >= noise.shape[1]:
            return entry(network.parameters(symbols, condition), position)
        # The window starts with the sequence, or as far back as the network reads, in whole blocks,
        # so that a convolution pads with zeros only where it would in the full sequence.
        first = tf.maximum(0, position - reach)
        first -= first % block
        places = tf.minimum(first + tf.range(reach + block), noise.shape[1] - 1)
        part = over_time(lambda x: tf.gather(x, places, axis=1), condition)
        parameters = network.parameters(tf.gather(symbols, places, axis=1), part)
        return entry(parameters, position - first)

    def body(position: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parameters = parameters_at(position, symbols)
        heat = temperature
        counts = first_counts(temperature, [sizes[0], *first.shape[2:]], distribution.levels)
        if counts is not None:
            is_before = tf.reshape(
                tf.range(sizes[1]) < position, [-1, *[1] * (first.shape.rank - 2)]
            )
            heat = with_counts(temperature, counts_after(counts, tf.where(is_before, symbols, -1)))
        drawn = distribution.sample(parameters, entry(noise, position), heat)
        symbols = tf.where(order == position, tf.cast(drawn, symbols.dtype), symbols)
        return position + 1, symbols if prompt is None else prompt.over(symbols, 0)

    count = sizes[1] if axes == 1 else sizes[1] * sizes[2]
    begin = 0 if prompt is None else tf.reduce_min(prompt.known)
    symbols = first if prompt is None else prompt.over(first, 0)
    return tf.while_loop(lambda position, _: position < count, body, (begin, symbols))[1]
