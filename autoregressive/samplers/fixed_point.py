"""A sampler that passes over the whole sequence until nothing changes.

With its noise fixed, every symbol is a function of the symbols before it. Iterated from any start,
the passes converge to the one sequence that satisfies all these functions, in at most as many
passes as there are positions. Source: Song et al. 2021, arXiv:2002.03629; Wiggers and Hoogeboom
2020, arXiv:2002.09928.
"""

import tensorflow as tf

from autoregressive.prompts import Prompt
from autoregressive.samplers.passes import empty_symbols, redrawn
from autoregressive.symbols import SymbolNetwork
from likelihoods.distribution import Distribution


def fixed_point(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: tf.Tensor | None = None,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> tf.Tensor:
    """Return symbols; arguments as for `naive`."""
    first = empty_symbols(distribution, noise)
    most = tf.reduce_max(network.positions(first)) + 1

    def body(_, symbols):
        drawn = redrawn(network, distribution, symbols, noise, condition, temperature, prompt)
        return tf.reduce_any(drawn != symbols), drawn

    return tf.while_loop(
        lambda changed, _: changed, body, (tf.constant(True), first), maximum_iterations=most
    )[1]
