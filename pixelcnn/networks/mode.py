"""Precision and dropout of a network's forward pass."""

from typing import NamedTuple

import tensorflow as tf


class BatchSlice(NamedTuple):
    """The slice of a batch on a replica: index `number`, int32 [], of `shares` equal slices."""

    number: tf.Tensor
    shares: int


class Mode(NamedTuple):
    """Precision and dropout of a forward pass.

    Attributes:
      seed: seed of the dropout masks, int32 [2]; None: no dropout.
      share: this replica's slice of the batch, which selects a slice of the dropout mask; None: the
        whole batch.
    """

    dtype: tf.DType = tf.float32
    seed: tf.Tensor | None = None
    share: BatchSlice | None = None
    linear: tf.DType | None = None

    def for_prediction(self, x: tf.Tensor) -> tf.Tensor:
        """Cast the input of a linear prediction to the type `linear`."""
        return x if self.linear is None else tf.cast(x, self.linear)

    def dropout(self, units: tf.Tensor, rate: float, place: int) -> tf.Tensor:
        """Return the units after dropout; unchanged if there is no seed or the rate is 0.

        `place` is an index that differs between layers, so that their masks differ. Masks are drawn
        by TensorFlow's generator, since they need not be the same on every device.
        """
        if self.seed is None or not rate:
            return units
        seed = self.seed + tf.constant([0, place], tf.int32)
        if self.share is None:
            return tf.nn.experimental.stateless_dropout(units, rate, seed)
        # Draw the mask of the whole batch and slice it.
        shape, rows = tf.shape(units), tf.shape(units)[0]
        everyone = tf.ones(tf.concat([[rows * self.share.shares], shape[1:]], 0), units.dtype)
        kept = tf.nn.experimental.stateless_dropout(everyone, rate, seed)
        own = kept[self.share.number * rows :][:rows]
        return units * tf.ensure_shape(own, units.shape)


EXACT = Mode()  # float32 without dropout, for evaluation and sampling
