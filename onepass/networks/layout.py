"""The axes of a model's elements, of their noise and of their parameters."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from onepass.likelihoods.capabilities import pixel_channels
from onepass.likelihoods.distribution import Distribution


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axes of a model's elements."""

    order: str
    whole_pixels: bool = False  # whether one symbol contains all channels of a pixel
    channels: int | None = None  # per time step of [batch, time, channels]; None: no such axis

    @property
    def rank(self) -> int:
        """Number of axes of the elements, including the batch axis."""
        return 4 if self.order != "time" else 2 if self.channels is None else 3

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of the elements of one time step."""
        return () if self.channels is None else (self.channels,)

    @property
    def noise_axes(self) -> int:
        """Number of axes of the positions that have independent noise."""
        return self.rank - (2 if self.whole_pixels else 1)

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one row's elements, from (length,) or (height, width, channels)."""
        return (*sizes, *self.event)

    def split_channels(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return outputs [batch, time, ...] with an axis for channels if elements have one."""
        if self.channels is None:
            return outputs
        sizes = tf.shape(outputs)[:2] if None in outputs.shape[:2] else outputs.shape[:2]
        return tf.reshape(
            outputs, [*tf.unstack(sizes, 2), self.channels, outputs.shape[-1] // self.channels]
        )

    def noise(
        self,
        distribution: Distribution,
        seed: int,
        num: int,
        shape: Sequence[int],
        start: int = 0,
    ) -> tf.Tensor:
        """Return the noise of rows, [num, *positions, noise channels], from time step `start`."""
        positions = tuple(shape[: self.noise_axes])
        each = int(np.prod(self.event))
        noise = distribution.noise(seed, tf.range(num), start * each, int(np.prod(positions)))
        return tf.reshape(noise, [num, *positions, noise.shape[-1]])


def layout_of(
    distribution: Distribution, order: str, inputs: tf.TensorSpec | None = None
) -> Layout:
    """Return a model's layout; several entries of a third input axis are the elements' channels."""
    if order != "time":
        return Layout(order, pixel_channels(distribution) is not None)
    channels = 1 if inputs is None or inputs.shape.rank != 3 else inputs.shape[2]
    return Layout(order, channels=None if channels == 1 else channels)
