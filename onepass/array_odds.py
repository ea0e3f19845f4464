"""Odds of a model's levels: in closed form, by cumulative masses, or by a table of all levels."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.model import Autoregressive
from compression import forms
from compression.odds import FLOOR, LARGEST_LOG_ODDS, REACH, ROUNDING
from compression.splits import Categorical, Split
from likelihoods.capabilities import cumulative_of
from replicator.runs.errors import UserError

FINE = 256  # levels that are coded by a table of their own, after those above by cumulative masses
MOST_TABLE = 1 << 20  # log-probabilities per element
LEAST_LOG_PROB = -700.0
SHARE = 1e-5  # added to the masses of both halves, so that each has a code
MASS_ERROR = 3e-7  # of a cumulative mass in float32
# Of the mass between two levels, whose log-probabilities may be of differences of such masses.
TABLE_ERROR = 1.5e-7
FARTHER = 10.0  # factor on differences, at which their effects exceed rounding
Values = Callable[[np.ndarray], np.ndarray]


def ways_of(model: Autoregressive) -> list[str]:
    """Return the ways in which a model's levels can be coded, the best first."""
    distribution: Any = model.distribution
    is_cumulative = distribution.levels > FINE and cumulative_of(distribution) is not None
    known = {"closed": forms.form_of(distribution) is not None, "cumulative": is_cumulative}
    return [*(way for way, is_known in known.items() if is_known), "table"]


def check_table(model: Autoregressive) -> None:
    """Raise UserError if a table of all levels would be too large to encode an element."""
    distribution: Any = model.distribution
    if distribution.levels * (1 + distribution.num_parameters) > MOST_TABLE:
        raise UserError(
            f"`model` must have a distribution with `cumulative` to compress {distribution.levels}"
            f" levels of {distribution.num_parameters} parameters, got"
            f" {type(distribution).__name__}."
        )


