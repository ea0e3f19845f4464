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
    """The first `count`, int32 [], pixels of levels [batch, height, width, channels], to keep."""

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

    `seed` may be a key, uint32 [2]; `rows`, int32 [rows], are indices of images in its sequence.
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
      words: random words, uint32 [batch, height, width, noise words], with static height and width.
      prediction: float32 [batch, height, width, channels] to add to the linear prediction, or None.
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
        words = self.words[:, y, x]
        sampled = self.network.output.sample(hidden, words, self.temperature, self.guidance)
        if self.given is None:
            return sampled
        before = y * self.words.shape[2] + x < self.given.count
        return tf.where(before, self.given.levels[:, y, x], sampled)
