"""A sampler that passes over the whole sequence until nothing changes.

With its noise fixed, every symbol is a function of the symbols before it. Iterated from any start,
the passes converge to the one sequence that satisfies all these functions, in at most as many
passes as there are positions. Source: Song et al. 2021, arXiv:2002.03629; Wiggers and Hoogeboom
2020, arXiv:2002.09928.
"""

from typing import Any

import tensorflow as tf

from autoregressive.prompts import Prompt
from autoregressive.samplers.passes import empty_symbols, redrawn
from autoregressive.samplers.time_windows import WindowPasses, by_time_windows
from autoregressive.samplers.windows import by_windows, window_of
from autoregressive.symbols import SymbolNetwork
from likelihoods.distribution import Distribution

FEW = 8  # passes over the whole of an image before windows of it


def fixed_point(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Return the symbols that `naive` returns.

    Args:
      network: computes the parameters of every symbol from the symbols before it; one that has
        `block_passes` is evaluated on windows of time.
      distribution: the distribution whose parameters the network computes.
      noise: the random numbers of every symbol, [batch, time, noise channels] or
        [batch, height, width, ..., noise channels].
      condition: what the network is conditioned on, or None.
      temperature: divides the logits; 1 samples the model.
      prompt: the symbols that are known of every row, in time order.
    """
    blocks: Any = network if getattr(network, "block_passes", None) else None
    if blocks is not None and prompt is None:
        given = noise, blocks.given(condition)
        return _of_blocks(blocks.block_passes, distribution, *given, temperature)
    symbols = empty_symbols(distribution, noise)
    most = tf.reduce_max(network.positions(symbols)) + 1

    def body(_: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = redrawn(network, distribution, symbols, noise, condition, temperature, prompt)
        return tf.reduce_any(drawn != symbols), drawn

    def repeated(
        changed: tf.Tensor, symbols: tf.Tensor, count: int | tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        given = changed, symbols
        return tf.while_loop(lambda x, _: x, body, given, maximum_iterations=count)

    changed = tf.constant(True)
    window = window_of(network, noise.shape[1]) if condition is None and prompt is None else None
    if window is not None:  # of an image that a few passes do not settle
        symbols.set_shape([*noise.shape[:3], None])
        changed, symbols = repeated(changed, symbols, FEW)
        symbols = by_windows(network, distribution, noise, changed, symbols, temperature, window)
    # They find what windows leave to settle, if anything.
    return repeated(changed, symbols, most)[1]


def _of_blocks(
    passes: WindowPasses,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None,
    temperature: float | tf.Tensor,
) -> tf.Tensor:
    """Return symbols int32 [batch, time], by the network's own passes over blocks."""
    batch, time = noise.shape[:2]
    beyond = [[0, 0], [0, -time % passes.bunch], [0, 0]]  # up to whole bunches
    noise = tf.pad(noise, beyond)
    condition = None if condition is None else tf.pad(condition, beyond)
    given = passes, distribution, noise, condition, temperature
    return by_time_windows(*given, passes.initial_state(batch))[0][:, :time]
