"""The cached sampler of a PixelCNN, which does the work of one pixel per pixel.

It draws pixel (y, x) from the words [batch, y, x], as every sampler of `autoregressive.samplers`
does, so that they agree, and an image is the same in any batch.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from autoregressive.symbols import raster_positions
from likelihoods import noise
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.networks.raster_scan import Scan, scanned


class Prefix(NamedTuple):
    """The pixels of an image that are given and kept, the prefix of an inpainting.

    Attributes:
      levels: int32 [batch, height, width, channels].
      count: int32 [], the number of them, in raster order, that are kept; the others are sampled.
    """

    levels: tf.Tensor
    count: tf.Tensor

    @property
    def known(self) -> tf.Tensor:
        """The number of kept pixels of each row, int32 [batch]."""
        return tf.fill([tf.shape(self.levels)[0]], self.count)

    def over(self, drawn: tf.Tensor, position: int) -> tf.Tensor:
        """Return drawn images, with the pixels that are kept; `position` is 0, the first pixel."""
        return tf.where(raster_positions(drawn) + position < self.count, self.levels, drawn)


def image_words(
    network: PixelCNN, seed: int | tf.Tensor, rows: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Return `pixel_words` of images of a shape, uint32 [rows, height, width, noise words]."""
    words = pixel_words(network, seed, rows, height * width)
    return tf.reshape(words, [-1, height, width, network.noise_words])


def pixel_words(network: Any, seed: int | tf.Tensor, rows: tf.Tensor, pixels: int) -> tf.Tensor:
    """Return the random words of every pixel of every image, uint32 [rows, pixels, noise words].

    Args:
      network: a PixelCNN, or all networks of a multiscale model.
      seed: the noise's seed: an integer in [0, 2^64), or a key uint32 [2].
      rows: int32 [rows], the index of each image under the seed; the same index gives the same
        image in any batch.
      pixels: number of pixels of an image.
    """
    return noise.words(seed, rows, 0, pixels, network.noise_words)


def sample(
    network: PixelCNN,
    words: tf.Tensor,
    condition: Condition,
    given: Prefix | None = None,
    temperature: float | tf.Tensor = 1.0,
    prediction: tf.Tensor | None = None,
    guidance: float | tf.Tensor | None = None,
) -> tf.Tensor:
    """Return images int32 [batch, height, width, channels] from the cached sampler.

    Args:
      network: the PixelCNN.
      words: uint32 [batch, height, width, noise words], its height and width known in Python.
      condition: vector [batch, channels], map [batch, height, width, channels].
      given: pixels to keep; None: none.
      temperature: temperature of every draw, 1 for the model's own distribution.
      prediction: float32 [batch, height, width, channels], added to the network's own.
      guidance: weight away from the null condition, for a batch whose second half are twins under
        that condition; None: no guidance.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    draw = _Draw(network, words, given, temperature, guidance)
    scan = Scan(network, width, network.placed(condition, words), draw.pixel, prediction=prediction)
    return scanned(scan, batch, height)


class _Draw(NamedTuple):
    """The sampler's arguments, shared by all pixels."""

    network: PixelCNN
    words: tf.Tensor
    given: Prefix | None
    temperature: float | tf.Tensor
    guidance: float | tf.Tensor | None

    def pixel(self, y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
        """Return the pixels [batch, channels] at (y, x): the given ones, else sampled ones."""
        words = self.words[:, y, x]
        sampled = self.network.output.sample(hidden, words, self.temperature, self.guidance)
        if self.given is None:
            return sampled
        before = y * self.words.shape[2] + x < self.given.count
        return tf.where(before, self.given.levels[:, y, x], sampled)
