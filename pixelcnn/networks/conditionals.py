"""What a density says of every pixel of an image, or of a part of one, in one pass."""

from typing import NamedTuple

import tensorflow as tf

from pixelcnn.networks.groups import cut
from pixelcnn.networks.outputs import Hidden, Output


class Conditionals(NamedTuple):
    """The distribution of every pixel given the pixels before it.

    output: what reads the hidden states. hidden, levels int32 [rows, height, width, channels]: of
    the pixels; a row is an image, or a patch of one. images: int32 [], how many images the rows
    are of; None: one each. share: how many times as many pixels the whole has, of which these are
    some at equal distances. weights: float32 [rows, height, width], how much each pixel counts, of
    a crop; None: all alike.
    """

    output: Output
    hidden: Hidden
    levels: tf.Tensor
    images: tf.Tensor | None = None
    share: float = 1.0
    weights: tf.Tensor | None = None

    def nats(self):
        """float32 [images], the log-probability of these pixels, see `summed`."""
        return self.summed(self.output.log_prob(self.hidden, self.levels))

    def summed(self, each):
        """float32 [images], the weighted sum of what there is of each pixel, times the share.

        each: float32 [rows, height, width].
        """
        if self.weights is not None:
            each = self.weights * each
        rows = tf.reduce_sum(each, [1, 2])
        if self.images is not None:
            rows = tf.reduce_sum(tf.reshape(rows, [self.images, -1]), 1)
        return self.share * rows

    def weighted(self, weights) -> "Conditionals":
        """Return the same with weights [images, height, width], cut where the images are."""
        if self.images is not None:
            weights = cut(weights[..., tf.newaxis], self.levels.shape[1])[..., 0]
        return self._replace(weights=weights)
