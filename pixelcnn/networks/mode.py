"""Precision and dropout of a network's forward pass."""

from typing import NamedTuple

import tensorflow as tf


class BatchSlice(NamedTuple):
    """The slice of a batch that a replica holds: `number`, int32 [], out of `shares` equal ones."""

    number: tf.Tensor
    shares: int


class Mode(NamedTuple):
    """Precision and dropout of a forward pass.

    Attributes:
      dtype: type in which convolutions compute.
      seed: seed of the dropout masks, int32 [2]; None drops nothing.
      share: the slice of the batch that this replica holds, whose part of the mask is used; None:
        the whole batch.
      linear: type in which a pixel's linear prediction is computed; None: its input's type.
    """

    dtype: tf.DType = tf.float32
    seed: tf.Tensor | None = None
    share: BatchSlice | None = None
    linear: tf.DType | None = None

    def for_prediction(self, x: tf.Tensor) -> tf.Tensor:
        """Return the input of a linear prediction, in its precision."""
        return x if self.linear is None else tf.cast(x, self.linear)

    def dropout(self, units: tf.Tensor, rate: float, place: int) -> tf.Tensor:
        """Return the units after dropout: a share `rate` of them zero, the rest scaled up.

        The mask need not be the same in every compiler, so TensorFlow's own generator draws it.
        `place` is the number of this layer in the network, so that no two masks are equal.
        """
        if self.seed is None or not rate:
            return units
        seed = self.seed + tf.constant([0, place], tf.int32)
        if self.share is None:
            return tf.nn.experimental.stateless_dropout(units, rate, seed)
        # The generator has no rows: the mask of the whole batch is drawn, and sliced.
        shape, rows = tf.shape(units), tf.shape(units)[0]
        everyone = tf.ones(tf.concat([[rows * self.share.shares], shape[1:]], 0), units.dtype)
        kept = tf.nn.experimental.stateless_dropout(everyone, rate, seed)
        own = kept[self.share.number * rows :][:rows]
        return units * tf.ensure_shape(own, units.shape)


EXACT = Mode()  # float32 without dropout: how densities are evaluated and images sampled
