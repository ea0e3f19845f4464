"""The distributions of the pixels of an image, or of a part of one, from one pass."""

from typing import NamedTuple

import tensorflow as tf

from pixelcnn.networks.groups import cut
from pixelcnn.networks.outputs import Hidden, Output


class Conditionals(NamedTuple):
    """The distribution of every pixel given the pixels before it.

    Attributes:
      output: reads the hidden states.
      hidden, levels: of the pixels, levels int32 [rows, height, width, channels]; a row is an
        image, or a patch of one.
      images: int32 [], the number of images that the rows belong to; None: one per row.
      share: ratio of the number of pixels in the whole to these, which are evenly spaced in it.
      weights: float32 [rows, height, width], the weight of each pixel of a crop; None: all equal.
    """

    output: Output
    hidden: Hidden
    levels: tf.Tensor
    images: tf.Tensor | None = None
    share: float = 1.0
    weights: tf.Tensor | None = None

    def nats(self):
        """Return the log-probability of these pixels, float32 [images], see `summed`."""
        return self.summed(self.output.log_prob(self.hidden, self.levels))

    def summed(self, each):
        """Return the weighted sum over the pixels of each image, times the share, float32 [images].

        The values to sum are float32 [rows, height, width].
        """
        if self.weights is not None:
            each = self.weights * each
        rows = tf.reduce_sum(each, [1, 2])
        if self.images is not None:
            rows = tf.reduce_sum(tf.reshape(rows, [self.images, -1]), 1)
        return self.share * rows

    def weighted(self, weights) -> "Conditionals":
        """Return a copy with weights [images, height, width], cut like the images."""
        if self.images is not None:
            weights = cut(weights[..., tf.newaxis], self.levels.shape[1])[..., 0]
        return self._replace(weights=weights)
