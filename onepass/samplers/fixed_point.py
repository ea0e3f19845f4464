"""The fixed-point sampler: passes over the whole sequence until nothing changes.

With the noise fixed, every symbol is a function of the symbols before it. From any start, repeated
passes converge to the unique sequence that satisfies all these functions, in at most as many passes
as there are positions. Sources: Song et al. 2021, arXiv:2002.03629; Wiggers and Hoogeboom 2020,
arXiv:2002.09928. `windows` does this in windows of an image, `time_windows` in windows of time.
"""

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import recalling
from onepass.networks.prompts import Prompt
from onepass.networks.symbols import SymbolNetwork
from onepass.samplers.passes import empty_symbols, sampled
from onepass.samplers.registry import method
from onepass.samplers.windows import by_windows, settings_of


@method("fixed-point")
def fixed_point(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Draw the same symbols as `naive`.

    Args:
      network: computes the parameters of every symbol from the symbols before it.
      distribution: the distribution whose parameters the network computes.
      noise: the random numbers of every symbol, [batch, time, noise channels] or
        [batch, height, width, ..., noise channels].
      condition: the conditions that the network reads, or None.
      temperature: divides the logits; 1 samples the model.
      prompt: the known symbols of every row, in time order; None: there are none.
    """
    symbols = empty_symbols(distribution, noise)
    windows = settings_of(network, noise.shape[1]) if symbols.shape.rank == 4 else {}
    if windows:
        settings = condition, temperature, prompt
        symbols = by_windows(network, distribution, noise, *settings, **windows).levels
    most = tf.reduce_max(network.positions(symbols)) + 1

    def body(_: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parameters = network.parameters(symbols, condition)
        heat = recalling(temperature, symbols, distribution.levels)
        drawn = sampled(parameters, distribution, noise, heat, symbols)
        drawn = drawn if prompt is None else prompt.over(drawn, 0)
        return tf.reduce_any(drawn != symbols), drawn

    # For an image, these passes settle pixels that the windows have left, if any.
    first = tf.constant(True), symbols
    return tf.while_loop(lambda changed, _: changed, body, first, maximum_iterations=most)[1]
