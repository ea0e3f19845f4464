"""The axes of a model's elements, of their noise and of their parameters."""

import dataclasses

import numpy as np
import tensorflow as tf

from likelihoods.capabilities import pixel_channels
from likelihoods.distribution import Distribution


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axes of a model's elements.

    Args:
      order: "time" or "raster".
      whole_pixels: one symbol has all channels of a pixel.
    """

    order: str
    whole_pixels: bool = False

    @property
    def rank(self) -> int:
        """Number of axes of the elements, that of the rows included."""
        return 2 if self.order == "time" else 4

    @property
    def noise_axes(self) -> int:
        """Number of axes of the positions that have noise of their own."""
        return self.rank - (2 if self.whole_pixels else 1)

    def noise(
        self, distribution: Distribution, seed: int, num: int, shape: tuple[int, ...]
    ) -> tf.Tensor:
        """Return the noise of rows, [num, *positions, noise channels].

        Args:
          distribution: of the symbols.
          seed: of the noise.
          num: rows.
          shape: of the elements of a row.
        """
        positions = shape[: self.noise_axes]
        noise = distribution.noise(seed, tf.range(num), 0, int(np.prod(positions)))
        return tf.reshape(noise, [num, *positions, noise.shape[-1]])


def layout_of(distribution: Distribution, order: str) -> Layout:
    """Return the layout of a model with a distribution."""
    return Layout(order, order == "raster" and pixel_channels(distribution) is not None)
