"""How a network is run: in which precision, and whether units are dropped."""

from typing import NamedTuple

import tensorflow as tf


class Mode(NamedTuple):
    """dtype: what convolutions compute in. seed: int32 [2] of dropout; None drops nothing."""

    dtype: tf.DType = tf.float32
    seed: tf.Tensor | None = None

    def dropped(self, units, rate: float, place: int):
        """The units, a share `rate` of them zero and the rest larger by as much.

        Args:
          units: [...]. rate: in [0, 1).
          place: a number of this place in the network, so that no two drop alike.

        The mask need not be the same in every compiler, so it is TensorFlow's own generator's.
        """
        if self.seed is None or not rate:
            return units
        seed = self.seed + tf.constant([0, place], tf.int32)
        return tf.nn.experimental.stateless_dropout(units, rate, seed)


EXACT = Mode()  # how densities are evaluated and pictures drawn
