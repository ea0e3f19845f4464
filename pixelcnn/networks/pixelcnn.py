"""The PixelCNN: an exact autoregressive density over the pixels of an image in raster order.

van den Oord et al. 2016, "Conditional Image Generation with PixelCNN Decoders" (arXiv 1606.05328):
two stacks avoid a blind spot in the receptive field. The vertical stack v reads the rows above, the
horizontal stack h reads the vertical stack and the pixels to the left:

    a_v = K_v * v + V c,                      v' = v + W_v gate(a_v)
    a_h = K_h * h + U a_v,                    h' = h + W_h gate(a_h)        gate: tanh . sigmoid

Convolutions are shifted rather than masked (Salimans et al. 2017, arXiv 1701.05517, section 2.3):
K_v reads the current row of v and the row above, K_h the current column of h and the column to the
left. The first v is a convolution of the rows above; the first h also reads the pixels to the left.
In a dilated layer, the rows and columns that a kernel reads are `dilation` pixels apart.

The work per pixel does not depend on the image size. The vertical stack is computed once per row,
from queues of earlier rows; the horizontal stack then advances by one column per pixel, with queues
of earlier columns (Ramachandran et al. 2017, "Fast Generation for Convolutional Autoregressive
Models", arXiv 1704.06001). The scan is differentiable.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.runtime import call_rematerialised
from onepass.likelihoods.codec import value_of
from onepass.likelihoods.noise import Initial
from pixelcnn.config import OutputConfig, PixelCNNConfig
from pixelcnn.networks.layers import (
    EXACT,
    Condition,
    Hidden,
    Mode,
    PixelOutputs,
    cast_like,
    convolve,
    make_output,
    matmul,
)

FRONT_ROWS, FRONT_REACH = 3, 3  # rows above, and columns on each side, read by the first v
PLACE = 2  # number of map channels with a pixel's coordinates
FRONT_COLUMNS = 3  # pixels to the left read by the first h


class ConditionTerm(tf.Module):
    """The projection of a condition plus bias, which is added before a gate: `V c`."""

    def __init__(self, channels: int, initial: Initial, vector: int, map_: int) -> None:
        super().__init__()
        self.bias = initial.zeros([channels], "bias")
        self.vector_kernel = self.map_kernel = None
        if vector:
            self.vector_kernel = initial.kernel([vector, channels], "vector_kernel")
        if map_:
            self.map_kernel = initial.kernel([map_, channels], "map_kernel")

    def __call__(self, condition: Condition) -> tf.Tensor:
        """Return the projection, float32 [batch or 1, height or 1, width or 1, channels]."""
        term = tf.reshape(self.bias, [1, 1, 1, -1])
        if self.vector_kernel is not None:
            term += tf.matmul(condition.vector, self.vector_kernel)[:, tf.newaxis, tf.newaxis]
        if self.map_kernel is not None:
            term += matmul(condition.map, self.map_kernel)
        return term


class GatedLayer(tf.Module):
    """One gated layer of both stacks, with dilated convolutions."""

    def __init__(
        self, units: int, initial: Initial, vector: int, map_: int, last: bool, dilation: int = 1
    ) -> None:
        super().__init__()
        self.dilation = dilation
        self.vertical_kernel = initial.kernel([2, 3, units, 2 * units], "vertical_kernel")
        self.horizontal_kernel = initial.kernel([1, 2, units, 2 * units], "horizontal_kernel", 0.7)
        self.horizontal_bias = initial.zeros([2 * units], "horizontal_bias")
        self.across_kernel = initial.kernel([2 * units, 2 * units], "across_kernel", 0.7)
        # The v after the last layer is not used.
        self.vertical_out = None if last else initial.kernel([units, units], "vertical_out")
        self.horizontal_out = initial.kernel([units, units], "horizontal_out")
        self.condition = ConditionTerm(2 * units, initial, vector, map_)

    def __call__(
        self, v: tf.Tensor, h: tf.Tensor, condition: Condition, drop: Sequence[Callable]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the next v and h, [batch, height, width, units]; `drop` are dropout functions."""
        term, back = self.condition(condition), [self.dilation, 0]
        a_v = self.vertical(tf.pad(v, [[0, 0], back, [0, 0], [0, 0]]), term, self.dilation)
        a_h = self.horizontal(tf.pad(h, [[0, 0], [0, 0], back, [0, 0]]), a_v)
        v = self.next_vertical(v, drop[0](gate_halves(a_v)))
        return v, self.next_horizontal(h, drop[1](gate_halves(a_h)))

    def vertical(self, v: tf.Tensor, term: tf.Tensor, rows_apart: int) -> tf.Tensor:
        """Return a_v [batch, height - rows_apart, width, 2 units] of v [batch, height, width, ...].

        A row of v is combined with the row `rows_apart` above; `term` is the projected condition.
        """
        padded = tf.pad(v, [[0, 0], [0, 0], [self.dilation] * 2, [0, 0]])
        apart = (rows_apart, self.dilation)
        return convolve(padded, self.vertical_kernel, dilations=apart) + tf.cast(term, v.dtype)

    def horizontal(self, h: tf.Tensor, a_v: tf.Tensor) -> tf.Tensor:
        """Return a_h [batch, height, width - dilation, 2 units] of h and a_v."""
        return convolve(h, self.horizontal_kernel, dilations=(1, self.dilation)) + self.across(a_v)

    def across(self, a_v: tf.Tensor) -> tf.Tensor:
        """Return the contribution of a_v to a_h, including the bias."""
        return matmul(a_v, self.across_kernel) + cast_like(self.horizontal_bias, a_v)

    def horizontal_pixel(self, left: tf.Tensor, h: tf.Tensor, across: tf.Tensor) -> tf.Tensor:
        """Return a pixel's a_h [..., 2 units] from its h [..., units] and the h to the left."""
        kernel = tf.concat(tf.unstack(self.horizontal_kernel[0]), 0)
        return matmul(tf.concat([left, h], -1), kernel) + across

    def next_vertical(self, v: tf.Tensor, units: tf.Tensor) -> tf.Tensor:
        """Return the next layer's v, given the gated units."""
        return v if self.vertical_out is None else v + matmul(units, self.vertical_out)

    def next_horizontal(self, h: tf.Tensor, units: tf.Tensor) -> tf.Tensor:
        """Return the next layer's h, given the gated units."""
        return h + matmul(units, self.horizontal_out)


