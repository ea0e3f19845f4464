"""Check the settings with which symbols are drawn: temperature, top-k and top-p."""

from typing import Any

import tensorflow as tf

from foundation.arguments import checked_temperatures, checked_top_k, checked_top_p
from likelihoods.capabilities import tempers
from likelihoods.distribution import Distribution
from likelihoods.truncated import Choice, Truncated


def choice_of(
    distribution: Distribution, temperature: Any, top_k: Any, top_p: Any, num: int, axes: int
) -> tf.Tensor | Choice:
    """Return the temperature, or a `Choice` if `top_k` or `top_p` is set.

    Args:
      distribution: distribution of the symbols.
      temperature: a number, or one for each row.
      top_k: number of most probable tokens to draw from; 0: all.
      top_p: total probability of the most probable tokens to draw from, in (0, 1].
      num: number of rows.
      axes: number of axes of the elements' positions.

    Raises:
      ValueError: an argument is out of its range, or the distribution is not over tokens.
    """
    is_truncated = top_k != 0 or top_p != 1.0
    if is_truncated:
        Truncated(distribution)  # raises ValueError unless the distribution is over tokens
    heat = tf.constant(checked_temperatures(temperature, num, tempers(distribution)), tf.float32)
    if heat.shape.rank:  # to broadcast against the elements' axes
        heat = tf.reshape(heat, [num, *[1] * axes])
    if not is_truncated:
        return heat
    return Choice(heat, tf.constant(checked_top_k(top_k)), tf.constant(checked_top_p(top_p)))
