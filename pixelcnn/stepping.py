"""A PixelCNN that is stepped pixel by pixel from Python, with the caches of the cached sampler.

In contrast to `networks.raster_scan`, which draws within one compiled program, a callback gets
every pixel's hidden state and returns the pixel, for example by decoding it from a stream.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.mode import Mode
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import FRONT_COLUMNS, FRONT_REACH, FRONT_ROWS, PixelCNN
from pixelcnn.networks.raster_scan import Scan, ScanRow, next_pixel, vertical_row

# Returns a pixel's levels, int32 [batch, channels], given its hidden state, float [batch, ...].
Read = Callable[[Hidden], np.ndarray]


class SteppedPixelCNN:
    """A pixel-by-pixel scan over images of one width, under the network's current weights."""

    def __init__(self, network: PixelCNN, width: int, mode: Mode) -> None:
        self.network, self.width, self.mode = network, width, mode
        self._row = tf.function(self._row_of, autograph=False, reduce_retracing=True)
        self._pixel = tf.function(self._pixel_of, autograph=False, reduce_retracing=True)

    def read(
        self,
        condition: Condition,
        batch: int,
        height: int,
        read: Read,
        prediction: tf.Tensor | None = None,
    ) -> np.ndarray:
        """Return images int32 [batch, height, width, channels] of pixels returned by `read`.

        The condition's map is [batch or 1, height, width, channels]; `prediction` [batch, height,
        width, channels] is added to the linear prediction.
        """
        network, channels = self.network, self.network.output_config.channels
        images = np.zeros([batch, height, self.width, channels], np.int32)
        condition = network.add_coordinates(condition, images)
        padded = tf.zeros([batch, FRONT_ROWS, self.width + 2 * FRONT_REACH, channels + 1])
        units = network.config.units
        above = [tf.zeros([batch, each.dilation, self.width, units]) for each in network.layers]
        side = [[0, 0], [0, 0], [FRONT_REACH, FRONT_REACH], [0, 0]]
        for y in range(height):
            more = None if prediction is None else prediction[:, y : y + 1]
            row, above = self._row(_row_of(condition, y), padded, above, more)
            self._read_row(row, images[:, y], read)
            fresh = tf.pad(network.inputs(tf.constant(images[:, y : y + 1])), side)
            padded = tf.concat([padded[:, 1:], fresh], 1)
        return images

    def _read_row(self, row: ScanRow, levels: np.ndarray, read: Read) -> None:
        network, batch = self.network, len(levels)
        units = network.config.units
        columns = [tf.zeros([batch, layer.dilation, units]) for layer in network.layers]
        left = tf.zeros([batch, FRONT_COLUMNS, levels.shape[-1] + 1])
        for x in range(self.width):
            hidden, columns = self._pixel(row, tf.constant(x), left, columns)
            levels[:, x] = read(hidden)
            left = self._shift_left(left, tf.constant(levels[:, x]))

    @tf.function(autograph=False, reduce_retracing=True)
    def _shift_left(self, left: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the inputs to the left of the next pixel, after appending `levels`."""
        return tf.concat([left[:, 1:], self.network.inputs(levels)[:, tf.newaxis]], 1)

    def _row_of(
        self,
        condition: Condition,
        padded: tf.Tensor,
        above: Sequence[tf.Tensor],
        prediction: tf.Tensor | None,
    ) -> tuple[ScanRow, list[tf.Tensor]]:
        scan = Scan(self.network, self.width, condition, _no_pixel, prediction=prediction)
        return vertical_row(scan._replace(mode=self.mode), 0, padded, above)

    def _pixel_of(
        self, row: ScanRow, x: tf.Tensor, left: tf.Tensor, columns: Sequence[tf.Tensor]
    ) -> tuple[Hidden, list[tf.Tensor]]:
        return next_pixel(self.network, row, x, left, columns, self.mode)


def _no_pixel(*_: Any) -> NoReturn:
    raise NotImplementedError  # `vertical_row` draws no pixels


def _row_of(condition: Condition, y: int) -> Condition:
    if condition.map is None:
        return condition
    return Condition(condition.vector, condition.map[:, y : y + 1])
