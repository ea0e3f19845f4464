"""Compare a network's outputs to find violations of the law of a causal network."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Rounding may differ between lengths.
TOLERANCE = 1e-3
ROWS = "the outputs of a row depend on the other rows of the batch"
Network = Callable[..., tf.Tensor]


class Argument(NamedTuple):
    """An argument's properties: has it a time axis, and must outputs not look ahead in it?"""

    is_timed: bool
    is_causal: bool


CAUSAL = Argument(is_timed=True, is_causal=True)


class Probe:
    """Comparison of a network's outputs for random arguments of two rows.

    Args:
      alone: the network, for calls on one row.
      together: the network, for calls on both rows.
      first: arguments of the network, [2, time, ...] each, or [2, ...] without a time axis.
      other: other arguments of the same shapes.
      kinds: the properties of each argument.
    """

    def __init__(
        self,
        alone: Network,
        together: Network,
        first: Sequence[tf.Tensor],
        other: Sequence[tf.Tensor],
        kinds: Sequence[Argument],
    ) -> None:
        self._alone, self._together = alone, together
        self._first, self._other, self._kinds = list(first), list(other), list(kinds)
        self._length = first[0].shape[1]
        self._known: tf.Tensor | None = None

    def fault(self, both: Sequence[int], single: Sequence[int] = ()) -> str:
        """Return how the outputs violate the law; "" if no violation is found.

        Args:
          both: lengths for calls on both rows; only the full length is used if outputs may look
            ahead in some argument, since they may then change with the length.
          single: lengths for calls on the first row only.
        """
        whole = self._whole()
        fault = self._looks_ahead(whole)
        if fault:
            return fault
        if any(kind.is_timed and not kind.is_causal for kind in self._kinds):
            both, single = [self._length], []
        for length in both:
            outputs = self._together(*self._cut(slice(None), length))
            if _changed(whole, outputs, length):
                rows = self._rows(length)
                if length == self._length or _changed(rows, outputs, length):
                    return ROWS
                return "the first outputs change with the length of the input"
        for length in single:
            if _changed(whole[:1], self._alone(*self._cut(slice(1), length)), length):
                return "the first outputs change with the length of the input"
        return ""

    def differs(self, outputs: tf.Tensor) -> bool:
        """Return whether the outputs of a call on both rows differ from those of separate calls."""
        return differs(self._whole(), outputs)

    def _whole(self) -> tf.Tensor:
        if self._known is None:
            self._known = self._rows(self._length)
        return self._known

    def _rows(self, length: int) -> tf.Tensor:
        """Return the outputs for `length` steps of every row, each from a separate call."""
        rows = [
            self._alone(*self._cut(slice(row, row + 1), length))
            for row in range(self._first[0].shape[0])
        ]
        return tf.concat(rows, 0)

    def _cut(self, which: slice, length: int) -> list[tf.Tensor]:
        """Return the first `length` steps of selected rows of the first arguments."""
        pairs = zip(self._first, self._kinds, strict=True)
        return [x[which, :length] if kind.is_timed else x[which] for x, kind in pairs]

    def _looks_ahead(self, whole: tf.Tensor) -> str:
        """Return a phrase that says how far outputs look ahead; "" if they do not."""
        ahead, length = 0, self._length
        for number, time in enumerate((1, length // 3, length // 2, length - 1)):
            row = slice(number % 2, number % 2 + 1)
            changed = [
                tf.concat([x[row, :time], y[row, time:]], 1) if kind == CAUSAL else x[row]
                for x, y, kind in zip(self._first, self._other, self._kinds, strict=True)
            ]
            ahead = max(ahead, rows_changed(whole[row], self._alone(*changed), time))
        return f"output t depends on input t + {ahead}" if ahead else ""


def _changed(whole: tf.Tensor, outputs: tf.Tensor, length: int) -> bool:
    return outputs.shape[1] != length or differs(whole[:, :length], outputs)


def differs(first: tf.Tensor, second: tf.Tensor) -> bool:
    """Return whether outputs differ by more than rounding."""
    return bool(tf.reduce_any(_distance(first, second) > TOLERANCE))


def _distance(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    dtype = tf.float64 if first.dtype in (tf.float64, tf.int32, tf.int64) else tf.float32
    first, second = (tf.cast(x, dtype) for x in (first, second))
    return tf.abs(first - second) / (1.0 + tf.abs(first))


def rows_changed(whole: tf.Tensor, changed: tf.Tensor, time: int) -> int:
    """Return how many steps before `time` the outputs first change; 0 if they do not.

    Args:
      whole: outputs, [batch, time, ...].
      changed: outputs for inputs that differ only at `time` and later.
      time: number of time steps whose outputs should not differ.
    """
    distance = _distance(whole[:, :time], changed[:, :time])
    axes = [axis for axis in range(distance.shape.rank) if axis != 1]
    rows = tf.reduce_any(distance > TOLERANCE, axes).numpy()
    return time - int(np.argmax(rows)) if rows.any() else 0
