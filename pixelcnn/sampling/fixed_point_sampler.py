"""Exact sampler of a PixelCNN that iterates whole passes to their fixed point.

With its noise given, a sample is a deterministic function of itself: pixel i is f_i(pixels before
i), where one network pass computes every f_i at once. The image that the cached sampler draws is
the only fixed point of f, and iterating f from any guess reaches it in at most as many passes as
there are pixels, usually in far fewer: "Accelerating Feedforward Computation via Parallel Nonlinear
Equation Solving", Song et al. 2021 (arXiv 2002.03629), and "Predictive Sampling with Forecasting
Autoregressive Models", Wiggers and Hoogeboom 2020 (arXiv 2002.09928).

The stop is exact. A frontier separates pixels that are known to be final from the others. A pass
computes the pixel at the frontier from final pixels only, so that it is final too; so is every
pixel up to and including the first one that the pass changes. Sampling ends when the frontier has
passed the last pixel.
"""

from typing import NamedTuple

import tensorflow as tf

from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import FRONT_ROWS, PixelCNN
from pixelcnn.sampling.pixelcnn_sampler import Given, placed_condition


class FixedPoint(NamedTuple):
    """Images int32 [batch, height, width, channels], and the passes they took, int32 []."""

    levels: tf.Tensor
    passes: tf.Tensor


class _Arguments(NamedTuple):
    """The arguments of a sampling that every pass reads, rows first where they are images.

    words: uint32 [height, batch, width, words]. vector, map: of the condition with coordinates.
    prediction, given: [height, batch, width, channels] or None. given_count: of these pixels.
    """

    network: PixelCNN
    words: tf.Tensor
    vector: tf.Tensor | None
    map: tf.Tensor | None
    prediction: tf.Tensor | None
    given: tf.Tensor | None
    given_count: tf.Tensor | int
    temperature: float | tf.Tensor
    guidance: float | tf.Tensor | None


def sample_by_fixed_point(
    network: PixelCNN,
    words,
    condition: Condition,
    given: Given | None = None,
    temperature=1.0,
    prediction=None,
    guidance=None,
    *,
    guess=None,
    active_rows: int | None = None,
) -> FixedPoint:
    """Returns the images of `pixelcnn_sampler.sample`, by iterating passes of the whole network.

    A batch is iterated until all its images are final.

    Args:
      network, words, condition, given, temperature, prediction, guidance: as for `sample`.
      guess: int32 [batch, height, width, channels] to start from; None: the middle level.
      active_rows: rows from the frontier's on that a pass computes anew; None: all of them. Rows
        above the frontier are read, as far as the network sees, and rows below wait.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    output = network.output_config
    if guess is None:
        guess = tf.fill([batch, height, width, output.channels], output.levels // 2)
    if active_rows is not None and active_rows < 1:
        raise ValueError(f"`active_rows` must be at least 1, got {active_rows}.")
    placed = placed_condition(network, condition, batch, height, width)
    arguments = _Arguments(
        network,
        _rows_first(words),
        placed.vector,
        None if placed.map is None else _rows_first(placed.map),
        None if prediction is None else _rows_first(prediction),
        None if given is None else _rows_first(given.levels),
        0 if given is None else given.count,
        temperature,
        guidance,
    )
    context = context_rows(network)
    rows = height if active_rows is None else min(height, context + active_rows)

    def one_pass(frontier, levels, passes):
        top = tf.clip_by_value(frontier // width - context, 0, height - rows)
        frontier, levels = _advance(arguments, frontier, levels, top, rows)
        return frontier, levels, passes + 1

    pixels = height * width
    _, levels, passes = tf.while_loop(
        lambda frontier, *_: frontier < pixels,
        one_pass,
        (tf.constant(0), _rows_first(guess), tf.constant(0)),
        maximum_iterations=pixels,
    )
    return FixedPoint(_rows_first(levels), passes)


def context_rows(network: PixelCNN) -> int:
    """Rows above a pixel that its distribution depends on."""
    return FRONT_ROWS + network.config.layers


def _advance(arguments: _Arguments, frontier, levels, top, rows: int):
    """Returns the frontier and the images after a pass over `rows` rows from `top` on.

    levels: int32 [height, batch, width, channels].
    """
    places = top + tf.range(rows)
    window = tf.gather(levels, places)
    width = window.shape[2]
    number = places[:, tf.newaxis] * width + tf.range(width)  # [rows, width], in raster order
    fresh = _pass(arguments, window, places)
    if arguments.given is not None:
        kept = (number < arguments.given_count)[:, tf.newaxis, :, tf.newaxis]
        fresh = tf.where(kept, tf.gather(arguments.given, places), fresh)
    # Final pixels stay: the topmost rows of a window lack the rows above that they depend on.
    fresh = tf.where((number >= frontier)[:, tf.newaxis, :, tf.newaxis], fresh, window)
    changed = tf.reduce_any(fresh != window, [1, 3])
    end = (top + rows) * width
    frontier = tf.reduce_min(tf.where(changed, number + 1, end))
    return frontier, tf.tensor_scatter_nd_update(levels, places[:, tf.newaxis], fresh)


def _pass(arguments: _Arguments, window, places):
    """Returns what one pass samples for a window [rows, batch, width, channels] of rows."""
    network = arguments.network
    levels = _rows_first(window)
    map_ = None if arguments.map is None else _rows_first(tf.gather(arguments.map, places))
    hidden = network.hidden(levels, Condition(arguments.vector, map_))
    if arguments.prediction is not None:
        more = _rows_first(tf.gather(arguments.prediction, places))
        hidden = Hidden(hidden.units, hidden.prediction + more)
    words = _rows_first(tf.gather(arguments.words, places))
    return _rows_first(network.output.sample(hidden, words, *arguments[-2:]))


def _rows_first(images):
    """Returns [height, batch, ...] of [batch, height, ...], and the other way round."""
    return tf.transpose(images, [1, 0, *range(2, images.shape.rank)])
