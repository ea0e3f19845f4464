"""Exact sampler of a PixelCNN that iterates whole passes to their fixed point.

With its noise given, a sample is a deterministic function of itself: pixel i is f_i(pixels before
i), where one network pass computes every f_i at once. The image that the cached sampler draws is
the only fixed point of f, and iterating f from any guess reaches it in at most as many passes as
there are pixels, usually in far fewer: "Accelerating Feedforward Computation via Parallel Nonlinear
Equation Solving", Song et al. 2021 (arXiv 2002.03629), and "Predictive Sampling with Forecasting
Autoregressive Models", Wiggers and Hoogeboom 2020 (arXiv 2002.09928).

The stop is exact. A frontier separates pixels that are known to be final from the others. A pass
computes the pixel at the frontier from final pixels only, so that it is final too; so is every
pixel up to and including the first one that the pass changes. An image is done when its frontier
has passed its last pixel; in a batch each has its own frontier, and one that is done leaves its
slot to the next.

The other pixels are a guess, and any guess will do: only the number of passes depends on it.
Besides the values that the pass has sampled (plain iteration), a forecast may guess what the next
pass would sample.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import FRONT_ROWS, PixelCNN
from pixelcnn.sampling.pixelcnn_sampler import Prefix

# What the next pass will give: of the network, its hidden state for some levels, these, the newer
# ones that the pass has sampled, and the condition.
Forecast = Callable[[PixelCNN, Hidden, tf.Tensor, tf.Tensor, Condition], Hidden]


def linear_forecast(
    network: PixelCNN, hidden: Hidden, levels: tf.Tensor, newer: tf.Tensor, condition: Condition
) -> Hidden:
    """Return the hidden state with the linear prediction of newer pixels, its units unchanged.

    The prediction carries most of a pixel's dependence on its neighbours and costs next to nothing.
    """
    return Hidden(hidden.units, network.prediction(newer, condition))


class FixedPoint(NamedTuple):
    """Images int32 [batch, height, width, channels], and the passes they took.

    Attributes:
      passes: int32 [batch], those that each image was in.
      batch_passes: int32 [], of the network, over all slots at once.
    """

    levels: tf.Tensor
    passes: tf.Tensor
    batch_passes: tf.Tensor


class _Arguments(NamedTuple):
    """The arguments of a sampling that every pass reads, [batch, height, width, ...] each.

    Attributes:
      condition: vector [batch, channels] and map, which has the coordinates already.
      prediction: added to the network's own linear prediction; None: nothing is.
      forecast: function to the next guess of every pixel that is not final; None: the sampled
        values.
    """

    network: PixelCNN
    words: tf.Tensor
    condition: Condition
    prediction: tf.Tensor | None
    temperature: float | tf.Tensor
    guidance: float | tf.Tensor | None
    forecast: Forecast | None


class _Window(NamedTuple):
    """The rows of the arguments that a pass computes, [images, rows, width, ...] each."""

    levels: tf.Tensor
    words: tf.Tensor
    condition: Condition
    prediction: tf.Tensor | None


class _Progress(NamedTuple):
    """The progress of a sampling.

    Attributes:
      levels: int32 [batch, height, width, channels].
      frontier: int32 [images], the first pixel that is not known to be final.
      slots: int32 [slots], the image in each.
      begun: int32 [], the number of images that have had a slot.
      passes: int32 [images], the number of passes that each image was in.
      batch_passes: int32 [], the number of passes so far, over all slots at once.
    """

    levels: tf.Tensor
    frontier: tf.Tensor
    slots: tf.Tensor
    begun: tf.Tensor
    passes: tf.Tensor
    batch_passes: tf.Tensor


def sample_by_fixed_point(
    network: PixelCNN,
    words: tf.Tensor,
    condition: Condition,
    given: Prefix | None = None,
    temperature: float | tf.Tensor = 1.0,
    prediction: tf.Tensor | None = None,
    guidance: float | tf.Tensor | None = None,
    *,
    guess: tf.Tensor | None = None,
    active_rows: int | None = None,
    slots: int | None = None,
    forecast: Forecast | None = linear_forecast,
) -> FixedPoint:
    """Return the images of `pixelcnn_sampler.sample`, by iterating passes of the whole network.

    Args:
      network: the PixelCNN.
      words: random words, uint32 [batch, height, width, noise words]; height and width are static.
      condition: vector [batch, channels], map [batch, height, width, channels].
      given: pixels to keep; None: none.
      temperature: temperature of every draw, 1 for the model's own distribution.
      prediction: float32 [batch, height, width, channels], added to the network's own.
      guidance: weight away from the null condition, for a batch whose second half are twins under
        that condition; None: no guidance.
      guess: int32 [batch, height, width, channels] to start from; None: the middle level.
      active_rows: rows from the frontier's on that a pass computes anew; None: all of them. Rows
        above the frontier are read, as far as the network sees, and rows below wait.
      slots: images per pass; a finished one makes way for the next. None: all.
      forecast: function to the next guess of every pixel that is not final; None: the sampled
        values.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    for name, count in (("active_rows", active_rows), ("slots", slots)):
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    # Under guidance the second half of the batch are twins, which take every step of the first.
    images = batch if guidance is None else batch // 2
    levels, first = _start(network, batch, height, width, guess, given)
    arguments = _Arguments(
        network,
        words,
        network.placed(condition, words),
        prediction,
        temperature,
        guidance,
        forecast,
    )
    context = context_rows(network)
    rows = height if active_rows is None else min(height, context + active_rows)
    places = tf.range(images if slots is None else tf.minimum(slots, images))
    none, pixels = tf.zeros([images], tf.int32), height * width
    progress = _Progress(levels, none + first, places, tf.size(places), none, tf.constant(0))
    progress = tf.while_loop(
        lambda progress: tf.reduce_any(progress.frontier < pixels),
        lambda progress: (_refilled(_advanced(arguments, progress, context, rows), pixels),),
        (progress,),
        maximum_iterations=images * pixels,
    )[0]
    passes = progress.passes if guidance is None else tf.tile(progress.passes, [2])
    return FixedPoint(progress.levels, passes, progress.batch_passes)


