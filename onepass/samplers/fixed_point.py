"""The fixed-point sampler: passes over the whole sequence until all symbols are final.

With the noise fixed, every symbol is a function of the symbols before it. From any start, repeated
passes converge to the unique sequence that satisfies all these functions, in at most as many passes
as there are positions. Sources: Song et al. 2021, arXiv:2002.03629; Wiggers and Hoogeboom 2020,
arXiv:2002.09928. `windows` does this in windows of an image, `time_windows` in windows of time.

A symbol is final once all symbols before it are, and is kept: where a network rounds differently
with other symbols after it, as in a Fourier transform, a pass could change it for ever.
"""

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import recalling
from onepass.networks.prompts import Prompt
from onepass.networks.symbols import SymbolNetwork
from onepass.samplers.passes import Settled, empty_symbols, has_moved, sample_symbols
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
) -> Settled:
    """Draw the same symbols as `naive`, whose arguments it takes."""
    symbols = empty_symbols(distribution, noise)
    windows = settings_of(network, noise.shape[1]) if symbols.shape.rank == 4 else {}
    if windows:
        symbols = by_windows(
            network, distribution, noise, condition, temperature, prompt, **windows
        ).levels
    positions = network.positions(symbols)
    end = tf.reduce_max(positions) + 1

    def body(
        passes: tf.Tensor, frontier: tf.Tensor, symbols: tf.Tensor, moved: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        del moved
        parameters = network.parameters(symbols, condition)
        heat = recalling(temperature, symbols, distribution.levels)
        drawn = sample_symbols(parameters, distribution, noise, heat, symbols)
        drawn = drawn if prompt is None else prompt.over(drawn, 0)
        is_final = positions < tf.reshape(frontier, [-1, *[1] * (symbols.shape.rank - 1)])
        moved = tf.math.count_nonzero(has_moved(symbols, drawn) & is_final, dtype=tf.int32)
        drawn = tf.where(is_final, symbols, drawn)
        # The first symbol that a pass changes was drawn from final ones, and is the last such.
        final = tf.where(drawn != symbols, positions + 1, end)
        return passes + 1, tf.reduce_min(final, range(1, symbols.shape.rank)), drawn, moved

    # For an image, these passes settle pixels that the windows have left, if any.
    first = tf.constant(0), tf.zeros(tf.shape(symbols)[:1], tf.int32), symbols, tf.constant(0)
    passes, _, symbols, moved = tf.while_loop(
        lambda _passes, frontier, *_: tf.reduce_any(frontier < end),
        body,
        first,
        maximum_iterations=end,
    )
    return Settled(symbols, passes, moved)
