"""Settings of a draw of symbols from their distributions: temperature, top-k and top-p."""

from typing import Any

import tensorflow as tf

from foundation.arguments import checked_temperatures, checked_top_k, checked_top_p
from likelihoods.capabilities import tempers
from likelihoods.distribution import Distribution
from likelihoods.truncated import Choice, Truncated


def choice_of(
    distribution: Distribution, temperature: Any, top_k: Any, top_p: Any, num: int, axes: int
) -> tf.Tensor | Choice:
    """Return the temperature, or a `Choice` of tokens if `top_k` or `top_p` is set, too.

    Args:
      distribution: distribution of the symbols.
      temperature: a number, or one for each row.
      top_k: number of tokens; 0: all.
      top_p: share of probability, in (0, 1].
      num: number of rows.
      axes: number of axes of the positions.

    Raises:
      ValueError: an argument is out of its range, or the distribution is not over tokens.
    """
    is_truncated = top_k != 0 or top_p != 1.0
    if is_truncated:
        Truncated(distribution)  # raises for another distribution
    heat = tf.constant(checked_temperatures(temperature, num, tempers(distribution)), tf.float32)
    if heat.shape.rank:  # against the axes of elements
        heat = tf.reshape(heat, [num, *[1] * axes])
    if not is_truncated:
        return heat
    return Choice(heat, tf.constant(checked_top_k(top_k)), tf.constant(checked_top_p(top_p)))