def context_rows(network: PixelCNN) -> int:
    """Return the number of rows above a pixel that its distribution depends on."""
    return FRONT_ROWS + sum(network.config.layer_dilations)


def _start(
    network: PixelCNN,
    batch: tf.Tensor,
    height: int,
    width: int,
    guess: tf.Tensor | None,
    given: Prefix | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the images to start from, and the number of the first pixel that is not given."""
    output = network.output_config
    if guess is None:
        guess = tf.fill([batch, height, width, output.channels], output.levels // 2)
    if given is None:
        return guess, tf.constant(0)
    number = tf.reshape(tf.range(height * width), [height, width, 1])
    return tf.where(number < given.count, given.levels, guess), given.count


def _advanced(arguments: _Arguments, progress: _Progress, context: int, rows: int) -> _Progress:
    """Return the progress after a pass over `rows` rows of every slot's image."""
    height, width = progress.levels.shape[1:3]
    slots = tf.size(progress.slots)
    before = tf.gather(progress.frontier, progress.slots)
    # Rows above the frontier, as far up as the network sees, are read to draw those from it on.
    top = tf.clip_by_value(before // width - context, 0, height - rows)
    own = top[:, tf.newaxis] + tf.range(rows)
    number = own[..., tf.newaxis] * width + tf.range(width)  # [slots, rows, width], raster order
    image, place = progress.slots, own
    if arguments.guidance is not None:
        image = tf.concat([image, image + tf.size(progress.frontier)], 0)
        place = tf.concat([own, own], 0)
    at = tf.stack([tf.broadcast_to(image[:, tf.newaxis], tf.shape(place)), place], -1)
    window = _window(arguments, progress.levels, image, at)
    hidden = arguments.network.hidden(window.levels, window.condition)
    # Final pixels stay: the topmost rows of a window lack the rows above that they depend on.
    open_ = _twice(number >= before[:, tf.newaxis, tf.newaxis], arguments)
    fresh = tf.where(open_, _sampled(arguments, window, hidden), window.levels)
    changed = tf.reduce_any(fresh != window.levels, 3)[:slots]
    end = ((top + rows) * width)[:, tf.newaxis, tf.newaxis]
    # A pixel whose predecessors are final is now drawn from its true distribution, and is final,
    # too: the first pixel that changed is the last of these.
    final = tf.reduce_min(tf.where(changed, number + 1, end), [1, 2])
    # The guess of the next pass may be anything; a better one makes fewer passes.
    if arguments.forecast is not None:
        known = (window.levels, fresh, window.condition)
        expected = arguments.forecast(arguments.network, hidden, *known)
        open_ = _twice(number >= final[:, tf.newaxis, tf.newaxis], arguments)
        fresh = tf.where(open_, _sampled(arguments, window, expected), fresh)
    where, was_open = progress.slots[:, tf.newaxis], before < height * width
    return progress._replace(
        levels=tf.tensor_scatter_nd_update(progress.levels, at, fresh),
        frontier=tf.tensor_scatter_nd_update(progress.frontier, where, final),
        passes=tf.tensor_scatter_nd_add(progress.passes, where, tf.cast(was_open, tf.int32)),
        batch_passes=progress.batch_passes + 1,
    )


def _refilled(progress: _Progress, pixels: int) -> _Progress:
    """Return the progress with the next images in the slots of those that are done.

    Where none is waiting, a slot keeps its image, which no pass changes.
    """
    done = tf.gather(progress.frontier, progress.slots) >= pixels
    next_ = progress.begun + tf.cumsum(tf.cast(done, tf.int32)) - 1
    enters = done & (next_ < tf.size(progress.frontier))
    return progress._replace(
        slots=tf.where(enters, next_, progress.slots),
        begun=progress.begun + tf.reduce_sum(tf.cast(enters, tf.int32)),
    )


def _window(arguments: _Arguments, levels: tf.Tensor, image: tf.Tensor, at: tf.Tensor) -> _Window:
    """Return some rows of some images.

    Args:
      arguments: the arguments of the whole sampling.
      levels: int32 [batch, height, width, channels], the current guess.
      image: int32 [images], their indices.
      at: int32 [images, rows, 2], the image and the row that each row of the window is.
    """
    vector, map_ = arguments.condition
    condition = Condition(
        None if vector is None else tf.gather(vector, image),
        # The map of the coordinates alone is one for all images.
        None if map_ is None else tf.gather_nd(map_, at * [int(map_.shape[0] != 1), 1]),
    )
    more = arguments.prediction
    return _Window(
        tf.gather_nd(levels, at),
        tf.gather_nd(arguments.words, at),
        condition,
        None if more is None else tf.gather_nd(more, at),
    )


def _sampled(arguments: _Arguments, window: _Window, hidden: Hidden) -> tf.Tensor:
    """Return the sample of the hidden state of a window, by its own noise."""
    if window.prediction is not None:
        hidden = Hidden(hidden.units, hidden.prediction + window.prediction)
    options = (arguments.temperature, arguments.guidance)
    return arguments.network.output.sample(hidden, window.words, *options)


def _twice(open_: tf.Tensor, arguments: _Arguments) -> tf.Tensor:
    """Return [images, rows, width, 1] of [slots, rows, width], for the twins as well."""
    open_ = open_[..., tf.newaxis]
    return open_ if arguments.guidance is None else tf.concat([open_, open_], 0)
