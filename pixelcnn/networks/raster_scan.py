"""A raster scan with a PixelCNN, in which each pixel may depend on the pixels before it.

The work per pixel does not depend on the image size. The vertical stack is computed once per row,
from queues of earlier rows; the horizontal stack then advances by one column per pixel, with queues
of earlier columns (Ramachandran et al. 2017, "Fast Generation for Convolutional Autoregressive
Models", arXiv 1704.06001). The scan is differentiable.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.mode import EXACT, Mode
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import FRONT_COLUMNS, FRONT_REACH, FRONT_ROWS, PixelCNN, gate_halves

# Returns the values [batch, channels] of the pixels at (y, x), given y, x and their hidden state.
Pixel = Callable[[tf.Tensor, tf.Tensor, Hidden], tf.Tensor]


class Scan(NamedTuple):
    """The arguments of a scan.

    Attributes:
      condition: the encoded vector [batch, channels] and map [batch, height, width, channels], each
        or both None; the map includes coordinates if the network reads them.
      pixel: function from row, column and hidden state to the values of a pixel, [batch, channels].
      read: function from these values to the levels that the network reads, [..., channels].
      prediction: float32 [batch, height, width, channels] to add to the linear prediction, or None.
      differentiable: whether to bound the number of loop iterations, which XLA needs for gradients.
        The bound makes an accelerator wait for the host before every step.
    """

    network: PixelCNN
    width: int
    condition: Condition
    pixel: Pixel
    read: Callable = tf.identity
    dtype: tf.DType = tf.int32
    prediction: tf.Tensor | None = None
    mode: Mode = EXACT
    differentiable: bool = False


def run_scan(scan: Scan, batch: int | tf.Tensor, height: int) -> tf.Tensor:
    """Run a scan and return the values of all pixels, [batch, height, width, channels]."""
    network, width = scan.network, scan.width
    channels, units = network.output_config.channels, network.config.units
    blank = tf.zeros([batch, FRONT_ROWS, width + 2 * FRONT_REACH, channels + 1])
    above = [tf.zeros([batch, layer.dilation, width, units]) for layer in network.layers]
    rows = tf.TensorArray(scan.dtype, height, element_shape=[None, width, channels])

    def row(
        y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor], rows: tf.TensorArray
    ) -> tuple[Any, ...]:
        values, above = _row(scan, y, inputs, above)
        fresh = network.inputs(scan.read(values))[:, tf.newaxis]
        fresh = tf.pad(fresh, [[0, 0], [0, 0], [FRONT_REACH, FRONT_REACH], [0, 0]])
        return y + 1, tf.concat([inputs[:, 1:], fresh], 1), above, rows.write(y, values)

    most = height if scan.differentiable else None
    first = (0, blank, above, rows)
    *_, rows = tf.while_loop(lambda y, *_: y < height, row, first, maximum_iterations=most)
    return tf.transpose(rows.stack(), [1, 0, 2, 3])


class ScanRow(NamedTuple):
    """The results of the vertical stack for one row of pixels.

    Attributes:
      h: the first h without the contribution of pixels to the left, [batch, width, units].
      across: the vertical stack's contribution to a_h, [layers, batch, width, 2 units].
      prediction: the linear prediction without pixels to the left, [batch, width, channels].
    """

    h: tf.Tensor
    across: tf.Tensor
    prediction: tf.Tensor


def _row(
    scan: Scan, y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the values of row y [batch, width, channels] and the queues of the vertical stack."""
    network, (batch, width) = scan.network, (tf.shape(inputs)[0], scan.width)
    row, queues = vertical_row(scan, y, inputs, above)
    left = tf.zeros([batch, FRONT_COLUMNS, inputs.shape[-1]])
    units = network.config.units
    columns = [tf.zeros([batch, layer.dilation, units]) for layer in network.layers]
    drawn = tf.TensorArray(scan.dtype, width, element_shape=[None, network.output_config.channels])

    def pixel(
        x: int | tf.Tensor, left: tf.Tensor, columns: Sequence[tf.Tensor], drawn: tf.TensorArray
    ) -> tuple[Any, ...]:
        hidden, columns = next_pixel(network, row, x, left, columns, scan.mode)
        values = scan.pixel(y, x, hidden)
        fresh = network.inputs(scan.read(values))[:, tf.newaxis]
        return x + 1, tf.concat([left[:, 1:], fresh], 1), columns, drawn.write(x, values)

    most = width if scan.differentiable else None
    first = (0, left, columns, drawn)
    *_, drawn = tf.while_loop(lambda x, *_: x < width, pixel, first, maximum_iterations=most)
    return tf.transpose(drawn.stack(), [1, 0, 2]), queues


def vertical_row(
    scan: Scan, y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor]
) -> tuple[ScanRow, list[tf.Tensor]]:
    """Compute the vertical stack of row y, and its queues for the next row.

    `inputs` are the padded inputs in the rows above; `above` are the queues, each layer's v in the
    rows above, [batch, dilation, width, units].
    """
    network, units = scan.network, scan.network.config.units
    front = network.above(inputs, scan.mode)
    v, h = front.units[..., :units], front.units[..., units:]
    condition = _row_of(scan.condition, y)
    queues, across = [], []
    for layer, queue in zip(network.layers, above, strict=True):
        queues.append(tf.concat([queue[:, 1:], v], 1))
        a_v = layer.vertical(tf.concat([queue[:, :1], v], 1), layer.condition(condition), 1)
        across.append(layer.across(a_v)[:, 0])
        v = layer.next_vertical(v, gate_halves(a_v))
    prediction = front.prediction + network.map_predicted(condition, scan.mode)
    if scan.prediction is not None:
        prediction += scan.prediction[:, y][:, tf.newaxis]
    return ScanRow(h[:, 0], tf.stack(across), prediction[:, 0]), queues


def next_pixel(
    network: PixelCNN,
    row: ScanRow,
    x: int | tf.Tensor,
    left: tf.Tensor,
    columns: Sequence[tf.Tensor],
    mode: Mode = EXACT,
) -> tuple[Hidden, list[tf.Tensor]]:
    """Return the hidden state of the pixel in column x, and the queues of the horizontal stack.

    `left` are the inputs of the pixels to the left; `columns` are the queues, each layer's h in the
    columns to the left, [batch, dilation, units].
    """
    front = network.convolve_left(left[:, tf.newaxis], mode)
    h = row.h[:, x] + front.units[:, 0, 0]
    across, queues = row.across[:, :, x], []
    for i, layer in enumerate(network.layers):
        queues.append(tf.concat([columns[i][:, 1:], h[:, tf.newaxis]], 1))
        h = layer.next_horizontal(
            h, gate_halves(layer.horizontal_pixel(columns[i][:, 0], h, across[i]))
        )
    prediction = row.prediction[:, x] + front.prediction[:, 0, 0]
    return Hidden(network.head(h), prediction), queues


def _row_of(condition: Condition, y: int | tf.Tensor) -> Condition:
    if condition.map is None:
        return condition
    return Condition(condition.vector, condition.map[:, y][:, tf.newaxis])
