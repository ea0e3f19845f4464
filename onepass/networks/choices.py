"""Sampling options: temperature, top-k, top-p, prefix and stop symbol."""

import dataclasses
from typing import Any

import tensorflow as tf

from onepass.foundation.arguments import checked_temperatures, checked_top_k, checked_top_p
from onepass.foundation.tensorflow_state import check_compiler
from onepass.likelihoods.capabilities import tempers
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import Choice, Truncated
from onepass.networks.layout import Layout
from onepass.networks.prompts import Prompt, prompt_of


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """Options of `sample` and `stream` for live models, bundles and served models.

    Args:
      temperature: at least 0, a number or one for each row; 1 samples the distribution, smaller
        values are closer to its mode.
      top_k: number of most probable tokens to draw from; 0: all tokens.
      top_p: draw only from the most probable tokens that together have at least this probability,
        in (0, 1]; applied after `temperature` and `top_k`.
      prefix: elements with which the rows begin, [num, n, ...], [n, ...] for all rows, or a list of
        rows of different lengths; None: no prefix.
      stop: the element that ends a row; all later elements of the row are equal to it. None: rows
        do not end early.
    """

    temperature: Any = 1.0
    top_k: Any = 0
    top_p: Any = 1.0
    prefix: Any = None
    stop: Any = None

    def choice(self, distribution: Distribution, num: int, axes: int) -> tf.Tensor | Choice:
        """Return the temperature, or a `Choice` if `top_k` or `top_p` is set.

        Args:
          distribution: distribution of the symbols.
          num: number of rows.
          axes: number of axes of the positions that have independent noise.

        Raises:
          ValueError: an argument is out of its range, the distribution is not over tokens, or
            TensorFlow cannot compute here.
        """
        check_compiler()
        top_k, top_p = checked_top_k(self.top_k), checked_top_p(self.top_p)
        is_truncated = top_k != 0 or top_p != 1.0
        if is_truncated:
            Truncated(distribution)  # raises ValueError unless the distribution is over tokens
        heats = checked_temperatures(self.temperature, num, tempers(distribution))
        heat = tf.constant(heats, tf.float32)
        if heat.shape.rank:  # to broadcast against the elements' axes
            heat = tf.reshape(heat, [num, *[1] * axes])
        if not is_truncated:
            return heat
        return Choice(heat, tf.constant(top_k), tf.constant(top_p))

    def prompt(
        self, codec: Codec, num: int, length: int, layout: Layout
    ) -> tuple[Prompt | None, int]:
        """Return the prompt, and the number of symbols known in every row, as `prompt_of` does."""
        return prompt_of(self.prefix, self.stop, codec, num, length, layout)


def token_options(draw: Any) -> DrawOptions:
    """Return the options of a draw that choose its elements."""
    heat = 1.0 if draw.temperature is None else draw.temperature
    return DrawOptions(heat, draw.top_k, draw.top_p, draw.prefix, draw.stop)
