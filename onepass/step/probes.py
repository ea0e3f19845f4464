"""Compare a network's outputs to find violations of the law of a causal network."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from onepass.step.wide_floats import Precision, WideCalls

AHEAD, LENGTH, ROWS = "looks ahead", "depends on the length", "mixes the rows of the batch"
# Rounding errors are smaller than this many times the effect of changing all weights by a unit in
# the last place.
AMPLIFIED = 1000.0
# The largest number of times at which changes of the inputs begin.
MOST_PHASES = 64


class Fault(NamedTuple):
    """Two calls whose outputs must be equal in a causal network, but are not."""

    text: str
    kind: str = ""  # what a layer does that is at fault, `AHEAD`, `LENGTH` or `ROWS`
    first: Sequence[tf.Tensor] = ()
    other: Sequence[tf.Tensor] = ()
    row: int = 0  # index of the row in the first call that equals row 0 in the second
    times: int = 0  # the number of first time steps, or pixels, whose outputs must be equal


class Argument(NamedTuple):
    """An argument's properties: has it a time axis, and must outputs not look ahead in it?"""

    is_timed: bool
    is_causal: bool


CAUSAL = Argument(is_timed=True, is_causal=True)


class Probe:
    """Comparison of a network's outputs for two rows of random arguments, and for others."""

    def __init__(
        self,
        network: WideCalls,
        first: Sequence[tf.Tensor],
        other: Sequence[tf.Tensor],
        kinds: Sequence[Argument],
        period: int = 1,
    ) -> None:
        self._network, self._period = network, period
        self._first, self._other, self._kinds = list(first), list(other), list(kinds)
        self._length = first[0].shape[1]
        self._whole = self._rows(self._length)
        self._known: tf.Tensor | None = None

    def fault(self, both: Sequence[int], single: Sequence[int] = ()) -> Fault | None:
        """Return how outputs for `both` rows, or a `single` one, violate the law, or None.

        Only the full length counts for both if outputs may look ahead in some argument.
        """
        found = self._looks_ahead()
        if found:
            return found
        if any(kind.is_timed and not kind.is_causal for kind in self._kinds):
            both, single = [self._length], []
        for length in both:
            outputs = self._network(*self._cut(slice(None), length))
            if self._has_changed(self._whole, outputs, length):
                rows = self._rows(length)
                if length == self._length or self._has_changed(rows, outputs, length):
                    return self._mixes_rows(rows, outputs, length)
                return self._of_length(length)
        for length in single:
            outputs = self._network(*self._cut(slice(1), length))
            if self._has_changed(self._whole[:1], outputs, length):
                return self._of_length(length)
        return None

    def _mixes_rows(self, rows: tf.Tensor, outputs: tf.Tensor, length: int) -> Fault:
        text = "the outputs of a row depend on the other rows of the batch"
        row = 0 if self._has_changed(rows[:1], outputs[:1], length) else 1
        alone = self._cut(slice(row, row + 1), length)
        return Fault(text, ROWS, self._cut(slice(None), length), alone, row, length)

    def _of_length(self, length: int) -> Fault:
        text = "the first outputs change with the length of the input"
        first, other = (self._cut(slice(1), n) for n in (self._length, length))
        return Fault(text, LENGTH, first, other, times=length)

    def _rows(self, length: int) -> tf.Tensor:
        rows = [
            self._network(*self._cut(slice(row, row + 1), length))
            for row in range(self._first[0].shape[0])
        ]
        return tf.concat(rows, 0)

    def _cut(self, which: slice, length: int) -> list[tf.Tensor]:
        pairs = zip(self._first, self._kinds, strict=True)
        return [x[which, :length] if kind.is_timed else x[which] for x, kind in pairs]

    def _looks_ahead(self) -> Fault | None:
        found, ahead, length = None, 0, self._length
        times = [1, length // 3, length // 2, length - 1]
        if self._period > 1:  # a change may begin at any time within a period
            phases = np.unique(np.linspace(0, self._period - 1, MOST_PHASES).astype(int))
            begin = max(1, length // 2 - self._period)
            times += [begin + int(phase) for phase in phases if begin + phase < length]
        for number, time in enumerate(times):
            row = slice(number % 2, number % 2 + 1)
            changed = [
                tf.concat([x[row, :time], y[row, time:]], 1) if kind == CAUSAL else x[row]
                for x, y, kind in zip(self._first, self._other, self._kinds, strict=True)
            ]
            outputs = self._network(*changed)[:, :time]
            rows = self._exceeds(self._whole[row, :time], outputs).any((0, 2))
            if rows.any() and time - int(np.argmax(rows)) > ahead:
                ahead = time - int(np.argmax(rows))
                before = [x[row] for x in self._first]
                text = f"output t depends on input t + {ahead}"
                found = Fault(text, AHEAD, before, changed, times=time)
        return found

    def _has_changed(self, whole: tf.Tensor, outputs: tf.Tensor, length: int) -> bool:
        if outputs.shape[1] != length:
            return True
        return bool(self._exceeds(whole[:, :length], outputs).any())

    def _exceeds(self, first: tf.Tensor, second: tf.Tensor) -> np.ndarray:
        exceeds = exceeding(first, second, self._network.precision)
        if not exceeds.any():
            return exceeds
        rounding = self._rounding()[:, : exceeds.shape[1]]
        return exceeding(first, second, self._network.precision, rounding)

    def _rounding(self) -> tf.Tensor:
        """Return the outputs' rounding [1, time, values], which recurrence may amplify."""
        if self._known is None:
            shaken, before = self._network.shake_weights(), self._cut(slice(1), self._length)
            outputs = shaken(*map(shaken.shake, before))
            change = flat(distances(self._whole[:1], outputs)).numpy()
            change[~np.isfinite(change)] = 0.0
            self._known = tf.constant(np.maximum.accumulate(AMPLIFIED * change, 1))
        return self._known


def exceeding(
    first: tf.Tensor,
    second: tf.Tensor,
    precision: Precision,
    rounding: tf.Tensor | float = 0.0,
) -> np.ndarray:
    """Return where outputs differ by more than rounding, bool [rows, time, values].

    `rounding` [1, time, values] is allowed besides.
    """
    first, second = flat(first), flat(second)
    if bool(tf.reduce_all(first == second)):  # most are: equal shapes are rounded alike
        return np.zeros([*first.shape[:2], 1], bool)
    size = tf.where(tf.math.is_finite(first), tf.abs(first), 0)
    channel = tf.reduce_max(size, (0, 1), keepdims=True) if size.shape[1] else size
    allowed = precision.relative * size + precision.of_channel * channel + rounding
    return (distances(first, second) > allowed).numpy()


def differs(first: tf.Tensor, second: tf.Tensor, precision: Precision) -> bool:
    """Return whether outputs [rows, time, ...] differ by more than rounding."""
    return bool(exceeding(first, second, precision).any())


def distances(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return how far numbers are apart: 0 between equal infinities or NaNs, never NaN."""
    equal = (first == second) | (tf.math.is_nan(first) & tf.math.is_nan(second))
    distance = tf.where(equal, tf.zeros_like(first), tf.abs(first - second))
    return tf.where(tf.math.is_nan(distance), tf.constant(np.inf, distance.dtype), distance)


def flat(outputs: tf.Tensor) -> tf.Tensor:
    """Return outputs [rows, time, ...] as float [rows, time, values]."""
    dtype = tf.float64 if outputs.dtype in (tf.float64, tf.int32, tf.int64) else tf.float32
    rest = int(np.prod(outputs.shape[2:], dtype=np.int64))
    return tf.reshape(tf.cast(outputs, dtype), [*outputs.shape[:2], rest])


def rows_changed(whole: tf.Tensor, changed: tf.Tensor, time: int, precision: Precision) -> int:
    """Return how many steps before `time`, where inputs change, outputs change first; 0: none."""
    rows = exceeding(whole[:, :time], changed[:, :time], precision).any((0, 2))
    return time - int(np.argmax(rows)) if rows.any() else 0
