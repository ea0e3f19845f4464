"""Conditional distributions that code elements: their interface, and those of a model.

All that a model must provide is its `Conditionals`; streams, files and verification are shared.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from onepass.compression import odds
from onepass.compression.odds import FLOOR, LARGEST_LOG_ODDS, REACH, ROUNDING, Categorical, Split
from onepass.compression.stream import (
    Advance,
    Channels,
    Decoder,
    Distribution,
    Encoder,
    Layout,
    odds_of,
    silent,
)
from onepass.foundation.rules import UserError
from onepass.likelihoods.distribution import cumulative_of

Moved = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Coding:
    """The rules by which a network's outputs become the distributions that code a stream."""

    way: str = "closed"  # how odds are computed, one of `Conditionals.ways`
    narrowest: float | None = None  # of `odds.closed_form`; None: as in format version 1
    # Largest relative difference of the outputs, between encoder and decoder, for which the encoder
    # leaves margins; None in a decoder.
    tolerance: float | None = None
    moved: Moved | None = None  # changes the outputs, to verify the tolerance


class Known(NamedTuple):
    """Pixels in the order of decoding, with their distributions given all preceding pixels."""

    levels: np.ndarray  # the pixels' levels, int64 [pixels, channels]
    channels: Channels  # maps a channel's levels (first: None) to the next channel's distributions
    class_: int
    calls: Sequence[int]  # pixels in each of the decoder's calls that will decode these


class Conditionals(Protocol):
    """A model's distribution of every element given the elements before it."""

    levels: int
    ways: Sequence[str]  # how the odds of levels can be computed, the best way first

    def layout(self, shape: tuple[int, ...], condition: Any) -> Layout:
        """Return the layout of the stream for elements of this shape with this condition."""

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return whether elements of this container shape can be decoded in a few seconds."""

    def iterate_elements(
        self, levels: np.ndarray, condition: Any, coding: Coding
    ) -> Iterator[Known]:
        """Yield all elements of a stream, given their int32 levels, in the order of decoding."""

    def read(
        self, shape: tuple[int, ...], condition: Any, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Decode int32 levels from `decoder.pixels`, in the order of `iterate_elements`."""


def encode(
    conditionals: Conditionals,
    levels: np.ndarray,
    condition: Any,
    coding: Coding,
    advance: Advance = silent,
) -> bytes:
    """Encode levels as one stream; raise UserError for a level of probability zero."""
    layout, done = conditionals.layout(levels.shape, condition), 0
    encoder = Encoder(layout)
    for known in conditionals.iterate_elements(levels, condition, coding):
        odds, before = [], None
        for own in known.levels.T:
            distribution = known.channels(before)
            _check_possible(conditionals, distribution, own, levels.shape, condition, done)
            odds.append(odds_of(distribution, own, layout.depth))
            before = own
        encoder.add(odds, known.class_, known.calls)
        done += len(known.levels)
        advance(known.levels.size)
    return encoder.finish()


def _check_possible(
    conditionals: Conditionals,
    distribution: Distribution,
    own: np.ndarray,
    shape: tuple[int, ...],
    condition: Any,
    done: int,
) -> None:
    forbids = getattr(distribution, "forbids", None)
    places = np.flatnonzero(forbids(own)) if forbids else np.zeros(0, np.int64)
    if len(places):
        number = done + int(places[0])
        place_of = getattr(conditionals, "place", lambda shape, condition, number: number)
        place = place_of(shape, condition, number)
        raise UserError(
            "`elements` must be possible under the model to compress them, which gives the"
            f" probability zero to the level {own[places[0]]} at {place}."
        )


def decode(
    conditionals: Conditionals,
    stream: bytes,
    shape: tuple[int, ...],
    condition: Any,
    coding: Coding,
    advance: Advance = silent,
) -> np.ndarray:
    """Decode a stream to levels, int32; raise UserError if it is damaged."""
    decoder = Decoder(stream, conditionals.layout(shape, condition), advance)
    return conditionals.read(shape, condition, coding, decoder)