class ArrayOdds:
    """Distributions of elements, as an encoder or decoder splits them.

    Args:
      model: with levels.
      way: of `ways_of`.
      narrowest: of `forms.closed`.
    """

    def __init__(self, model: Autoregressive, way: str, narrowest: float | None = None):
        self._distribution: Any = model.distribution
        self._way, self._narrowest = way, narrowest
        self._log_prob = _evaluation(model.distribution.log_prob, model.order)
        cumulative = cumulative_of(model.distribution)
        if way == "cumulative" and cumulative is not None:
            self._below = _evaluation(cumulative, model.order)

    @property
    def table_levels(self) -> int:
        """Number of levels in a table of an element."""
        return {"closed": 1, "cumulative": FINE}.get(self._way, int(self._distribution.levels))

    def __call__(self, rows: np.ndarray, off: np.ndarray | None, tolerance: float) -> Any:
        """Return the distributions of elements.

        Args:
          rows: of parameters, float64 [elements, num_parameters].
          off: largest differences of the parameters; None: no margins are needed.
          tolerance: of the log-probabilities themselves.
        """
        if self._way == "closed":
            return forms.closed(self._distribution, rows, off, self._narrowest)
        if self._way == "cumulative":
            return _Cumulative(self, rows, off, tolerance)
        return self.table(rows, off, tolerance, np.zeros(len(rows), np.int64))

    def table(
        self, rows: np.ndarray, off: np.ndarray | None, tolerance: float, first: np.ndarray
    ) -> "_Table":
        """Return the distributions over `table_levels` levels from `first` [elements] on."""
        levels = first[:, None] + np.arange(self.table_levels)
        last = self._distribution.levels - 1

        def values(moved: np.ndarray) -> np.ndarray:
            table = self._log_prob(moved, np.minimum(levels, last))
            return np.maximum(np.where(levels > last, -np.inf, table), LEAST_LOG_PROB)

        table = values(rows)
        if off is None:
            return _Table(Categorical(table, np.zeros_like(table)), is_bounded=False)
        margin = tolerance * (forms.LEAST_SHARE + np.abs(table))
        margin += _effect(values, table, rows, off)
        return _Table(Categorical(table, margin), is_bounded=True)

    def masses(self, rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return the masses between neighbouring edges, float64 [elements, edges - 1]."""
        levels = self._distribution.levels
        below = self._below(rows, np.clip(edges, 0, levels))
        below = np.where(edges <= 0, 0.0, np.where(edges >= levels, 1.0, below))
        return np.maximum(np.diff(below, axis=1), 0.0)


class _Table:
    """Log-probabilities of levels in float32, which need not sum to one.

    Args:
      softmax: of them.
      is_bounded: whether margins are needed.
    """

    def __init__(self, softmax: Categorical, is_bounded: bool):
        self._softmax = softmax
        self._below: np.ndarray | None = None
        if is_bounded:
            below = np.cumsum(np.exp(softmax.logits), 1)
            self._below = np.pad(below, [[0, 0], [1, 0]])

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half); see `Mixture.split`."""
        found = self._softmax.split(low, half, whole)
        if self._below is None:
            return found
        edges = np.minimum(low[:, None] + half * np.arange(3), self._softmax.levels)
        masses = np.diff(np.take_along_axis(self._below, edges, 1), axis=1)
        spread = FLOOR * half / whole * self._below[:, -1:]
        fewest, most = np.maximum(masses - TABLE_ERROR, 0.0), masses + TABLE_ERROR
        t, least, largest = (
            _warped(upper, lower, spread[:, 0])
            for upper, lower in (
                masses.T[::-1],
                (fewest[:, 1], most[:, 0]),
                (most[:, 1], fewest[:, 0]),
            )
        )
        return Split(found.t, found.margin + np.maximum(largest - t, t - least))


class _Cumulative:
    """Distributions whose upper bits are coded by cumulative masses, the last 8 by a table."""

    def __init__(self, odds: ArrayOdds, rows: np.ndarray, off: np.ndarray | None, tolerance: float):
        self._odds, self._rows, self._off, self._tolerance = odds, rows, off, tolerance
        self._table: tuple[np.ndarray, _Table] | None = None

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half), the highest bits first."""
        if 2 * half > FINE:
            return self._coarse(low[:, None] + half * np.arange(3))
        if 2 * half == FINE:
            table = self._odds.table(self._rows, self._off, self._tolerance, low)
            self._table = low, table
        if self._table is None:
            raise ValueError("`half` must fall from call to call.")
        first, table = self._table
        return table.split(low - first, half, FINE)

    def _coarse(self, edges: np.ndarray) -> Split:
        values = functools.partial(self._odds.masses, edges=edges)
        masses = values(self._rows)
        t = _warped(masses[:, 1], masses[:, 0])
        if self._off is None:
            return Split(t, np.zeros_like(t))
        off = MASS_ERROR + _effect(values, masses, self._rows, self._off)
        fewest, most = np.maximum(masses - off, 0.0), masses + off
        least, largest = _warped(fewest[:, 1], most[:, 0]), _warped(most[:, 1], fewest[:, 0])
        return Split(t, np.maximum(largest - t, t - least) + ROUNDING)


def _warped(upper: np.ndarray, lower: np.ndarray, spread: np.ndarray | float = SHARE) -> np.ndarray:
    """Return t of the masses of both halves [elements], each with a spread; see `odds`."""
    u = np.clip(np.log((upper + spread) / (lower + spread)), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
    return np.copysign(REACH * (1.0 - np.exp(-np.abs(u) / REACH)), u)


def _effect(values: Values, now: np.ndarray, rows: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return the sum of the differences of values that the difference of each parameter causes.

    It is no bound, as `values` may be any function: each parameter is moved both ways, as far as it
    may be off, and farther, of which a share is taken.
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
    """Return a function from rows of parameters and levels [elements, n] to float64 [elements, n].

    Args:
      function: from parameters [..., num_parameters] and symbols [...] to [...].
      order: of the model, which gives the number of axes.
    """

    def shaped(rows: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        count, width = tf.shape(levels)[1], rows.shape[1]
        parameters, symbols = tf.repeat(rows[:, tf.newaxis], count, 1), levels
        if order == "raster":  # as many axes as images have
            axes = tf.concat([[1, 1], tf.shape(levels)], 0)
            parameters = tf.reshape(parameters, tf.concat([axes, [width]], 0))
            symbols = tf.reshape(levels, axes)
        return tf.reshape(function(parameters, symbols), tf.shape(levels))

    compiled = tf.function(shaped, autograph=False, reduce_retracing=True)
    return lambda rows, levels: np.asarray(
        compiled(tf.constant(rows, tf.float32), tf.constant(levels, tf.int32)), np.float64
    )
