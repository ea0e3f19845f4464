"""Samplers of a PixelCNN: cached, one pixel at a time, and naive, as the reference.

The cached sampler does the work of one pixel for each pixel, whatever the image's size. A row is
entered with the vertical stack of its row computed at once, from the queues of the row above; a
pixel then takes the horizontal stack one column on, from the queues of the pixel to its left
(Ramachandran et al. 2017, "Fast Generation for Convolutional Autoregressive Models", arXiv
1704.06001). The naive one runs the whole network on the
whole image for every pixel; it is the reference that the cached one is tested against.

Both draw pixel (y, x) from the words [batch, y, x], so they agree, and an image is the same in any
batch.
"""

from typing import NamedTuple

import tensorflow as tf

from likelihoods import noise
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import FRONT_COLUMNS, FRONT_REACH, FRONT_ROWS, PixelCNN, gated


class Given(NamedTuple):
    """The pixels of an image that are given and kept, the prefix of an inpainting.

    levels: int32 [batch, height, width, channels]. count: int32 [], how many of them, in raster
    order, are kept; the others are sampled.
    """

    levels: tf.Tensor
    count: tf.Tensor


def image_words(network: PixelCNN, seed, rows, height: int, width: int):
    """uint32 [rows, height, width, words], the random words of every pixel of every image.

    Args:
      seed, rows: as for `noise.bits`: image `rows[n]` of a seed is the same in any batch.
    """
    count = network.output.noise_words
    words = noise.words(seed, rows, 0, height * width, count)
    return tf.reshape(words, [-1, height, width, count])