FINE = 256  # levels that a table codes, after the upper bits, which cumulative masses code
MOST_TABLE = 1 << 20  # log probabilities per element
LEAST_LOG_PROB = -700.0
SHARE = 1e-5  # added to the masses of both halves, so that each has a code
MASS_ERROR = 3e-7  # error of a cumulative mass in float32
# Error of the mass between two levels; log probabilities may come from differences of such masses.
TABLE_ERROR = 1.5e-7
FARTHER = 10.0  # larger multiple of the tolerance, at which its effect exceeds rounding
Values = Callable[[np.ndarray], np.ndarray]


def ways_of(distribution: Any) -> list[str]:
    """Return how the odds of a distribution's levels can be computed, the best way first."""
    is_cumulative = distribution.levels > FINE and cumulative_of(distribution) is not None
    has_form = getattr(distribution, "form", None) is not None
    known = {"closed": has_form, "cumulative": is_cumulative}
    return [*(way for way, is_known in known.items() if is_known), "table"]


def check_table(distribution: Any) -> None:
    """Raise UserError if a table of all levels would be too large to encode an element."""
    if distribution.levels * (1 + distribution.num_parameters) > MOST_TABLE:
        raise UserError(
            f"`model` must have a distribution with `cumulative` to compress {distribution.levels}"
            f" levels of {distribution.num_parameters} parameters, got"
            f" {type(distribution).__name__}."
        )