class PixelCNN(tf.Module):
    """A density over images int32 [batch, height, width, channels] of any size.

    `start` is the initial weight of the pixel above, and of the pixel to the left, in the
    prediction; `make`, with the arguments of `make_output`, returns the output layer.
    """

    draws_at_once = False  # draws pixel by pixel, unlike a `Factor` of type A

    def __init__(
        self,
        config: PixelCNNConfig,
        output: OutputConfig,
        initial: Initial,
        vector_channels: int = 0,
        map_channels: int = 0,
        start: float = 0.5,
        make: Callable[..., Any] = make_output,
    ) -> None:
        super().__init__()
        self.config, self.output_config = config, output
        map_channels += PLACE * config.coordinates
        inputs, units = output.channels + 1, config.units
        above = [FRONT_ROWS, 2 * FRONT_REACH + 1, inputs]
        left = [1, FRONT_COLUMNS, inputs]
        self.above_kernel = initial.kernel([*above, 2 * units], "above_kernel")
        self.left_kernel = initial.kernel([*left, units], "left_kernel")
        self.above_prediction = tf.Variable(
            passing([*above, output.channels], [(FRONT_ROWS - 1, FRONT_REACH, start)]),
            name="above_prediction",
        )
        self.left_prediction = tf.Variable(
            passing([*left, output.channels], [(0, FRONT_COLUMNS - 1, start)]),
            name="left_prediction",
        )
        self.map_prediction = None
        if map_channels:
            self.map_prediction = initial.zeros([map_channels, output.channels], "map_prediction")
        vector, map_, last = vector_channels, map_channels, config.layers - 1
        self.layers = [
            GatedLayer(units, initial, vector, map_, i == last, dilation)
            for i, dilation in enumerate(config.layer_dilations)
        ]
        self.out_kernel = initial.kernel([units, config.output_units], "out_kernel")
        self.out_bias = initial.zeros([config.output_units], "out_bias")
        self.output = make(output, config.output_units, initial)

    def __call__(self, levels: tf.Tensor, condition: Condition, mode: Mode = EXACT) -> Hidden:
        """Return the hidden state of each pixel of integer levels, [batch, height, width, ...]."""
        return self.compute_hidden(levels, self.add_coordinates(condition, levels), mode)

    def compute_hidden(self, levels: tf.Tensor, condition: Condition, mode: Mode = EXACT) -> Hidden:
        """Return each pixel's hidden state, for a condition that already includes coordinates."""
        rows, columns = self._before(levels)
        above, left = self.above(rows, mode), self.convolve_left(columns, mode)
        v, h = tf.split(above.units, 2, -1)
        h += left.units
        for i, layer in enumerate(self.layers):
            rate = self.config.dropout
            drop = [functools.partial(mode.dropout, rate=rate, place=2 * i + n) for n in range(2)]
            v, h = call_rematerialised(functools.partial(layer, drop=drop), v, h, condition)
        prediction = above.prediction + left.prediction + self.map_predicted(condition, mode)
        return Hidden(self.head(h), prediction)

    def prediction(self, levels: tf.Tensor, condition: Condition) -> tf.Tensor:
        """Return the linear prediction of `hidden`, [batch, height, width, channels]."""
        rows, columns = self._before(levels)
        linear = convolve(rows, self.above_prediction) + convolve(columns, self.left_prediction)
        return linear + self.map_predicted(condition)

    def _before(self, levels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = self.inputs(levels)
        rows = tf.pad(inputs, [[0, 0], [FRONT_ROWS, 0], [FRONT_REACH, FRONT_REACH], [0, 0]])
        columns = tf.pad(inputs, [[0, 0], [0, 0], [FRONT_COLUMNS, 0], [0, 0]])
        return rows[:, :-1], columns[:, :, :-1]

    def conditionals(
        self, levels: tf.Tensor, condition: Condition, mode: Mode = EXACT
    ) -> PixelOutputs:
        """Return the distribution of every pixel given the pixels before it."""
        return PixelOutputs(self.output, self(levels, condition, mode), levels)

    @property
    def noise_words(self) -> int:
        """Number of random words per pixel."""
        return self.output.noise_words

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the levels scaled to [-1, 1], or floats unchanged, and a channel of ones."""
        is_values = tf.as_dtype(levels.dtype).is_floating
        values = levels if is_values else value_of(levels, self.output_config.levels)
        return tf.concat([values, tf.ones_like(values[..., :1])], -1)

    def add_coordinates(self, condition: Condition, levels: tf.Tensor) -> Condition:
        """Add the coordinates of each pixel of `levels` to the condition's map."""
        if not self.config.coordinates:
            return condition
        return with_coordinates(condition, tf.shape(levels)[1], tf.shape(levels)[2])

    def above(self, rows: tf.Tensor, mode: Mode = EXACT) -> Hidden:
        """Return the padded rows' contribution to the first v and h, and to the prediction."""
        units = tf.cast(convolve(rows, self.above_kernel), mode.dtype)
        return Hidden(units, convolve(mode.for_prediction(rows), self.above_prediction))

    def convolve_left(self, columns: tf.Tensor, mode: Mode = EXACT) -> Hidden:
        """Return the left pixels' contribution to the first h, and to the prediction."""
        units = tf.cast(convolve(columns, self.left_kernel), mode.dtype)
        return Hidden(units, convolve(mode.for_prediction(columns), self.left_prediction))

    def map_predicted(self, condition: Condition, mode: Mode = EXACT) -> tf.Tensor | float:
        """Return the contribution of the condition's map to the linear prediction, or 0."""
        if self.map_prediction is None:
            return 0.0
        return matmul(mode.for_prediction(condition.map), self.map_prediction)

    def head(self, h: tf.Tensor) -> tf.Tensor:
        """Return the units that the output layer reads, [..., output_units]."""
        h = tf.nn.relu(h)
        return tf.nn.relu(matmul(h, self.out_kernel) + cast_like(self.out_bias, h))


def passing(shape: Sequence[int], pixels: Iterable[tuple[int, int, float]]) -> np.ndarray:
    """Return a kernel [rows, columns, channels + 1, channels] that sums (row, column, weight)."""
    kernel = np.zeros(shape, np.float32)
    for row, column, weight in pixels:
        for channel in range(shape[-1]):
            kernel[row, column, channel, channel] = weight
    return kernel


def gate_halves(a: tf.Tensor) -> tf.Tensor:
    """Return tanh(first half) * sigmoid(second half) of the last axis."""
    value, gate = tf.split(a, 2, -1)
    return tf.tanh(value) * tf.sigmoid(gate)


def with_coordinates(
    condition: Condition, height: int | tf.Tensor, width: int | tf.Tensor
) -> Condition:
    """Add `PLACE` channels to the condition's map: row and column, from -1 to 1."""
    rows = tf.broadcast_to(_from_minus_one_to_one(height)[:, tf.newaxis], [height, width])
    columns = tf.broadcast_to(_from_minus_one_to_one(width), [height, width])
    place = tf.stack([rows, columns], -1)[tf.newaxis]
    if condition.map is None:
        return Condition(condition.vector, place)
    place = tf.broadcast_to(place, [tf.shape(condition.map)[0], height, width, PLACE])
    return Condition(condition.vector, tf.concat([condition.map, place], -1))


def _from_minus_one_to_one(count: int | tf.Tensor) -> tf.Tensor:
    return (2.0 * tf.range(count, dtype=tf.float32) + 1.0) / tf.cast(count, tf.float32) - 1.0


# Returns the values [batch, channels] of the pixels at (y, x), given y, x and their hidden state.
Pixel = Callable[[tf.Tensor, tf.Tensor, Hidden], tf.Tensor]


class Scan(NamedTuple):
    """The arguments of a scan.

    Attributes:
      condition: the encoded condition, including coordinates if the network reads them.
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
    inputs, above = first_rows(scan.network, scan.width, batch)
    channels = scan.network.output_config.channels
    rows = tf.TensorArray(scan.dtype, height, element_shape=[None, scan.width, channels])

    def row(
        y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor], rows: tf.TensorArray
    ) -> tuple[Any, ...]:
        values, inputs, above = scan_row(scan, y, inputs, above)
        return y + 1, inputs, above, rows.write(y, values)

    most = height if scan.differentiable else None
    first = (0, inputs, above, rows)
    *_, rows = tf.while_loop(lambda y, *_: y < height, row, first, maximum_iterations=most)
    return tf.transpose(rows.stack(), [1, 0, 2, 3])


def first_rows(
    network: PixelCNN, width: int, batch: int | tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the padded inputs in the rows above an image, and the layers' queues of these rows.

    The inputs are [batch, FRONT_ROWS, width + 2 FRONT_REACH, channels + 1]; the queues are each
    layer's v, [batch, dilation, width, units].
    """
    channels, units = network.output_config.channels, network.config.units
    inputs = tf.zeros([batch, FRONT_ROWS, width + 2 * FRONT_REACH, channels + 1])
    return inputs, [tf.zeros([batch, each.dilation, width, units]) for each in network.layers]


def scan_row(
    scan: Scan, y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Return the values of row y, [batch, width, channels], and what `first_rows` does below it."""
    network, (batch, width) = scan.network, (tf.shape(inputs)[0], scan.width)
    row, queues = _vertical_row(scan, y, inputs, above)
    left = tf.zeros([batch, FRONT_COLUMNS, inputs.shape[-1]])
    units = network.config.units
    columns = [tf.zeros([batch, layer.dilation, units]) for layer in network.layers]
    drawn = tf.TensorArray(scan.dtype, width, element_shape=[None, network.output_config.channels])

    def pixel(
        x: int | tf.Tensor, left: tf.Tensor, columns: Sequence[tf.Tensor], drawn: tf.TensorArray
    ) -> tuple[Any, ...]:
        hidden, columns = _next_pixel(network, row, x, left, columns, scan.mode)
        values = scan.pixel(y, x, hidden)
        fresh = network.inputs(scan.read(values))[:, tf.newaxis]
        return x + 1, tf.concat([left[:, 1:], fresh], 1), columns, drawn.write(x, values)

    most = width if scan.differentiable else None
    first = (0, left, columns, drawn)
    *_, drawn = tf.while_loop(lambda x, *_: x < width, pixel, first, maximum_iterations=most)
    values = tf.transpose(drawn.stack(), [1, 0, 2])
    fresh = network.inputs(scan.read(values))[:, tf.newaxis]
    fresh = tf.pad(fresh, [[0, 0], [0, 0], [FRONT_REACH, FRONT_REACH], [0, 0]])
    return values, tf.concat([inputs[:, 1:], fresh], 1), queues


class _ScanRow(NamedTuple):
    """The results of the vertical stack for one row of pixels.

    `across` is its contribution to a_h, [layers, batch, width, 2 units]; the prediction, [batch,
    width, channels], is without pixels to the left.
    """

    h: tf.Tensor
    across: tf.Tensor
    prediction: tf.Tensor


def _vertical_row(
    scan: Scan, y: int | tf.Tensor, inputs: tf.Tensor, above: Sequence[tf.Tensor]
) -> tuple[_ScanRow, list[tf.Tensor]]:
    """Compute the vertical stack of row y, and its queues for the next row.

    `inputs` and `above`, the queues, are as of `first_rows`.
    """
    network, units = scan.network, scan.network.config.units
    front = network.above(inputs, scan.mode)
    v, h = front.units[..., :units], front.units[..., units:]
    condition = scan.condition.row(y)
    queues, across = [], []
    for layer, queue in zip(network.layers, above, strict=True):
        queues.append(tf.concat([queue[:, 1:], v], 1))
        a_v = layer.vertical(tf.concat([queue[:, :1], v], 1), layer.condition(condition), 1)
        across.append(layer.across(a_v)[:, 0])
        v = layer.next_vertical(v, gate_halves(a_v))
    prediction = front.prediction + network.map_predicted(condition, scan.mode)
    if scan.prediction is not None:
        prediction += scan.prediction[:, y][:, tf.newaxis]
    return _ScanRow(h[:, 0], tf.stack(across), prediction[:, 0]), queues


def _next_pixel(
    network: PixelCNN,
    row: _ScanRow,
    x: int | tf.Tensor,
    left: tf.Tensor,
    columns: Sequence[tf.Tensor],
    mode: Mode = EXACT,
) -> tuple[Hidden, list[tf.Tensor]]:
    """Return the hidden state of the pixel in column x, and the queues of the horizontal stack.

    `columns` are the queues, each layer's h in the columns to the left, [batch, dilation, units].
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
