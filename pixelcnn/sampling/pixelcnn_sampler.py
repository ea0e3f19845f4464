"""The cached sampler of a PixelCNN, which evaluates the network only once per pixel.

It draws pixel (y, x) from the random words [batch, y, x], like all samplers in
`onepass.samplers`. Therefore they draw the same images, independently of the batch.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods import noise
from onepass.networks.symbols import raster_positions
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.networks.raster_scan import Scan, run_scan


class Prefix(NamedTuple):
    """Pixels to keep at the beginning of images, in raster order; the others are sampled.

    Attributes:
      levels: int32 [batch, height, width, channels].
      count: number of pixels to keep, int32 [].
    """

    levels: tf.Tensor
    count: tf.Tensor

    @property
    def known(self) -> tf.Tensor:
        """The number of pixels to keep in each batch row, int32 [batch]."""
        return tf.fill([tf.shape(self.levels)[0]], self.count)

    def over(self, drawn: tf.Tensor, position: int) -> tf.Tensor:
        """Return drawn images with the pixels to keep restored; `position` must be 0."""
        return tf.where(raster_positions(drawn) + position < self.count, self.levels, drawn)


def image_words(
    network: PixelCNN, seed: int | tf.Tensor, rows: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Return `pixel_words` of height x width images, uint32 [rows, height, width, noise words]."""
    words = pixel_words(network, seed, rows, height * width)
    return tf.reshape(words, [-1, height, width, network.noise_words])


def pixel_words(network: Any, seed: int | tf.Tensor, rows: tf.Tensor, pixels: int) -> tf.Tensor:
    """Return the random words of every pixel of every image, uint32 [rows, pixels, noise words].

    Args:
      network: a PixelCNN or a `Multiscale`, which determines the number of words.
      seed: random seed, an integer in [0, 2^64), or a key uint32 [2].
      rows: int32 [rows], the index of each image in the seed's sequence of images.
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
    """Sample images int32 [batch, height, width, channels].

    Args:
      network: the PixelCNN.
      words: random words, uint32 [batch, height, width, noise words], with static height and width.
      condition: vector [batch, channels], map [batch, height, width, channels].
      given: pixels to keep, or None.
      temperature: 1 samples the model.
      prediction: float32 [batch, height, width, channels] to add to the linear prediction, or None.
      guidance: guidance weight, for a batch whose second half repeats the first half under the null
        condition; None: no guidance.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    draw = _Draw(network, words, given, temperature, guidance)
    scan = Scan(
        network, width, network.add_coordinates(condition, words), draw.pixel, prediction=prediction
    )
    return run_scan(scan, batch, height)


class _Draw(NamedTuple):
    """The sampler's arguments, shared by all pixels."""

    network: PixelCNN
    words: tf.Tensor
    given: Prefix | None
    temperature: float | tf.Tensor
    guidance: float | tf.Tensor | None

    def pixel(self, y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
        """Return the pixels [batch, channels] at (y, x), kept or sampled."""
        words = self.words[:, y, x]
        sampled = self.network.output.sample(hidden, words, self.temperature, self.guidance)
        if self.given is None:
            return sampled
        before = y * self.words.shape[2] + x < self.given.count
        return tf.where(before, self.given.levels[:, y, x], sampled)