class ModelOdds:
    """Builder of the distributions of elements, whose `split` an encoder or decoder calls."""

    def __init__(self, distribution: Any, order: str):
        self._distribution = distribution
        self._log_prob = _evaluation(distribution.log_prob, order)
        cumulative = cumulative_of(distribution)
        if cumulative is not None:
            self._below = _evaluation(cumulative, order)

    def table_levels(self, way: str) -> int:
        """Return the number of levels in an element's table."""
        return {"closed": 1, "cumulative": FINE}.get(way, int(self._distribution.levels))

    def __call__(self, rows: np.ndarray, off: np.ndarray | None, coding: Coding) -> Any:
        """Return the distributions of elements; without tolerances `off` they have no margins."""
        if coding.way == "closed":
            return odds.closed_form(self._distribution, rows, off, coding.narrowest)
        if coding.way == "cumulative":
            return _Cumulative(self, rows, off, coding)
        return self.table(rows, off, coding, np.zeros(len(rows), np.int64))

    def table(
        self, rows: np.ndarray, off: np.ndarray | None, coding: Coding, first: np.ndarray
    ) -> "_Table":
        """Return the distributions over `table_levels` levels from `first` [elements] on."""
        levels = first[:, None] + np.arange(self.table_levels(coding.way))
        last = self._distribution.levels - 1

        def values(moved: np.ndarray) -> np.ndarray:
            table = self._log_prob(moved, np.minimum(levels, last))
            return np.where(levels > last, -np.inf, table)

        return table_of(values, rows, off, coding.tolerance or 0.0)

    def masses(self, rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return the masses between adjacent edges, float64 [elements, edges - 1]."""
        levels = self._distribution.levels
        below = self._below(rows, np.clip(edges, 0, levels))
        below = np.where(edges <= 0, 0.0, np.where(edges >= levels, 1.0, below))
        return np.maximum(np.diff(below, axis=1), 0.0)


class _Table:
    def __init__(self, softmax: Categorical, is_bounded: bool):
        self._softmax = softmax
        self._below: np.ndarray | None = None
        if is_bounded:
            below = np.cumsum(np.exp(softmax.logits), 1)
            self._below = np.pad(below, [[0, 0], [1, 0]])

    def forbids(self, levels: np.ndarray) -> np.ndarray:
        chosen = np.take_along_axis(self._softmax.logits, levels[:, None], 1)[:, 0]
        return chosen <= LEAST_LOG_PROB

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        found = self._softmax.split(low, half, whole)
        if self._below is None:
            return found
        edges = np.minimum(low[:, None] + half * np.arange(3), self._softmax.levels)
        masses = np.diff(np.take_along_axis(self._below, edges, 1), axis=1)
        spread = FLOOR * half / whole * self._below[:, -1]
        return Split(found.t, found.margin + _bound_odds(masses, TABLE_ERROR, spread).margin)


class _Cumulative:
    def __init__(self, odds: ModelOdds, rows: np.ndarray, off: np.ndarray | None, coding: Coding):
        self._odds, self._rows, self._off, self._coding = odds, rows, off, coding
        self._table: tuple[np.ndarray, _Table] | None = None

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """See `Mixture.split`; the highest bits come first."""
        if 2 * half > FINE:
            return self._coarse(low[:, None] + half * np.arange(3))
        if 2 * half == FINE:
            table = self._odds.table(self._rows, self._off, self._coding, low)
            self._table = low, table
        if self._table is None:
            raise ValueError("`half` must fall from call to call.")
        first, table = self._table
        return table.split(low - first, half, FINE)

    def _coarse(self, edges: np.ndarray) -> Split:
        values = functools.partial(self._odds.masses, edges=edges)
        masses = values(self._rows)
        if self._off is None:
            return _bound_odds(masses, 0.0, SHARE)
        off = MASS_ERROR + _effect(values, masses, self._rows, self._off)
        found = _bound_odds(masses, off, SHARE)
        return Split(found.t, found.margin + ROUNDING)


def table_of(values: Values, rows: np.ndarray, off: np.ndarray | None, tolerance: float) -> _Table:
    """Return distributions given `values`, from parameters to log probabilities of levels."""

    def clip_values(moved: np.ndarray) -> np.ndarray:
        return np.maximum(values(moved), LEAST_LOG_PROB)

    table = clip_values(rows)
    if off is None:
        return _Table(Categorical(table, np.zeros_like(table)), is_bounded=False)
    margin = tolerance * (odds.LEAST_SHARE + np.abs(table)) + _effect(clip_values, table, rows, off)
    return _Table(Categorical(table, margin), is_bounded=True)


def _bound_odds(masses: np.ndarray, off: np.ndarray | float, spread: np.ndarray | float) -> Split:
    """Return the odds of the upper half for masses that are off by `off`, with `spread` added."""
    fewest, most = np.maximum(masses - off, 0.0), masses + off
    t = _warp_odds(masses[:, 1], masses[:, 0], spread)
    least = _warp_odds(fewest[:, 1], most[:, 0], spread)
    largest = _warp_odds(most[:, 1], fewest[:, 0], spread)
    return Split(t, np.maximum(largest - t, t - least))


def _warp_odds(upper: np.ndarray, lower: np.ndarray, spread: np.ndarray | float) -> np.ndarray:
    """Return the odds t for the masses of both halves, [elements], with `spread` added to each."""
    u = np.clip(np.log((upper + spread) / (lower + spread)), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    return np.copysign(REACH * (1.0 - np.exp(-np.abs(u) / REACH)), u)


def _effect(values: Values, now: np.ndarray, rows: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Estimate how much values of any function change if every parameter is off by `off`.

    Each parameter is moved in both directions, by `off` and by FARTHER times `off`, where the
    change is divided by FARTHER; the largest change is summed over the parameters.
    """
    total = np.zeros_like(now)
    for k in range(rows.shape[1]):
        most = np.zeros_like(now)
        for factor in (1.0, -1.0, FARTHER, -FARTHER):
            moved = rows.copy()
            moved[:, k] += factor * off[:, k]
            most = np.maximum(most, np.abs(values(moved) - now) / abs(factor))
        total += most
    return total


def _evaluation(
    function: Callable[..., tf.Tensor], order: str
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def evaluate_rows(rows: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        count, width = tf.shape(levels)[1], rows.shape[1]
        parameters, symbols = tf.repeat(rows[:, tf.newaxis], count, 1), levels
        if order == "raster":  # as many axes as images have
            axes = tf.concat([[1, 1], tf.shape(levels)], 0)
            parameters = tf.reshape(parameters, tf.concat([axes, [width]], 0))
            symbols = tf.reshape(levels, axes)
        return tf.reshape(function(parameters, symbols), tf.shape(levels))

    compiled = tf.function(evaluate_rows, autograph=False, reduce_retracing=True)
    return lambda rows, levels: np.asarray(
        compiled(tf.constant(rows, tf.float32), tf.constant(levels, tf.int32)), np.float64
    )
