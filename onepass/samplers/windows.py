"""Fixed-point sampling of images by passes over windows of rows, with a frontier per image.

The stopping rule is exact. A frontier separates pixels that are known to be final from the others.
A pass draws the pixel at the frontier from final pixels only, so it becomes final; so does every
pixel up to and including the first that the pass changes. An image is finished when its frontier
has passed its last pixel; the next image then takes its slot, its row in the batch of a pass.

A window contains rows from the frontier down, and the rows above them that the network's receptive
field covers. Pixels beyond the frontier are guesses, which affect only the number of passes.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.networks.symbols import SymbolNetwork
from onepass.samplers.passes import empty_symbols, sample_symbols

ACTIVE = 6  # rows of a window that are drawn; more would seldom become final
FEW = 8  # passes over whole images before passes over windows
WORTH = 1.5  # smallest ratio of image height to window height


class FixedPoint(NamedTuple):
    """Images, and the number of passes that they took."""

    levels: tf.Tensor
    passes: tf.Tensor  # int32 [batch], number of passes that each image took part in
    batch_passes: tf.Tensor  # int32 [], number of network passes, each over all slots


class Sampling(NamedTuple):
    """The arguments and settings that every pass reads."""

    # A network of images. `rows_above` is the number of rows above a pixel that it reads; None:
    # all. With a condition, it has `rows_of(condition, at)`, which selects rows by (image, row),
    # int32 [images, rows, 2]. It may have a method `forecast(parameters, symbols, newer,
    # condition)`, which predicts the parameters given newer symbols, for a better next guess.
    network: Any
    # The distribution of a symbol. If it has `twins`, the batch contains that many versions of each
    # image, which take every step together.
    distribution: Distribution
    noise: tf.Tensor
    condition: Any
    temperature: Any
    rows: int  # number of image rows that a pass computes
    slots: int | None = None  # number of images that a pass computes; None: all

    @property
    def twins(self) -> int:
        """Number of rows of the batch that belong to one image."""
        return getattr(self.distribution, "twins", 1)

    def condition_at(self, at: tf.Tensor) -> Any:
        """Return the condition for rows given by (image, row), int32 [images, rows, 2]."""
        if self.condition is None or (self.slots is None and self.rows == self.noise.shape[1]):
            return self.condition
        return self.network.rows_of(self.condition, at)


class Progress(NamedTuple):
    """The progress of a sampling run."""

    levels: tf.Tensor
    frontier: tf.Tensor  # int32 [images], the first pixel that is not known to be final
    slots: tf.Tensor  # int32 [slots], index of the image in each slot
    begun: tf.Tensor  # int32 [], the number of images that have had a slot
    passes: tf.Tensor
    batch_passes: tf.Tensor  # int32 [], number of passes so far, each over all slots


def by_windows(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Any = None,
    temperature: Any = 1.0,
    prompt: Any = None,
    *,
    guess: tf.Tensor | None = None,
    active_rows: int | None = None,
    slots: int | None = None,
    few: int = 0,
) -> FixedPoint:
    """Draw the same images as `naive`, by passes over windows of rows.

    Args:
      guess: symbols to start from; None: the middle level.
      active_rows: number of rows from the frontier that a pass draws; None: all.
      slots: number of images per pass; finished ones make way for the next. None: all.
      few: number of passes over whole images before passes over windows.
    """
    for name, count in (("active_rows", active_rows), ("slots", slots)):
        if count is not None and count < 1:
            raise ValueError(f"`{name}` must be at least 1, got {count}.")
    if guess is None:
        guess = empty_symbols(distribution, noise) + (distribution.levels or 0) // 2
    (height, width), above = noise.shape[1:3], getattr(network, "rows_above", None)
    condition = (
        network.prepare_condition(condition, noise)
        if hasattr(network, "prepare_condition")
        else condition
    )
    rows = height if above is None or active_rows is None else min(height, above + active_rows)
    given = Sampling(network, distribution, noise, condition, temperature, rows, slots)
    images = tf.shape(noise)[0] // given.twins
    none, pixels, places = tf.zeros([images], tf.int32), height * width, tf.range(images)
    places = places if slots is None else tf.range(tf.minimum(slots, images))
    known = none if prompt is None else prompt.known[:images]
    first = guess if prompt is None else prompt.over(guess, 0)
    progress = Progress(first, none + known, places, tf.size(places), none, tf.constant(0))

    def repeat_passes(progress: Progress, given: Sampling, most: Any) -> Progress:
        return tf.while_loop(
            lambda progress: tf.reduce_any(progress.frontier < pixels),
            lambda progress: (_refill_slots(_advance_rows(given, progress), pixels),),
            (progress,),
            maximum_iterations=most,
        )[0]

    if few and rows < height:
        progress = repeat_passes(progress, given._replace(rows=height), few)
    progress = repeat_passes(progress, given, images * pixels)
    passes = tf.tile(progress.passes, [given.twins])
    return FixedPoint(progress.levels, passes, progress.batch_passes)


def settings_of(network: SymbolNetwork, height: int | None) -> dict[str, Any]:
    """Return arguments of `by_windows` for a given height; {} if windows are not worthwhile."""
    above = getattr(network, "rows_above", None)
    if above is None or height is None or height < WORTH * (above + ACTIVE):
        return {}
    return {"active_rows": getattr(network, "active_rows", ACTIVE), "few": FEW}


def _advance_rows(given: Sampling, progress: Progress) -> Progress:
    (height, width), rows, twins = progress.levels.shape[1:3], given.rows, given.twins
    above = getattr(given.network, "rows_above", None) or 0
    before = tf.gather(progress.frontier, progress.slots)
    # Rows above the frontier, as far as the network reads, are inputs for the rows to draw.
    top = tf.clip_by_value(before // width - above, 0, height - rows)
    own = top[:, tf.newaxis] + tf.range(rows)
    number = own[..., tf.newaxis] * width + tf.range(width)  # [slots, rows, width], raster order
    images = tf.size(progress.frontier)
    image = tf.concat([progress.slots + part * images for part in range(twins)], 0)
    place = tf.tile(own, [twins, 1])
    at = tf.stack([tf.broadcast_to(image[:, tf.newaxis], tf.shape(place)), place], -1)
    levels, noise = (tf.gather_nd(x, at) for x in (progress.levels, given.noise))
    condition = given.condition_at(at)
    parameters = given.network.parameters(levels, condition)
    # Final pixels are kept, because a window's top rows lack the rows above that they depend on.
    is_open = tf.tile(number >= before[:, tf.newaxis, tf.newaxis], [twins, 1, 1])[..., tf.newaxis]
    fresh = tf.where(
        is_open,
        sample_symbols(parameters, given.distribution, noise, given.temperature, levels),
        levels,
    )
    changed = tf.reduce_any(fresh != levels, 3)[: tf.size(progress.slots)]
    end = ((top + rows) * width)[:, tf.newaxis, tf.newaxis]
    # A pixel whose predecessors are final has now been drawn from its true distribution and is
    # final, too; the first pixel that changed is the last such pixel.
    final = tf.reduce_min(tf.where(changed, number + 1, end), [1, 2])
    # Any guess is valid for the next pass; a better one saves passes.
    forecast = getattr(given.network, "forecast", None)
    if forecast is not None:
        expected = forecast(parameters, levels, fresh, condition)
        is_open = tf.tile(number >= final[:, tf.newaxis, tf.newaxis], [twins, 1, 1])
        fresh = tf.where(
            is_open[..., tf.newaxis],
            sample_symbols(expected, given.distribution, noise, given.temperature, levels),
            fresh,
        )
    where, was_open = progress.slots[:, tf.newaxis], before < height * width
    return progress._replace(
        levels=tf.tensor_scatter_nd_update(progress.levels, at, fresh),
        frontier=tf.tensor_scatter_nd_update(progress.frontier, where, final),
        passes=tf.tensor_scatter_nd_add(progress.passes, where, tf.cast(was_open, tf.int32)),
        batch_passes=progress.batch_passes + 1,
    )


def _refill_slots(progress: Progress, pixels: int) -> Progress:
    """Return the progress with waiting images, if there are any, in the slots of finished ones."""
    done = tf.gather(progress.frontier, progress.slots) >= pixels
    next_ = progress.begun + tf.cumsum(tf.cast(done, tf.int32)) - 1
    enters = done & (next_ < tf.size(progress.frontier))
    return progress._replace(
        slots=tf.where(enters, next_, progress.slots),
        begun=progress.begun + tf.reduce_sum(tf.cast(enters, tf.int32)),
    )
