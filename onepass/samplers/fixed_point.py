"""Fixed-point samplers: passes over the sequence or over windows until all symbols are final.

With the noise fixed, every symbol is a function of the symbols before it. From any start, repeated
passes converge to the unique sequence that satisfies all these functions, that of the other
samplers, in at most as many passes as there are symbols: Song et al. 2021 (arXiv 2002.03629),
Wiggers and Hoogeboom 2020 (2002.09928).

The stopping rule is exact. A frontier separates, in each row of a batch, symbols known to be final
from the others. A pass draws the symbol at the frontier from final ones only, so it becomes final;
so does every symbol up to and including the first that the pass changes. Final symbols are kept:
where a network rounds differently with other symbols after them, as in a Fourier transform, a pass
could change them for ever. A window begins at the frontier, and reads what the receptive field
needs before it; symbols beyond are guesses, which affect only the number of passes. A finished
image gives its slot, its row in the batch of a pass, to the next one.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from onepass.foundation.rules import must_be
from onepass.likelihoods.distribution import Distribution, pixel_channels
from onepass.likelihoods.truncated import recalling
from onepass.networks.conditions import NOTHING, Condition
from onepass.networks.symbols import Prompt, SymbolNetwork
from onepass.samplers.registry import method
from onepass.samplers.speculative import LastPass, speculative
from onepass.step import UnsupportedNetworkError

# Largest share of drawn elements that may differ: rounding moves some across the border of a level.
MOVED = 0.25
# Largest difference of real symbols by rounding, relative to one plus the symbol.
ROUNDING = 1e-3


class Settled(NamedTuple):
    """Symbols that were drawn by passes."""

    symbols: tf.Tensor
    passes: tf.Tensor
    moved: tf.Tensor  # int32 [], number of final symbols that the last pass drew otherwise

    def check_symbols(self) -> tf.Tensor:
        """Return the symbols; raise UnsupportedNetworkError if some depend on those after them."""
        moved, count = int(self.moved), int(tf.size(self.symbols))
        if moved <= MOVED * count:
            return self.symbols
        raise UnsupportedNetworkError(
            f'`method="fixed-point"` does not converge: after {int(self.passes):,} passes,'
            f" {moved:,} of {count:,} elements still change with those after them, as where"
            " activations outgrow their precision in a Fourier transform;"
            ' `method="naive"` draws one element after another.'
        )


def empty_symbols(distribution: Distribution, noise: tf.Tensor) -> tf.Tensor:
    """Return zeros with the shape and type of the symbols for noise [batch, time, channels].

    In raster order, noise is [batch, height, width, noise channels] for whole pixels, else [batch,
    height, width, channels, noise channels].
    """
    dtype = tf.float32 if distribution.levels is None else tf.int32
    sizes, channels = tf.unstack(tf.shape(noise)), pixel_channels(distribution)
    known = [sizes[axis] if size is None else size for axis, size in enumerate(noise.shape)]
    return tf.zeros([*known[:-1], *([] if channels is None else [channels])], dtype)


def sample_symbols(
    parameters: tf.Tensor,
    distribution: Distribution,
    noise: tf.Tensor,
    temperature: float | tf.Tensor,
    like: tf.Tensor,
) -> tf.Tensor:
    """Draw symbols with the shape and type of `like`."""
    drawn = distribution.sample(parameters, noise, temperature)
    return tf.cast(tf.ensure_shape(drawn, like.shape), like.dtype)


def has_moved(symbols: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Return which symbols, of two tensors of one type, differ by more than rounding, as bool."""
    if symbols.dtype.is_integer:
        return symbols != drawn
    return tf.abs(symbols - drawn) > ROUNDING * (1.0 + tf.abs(symbols))


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
        is_whole = self.slots is None and self.rows == self.noise.shape[1]
        if is_whole or not hasattr(self.network, "rows_of"):
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
    condition: Any = NOTHING,
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
            raise ValueError(must_be(name, "at least 1", count))
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
    done = tf.gather(progress.frontier, progress.slots) >= pixels
    next_ = progress.begun + tf.cumsum(tf.cast(done, tf.int32)) - 1
    enters = done & (next_ < tf.size(progress.frontier))
    return progress._replace(
        slots=tf.where(enters, next_, progress.slots),
        begun=progress.begun + tf.reduce_sum(tf.cast(enters, tf.int32)),
    )


@method("fixed-point")
def fixed_point(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition = NOTHING,
    temperature: float | tf.Tensor = 1.0,
    prompt: Prompt | None = None,
) -> Settled:
    """Draw the same symbols as `naive`, whose arguments it takes."""
    if window := getattr(network, "window", 0):  # a network whose step reads several symbols
        symbols, count, _ = speculative(
            network, distribution, noise, condition, temperature, LastPass(), window, prompt
        )
        return Settled(symbols, count, tf.constant(0))
    symbols = empty_symbols(distribution, noise)
    windows = settings_of(network, noise.shape[1]) if symbols.shape.rank == 4 else {}
    if windows:
        symbols = by_windows(
            network, distribution, noise, condition, temperature, prompt, **windows
        ).levels
    positions = network.positions(symbols)
    end = tf.reduce_max(positions) + 1

    def body(
        passes: tf.Tensor, frontier: tf.Tensor, symbols: tf.Tensor, moved: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        del moved
        parameters = network.parameters(symbols, condition)
        heat = recalling(temperature, symbols, distribution.levels)
        drawn = sample_symbols(parameters, distribution, noise, heat, symbols)
        drawn = drawn if prompt is None else prompt.over(drawn, 0)
        is_final = positions < tf.reshape(frontier, [-1, *[1] * (symbols.shape.rank - 1)])
        moved = tf.math.count_nonzero(has_moved(symbols, drawn) & is_final, dtype=tf.int32)
        drawn = tf.where(is_final, symbols, drawn)
        # The first symbol that a pass changes was drawn from final ones, and is the last such.
        final = tf.where(drawn != symbols, positions + 1, end)
        return passes + 1, tf.reduce_min(final, range(1, symbols.shape.rank)), drawn, moved

    # For an image, these passes settle pixels that the windows have left, if any.
    first = tf.constant(0), tf.zeros(tf.shape(symbols)[:1], tf.int32), symbols, tf.constant(0)
    passes, _, symbols, moved = tf.while_loop(
        lambda _passes, frontier, *_: tf.reduce_any(frontier < end),
        body,
        first,
        maximum_iterations=end,
    )
    return Settled(symbols, passes, moved)


def draw_by_passes(
    network: Any,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Any,
    temperature: tf.Tensor,
    state: Any,
) -> tuple[tf.Tensor, Any]:
    """Draw the next symbols [batch, time] like `cached_chunk`, by passes over windows."""
    sizes = range(network.block, network.window + 1, network.block)
    window = max(size for size in sizes if noise.shape[1] % size == 0)
    symbols, _, (state, _) = speculative(
        network, distribution, noise, condition, temperature, LastPass(), window, states=(state, ())
    )
    return symbols, state
