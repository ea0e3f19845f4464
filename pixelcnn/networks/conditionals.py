"""What a density says of every pixel of an image, or of a part of one, in one pass."""

from typing import NamedTuple

import tensorflow as tf

from pixelcnn.networks.outputs import Hidden, Output


class Conditionals(NamedTuple):
    """The distribution of every pixel given the pixels before it.

    output: what reads the hidden states. hidden, levels int32 [rows, height, width, channels]: of
    the pixels; a row is an image, or a patch of one. images: int32 [], how many images the rows
    are of; None: one each. share: how many times as large the whole is, of which these are a crop.
    """

    output: Output
    hidden: Hidden
    levels: tf.Tensor
    images: tf.Tensor | None = None
    share: float = 1.0

    def nats(self):
        """float32 [images], the log-probability of these pixels, times the share."""
        return self.summed(self.output.log_prob(self.hidden, self.levels))

    def summed(self, each):
        """float32 [images], the sum of what there is of each pixel [rows, height, width]."""
        rows = tf.reduce_sum(each, [1, 2])
        if self.images is not None:
            rows = tf.reduce_sum(tf.reshape(rows, [self.images, -1]), 1)
        return self.share * rows