def sample(
    network: PixelCNN,
    words,
    condition: Condition,
    given: Given | None = None,
    temperature=1.0,
    prediction=None,
    guidance=None,
):
    """Returns images int32 [batch, height, width, channels] from the cached sampler.

    Args:
      words: uint32 [batch, height, width, noise words], its height and width known in Python.
      condition: vector [batch, channels], map [batch, height, width, channels].
      given: pixels to keep.
      temperature: of every draw, 1 for the model's own distribution.
      prediction: float32 [batch, height, width, channels], added to the network's own.
      guidance: weight away from the null condition, for a batch as `outputs.sample_guided` has it.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    channels = network.output_config.channels
    placed = placed_condition(network, condition, batch, height, width)
    shared = _Shared(network, words, placed, given, temperature, prediction, guidance)
    units = network.config.units
    blank = tf.zeros([batch, FRONT_ROWS, width + 2 * FRONT_REACH, channels + 1])
    above = [tf.zeros([batch, layer.dilation, width, units]) for layer in network.layers]
    rows = tf.TensorArray(tf.int32, height, element_shape=[None, width, channels])

    def row(y, inputs, above, rows):
        levels, above = _row(shared, y, inputs, above)
        fresh = network.inputs(levels)[:, tf.newaxis]
        fresh = tf.pad(fresh, [[0, 0], [0, 0], [FRONT_REACH, FRONT_REACH], [0, 0]])
        return y + 1, tf.concat([inputs[:, 1:], fresh], 1), above, rows.write(y, levels)

    _, _, _, rows = tf.while_loop(
        lambda y, *_: y < height, row, (0, blank, above, rows), maximum_iterations=height
    )
    return tf.transpose(rows.stack(), [1, 0, 2, 3])


class _Shared(NamedTuple):
    """The arguments of a sampling that every row and pixel reads."""

    network: PixelCNN
    words: tf.Tensor
    condition: Condition
    given: Given | None
    temperature: float | tf.Tensor
    prediction: tf.Tensor | None
    guidance: float | tf.Tensor | None

    def pixel(self, y, x, hidden: Hidden):
        """Returns the pixels [batch, channels] at (y, x): the given ones, else sampled ones."""
        words = self.words[:, y, x]
        sampled = self.network.output.sample(hidden, words, self.temperature, self.guidance)
        if self.given is None:
            return sampled
        before = y * self.words.shape[2] + x < self.given.count
        return tf.where(before, self.given.levels[:, y, x], sampled)


class _Row(NamedTuple):
    """The vertical stack of one row, as the pixels of that row read it; axis 1 is the column.

    h: [batch, width, units], the first h but for the pixels to the left. across: [layers, batch,
    width, 2 units], what the vertical stack adds to a_h. prediction: [batch, width, channels].
    """

    h: tf.Tensor
    across: tf.Tensor
    prediction: tf.Tensor


def _row(shared: _Shared, y, inputs, above):
    """Returns the pixels of row y [batch, width, channels] and the queues of the vertical stack.

    inputs: of the rows above, padded. above: the v that each layer read in the rows above, as far
    up as it looks, [batch, dilation, width, units] each.
    """
    network, (batch, width) = shared.network, (tf.shape(inputs)[0], shared.words.shape[2])
    row, queues = _vertical_row(shared, y, inputs, above)
    left = tf.zeros([batch, FRONT_COLUMNS, inputs.shape[-1]])
    units = network.config.units
    columns = [tf.zeros([batch, layer.dilation, units]) for layer in network.layers]
    drawn = tf.TensorArray(tf.int32, width, element_shape=[None, network.output_config.channels])

    def pixel(x, left, columns, drawn):
        hidden, columns = _pixel(network, row, x, left, columns)
        levels = shared.pixel(y, x, hidden)
        fresh = network.inputs(levels)[:, tf.newaxis]
        return x + 1, tf.concat([left[:, 1:], fresh], 1), columns, drawn.write(x, levels)

    _, _, _, drawn = tf.while_loop(
        lambda x, *_: x < width, pixel, (0, left, columns, drawn), maximum_iterations=width
    )
    return tf.transpose(drawn.stack(), [1, 0, 2]), queues


def _vertical_row(shared: _Shared, y, inputs, above):
    """Returns the vertical stack of row y as a `_Row`, and its queues for the next row."""
    network, units = shared.network, shared.network.config.units
    front = network.above(inputs)
    v, h = front.units[..., :units], front.units[..., units:]
    condition = _row_of(shared.condition, y)
    queues, across = [], []
    for layer, queue in zip(network.layers, above, strict=True):
        queues.append(tf.concat([queue[:, 1:], v], 1))
        a_v = layer.vertical(tf.concat([queue[:, :1], v], 1), layer.condition(condition), 1)
        across.append(layer.across(a_v)[:, 0])
        v = layer.next_vertical(v, gated(a_v))
    prediction = front.prediction + network.map_predicted(condition)
    if shared.prediction is not None:
        prediction += shared.prediction[:, y][:, tf.newaxis]
    return _Row(h[:, 0], tf.stack(across), prediction[:, 0]), queues


def _pixel(network: PixelCNN, row: _Row, x, left, columns):
    """Returns the hidden state of the pixel in column x, and the queues of the horizontal stack.

    left: inputs of the pixels to its left. columns: the h that each layer read in the columns
    before, as far back as it looks, [batch, dilation, units] each.
    """
    front = network.left(left[:, tf.newaxis])
    h = row.h[:, x] + front.units[:, 0, 0]
    across, queues = row.across[:, :, x], []
    for i, layer in enumerate(network.layers):
        queues.append(tf.concat([columns[i][:, 1:], h[:, tf.newaxis]], 1))
        h = layer.next_horizontal(h, gated(layer.horizontal_pixel(columns[i][:, 0], h, across[i])))
    prediction = row.prediction[:, x] + front.prediction[:, 0, 0]
    return Hidden(network.head(h), prediction), queues


def sample_naively(
    network: PixelCNN,
    words,
    condition: Condition,
    given: Given | None = None,
    temperature=1.0,
    guidance=None,
):
    """Returns the images of `sample`, by one whole network pass for every pixel."""
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    shape = [batch, height, width, network.output_config.channels]
    start = tf.zeros(shape, tf.int32)
    shared = _Shared(network, words, condition, given, temperature, None, guidance)

    def pixel(place, image):
        y, x = place // width, place % width
        hidden = network(image, condition)
        at = Hidden(hidden.units[:, y, x], hidden.prediction[:, y, x])
        levels = shared.pixel(y, x, at)
        here = tf.reshape(tf.range(height * width) == place, [1, height, width, 1])
        return place + 1, tf.where(here, levels[:, tf.newaxis, tf.newaxis], image)

    pixels = height * width
    return tf.while_loop(
        lambda place, _: place < pixels, pixel, (0, start), maximum_iterations=pixels
    )[1]


def placed_condition(
    network: PixelCNN, condition: Condition, batch, height: int, width: int
) -> Condition:
    """Returns the condition with the coordinates of every pixel in its map."""
    blank = tf.zeros([batch, height, width, 1], tf.int32)
    return network.placed(condition, blank)


def _row_of(condition: Condition, y) -> Condition:
    """Returns the condition with row y of its map alone."""
    if condition.map is None:
        return condition
    return Condition(condition.vector, condition.map[:, y][:, tf.newaxis])
