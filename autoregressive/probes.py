"""Comparisons of a network's outputs, which show whether it keeps the law of a causal network."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# Rounding may differ between lengths.
TOLERANCE = 1e-3
ROWS = "the outputs of a row depend on the other rows of the batch"
Network = Callable[..., tf.Tensor]


class Probe:
    """Outputs for random arguments of two rows.

    Args:
      alone: the network, called on one row.
      together: the network, called on both rows.
      first: its arguments, [2, time, ...] each.
      other: other ones of the same shapes.
      causal: number of the first arguments that outputs must not look ahead in.
    """

    def __init__(
        self,
        alone: Network,
        together: Network,
        first: Sequence[tf.Tensor],
        other: Sequence[tf.Tensor],
        causal: int,
    ):
        self._alone, self._together = alone, together
        self._first, self._other, self._causal = list(first), list(other), causal
        self._length = first[0].shape[1]
        self._known: tf.Tensor | None = None

    def fault(self, both: Sequence[int], single: Sequence[int] = ()) -> str:
        """Return how the outputs break the law; "" if they seem to keep it.

        Args:
          both: lengths of which both rows are called together; only the whole, if an argument may
            be looked ahead in, since the outputs may then change with the length.
          single: lengths of which the first row is called alone.
        """
        whole = self._whole()
        fault = self._looks_ahead(whole)
        if fault:
            return fault
        if self._causal < len(self._first):
            both, single = [self._length], []
        for length in both:
            outputs = self._together(*(x[:, :length] for x in self._first))
            if _changed(whole, outputs, length):
                rows = self._rows(length)
                if length == self._length or _changed(rows, outputs, length):
                    return ROWS
                return "the first outputs change with the length of the input"
        for length in single:
            if _changed(whole[:1], self._alone(*(x[:1, :length] for x in self._first)), length):
                return "the first outputs change with the length of the input"
        return ""

    def differs(self, outputs: tf.Tensor) -> bool:
        """Return whether the outputs of both rows together are others than those of each alone."""
        return differs(self._whole(), outputs)

    def _whole(self) -> tf.Tensor:
        if self._known is None:
            self._known = self._rows(self._length)
        return self._known

    def _rows(self, length: int) -> tf.Tensor:
        """Return the outputs of so many steps of every row, each called alone."""
        rows = [
            self._alone(*(x[row : row + 1, :length] for x in self._first))
            for row in range(self._first[0].shape[0])
        ]
        return tf.concat(rows, 0)

    def _looks_ahead(self, whole: tf.Tensor) -> str:
        """Return by how much outputs look ahead, from rows that change from some time on."""
        ahead, length = 0, self._length
        for number, time in enumerate((1, length // 3, length // 2, length - 1)):
            row = slice(number % 2, number % 2 + 1)
            changed = [
                tf.concat([x[row, :time], (y if i < self._causal else x)[row, time:]], 1)
                for i, (x, y) in enumerate(zip(self._first, self._other, strict=True))
            ]
            ahead = max(ahead, rows_changed(whole[row], self._alone(*changed), time))
        return f"output t depends on input t + {ahead}" if ahead else ""


def _changed(whole: tf.Tensor, outputs: tf.Tensor, length: int) -> bool:
    return outputs.shape[1] != length or differs(whole[:, :length], outputs)


def differs(first: tf.Tensor, second: tf.Tensor) -> bool:
    """Return whether outputs differ by more than rounding."""
    return bool(tf.reduce_any(_distance(first, second) > TOLERANCE))


def _distance(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    first, second = (tf.cast(x, tf.float64) for x in (first, second))
    return tf.abs(first - second) / (1.0 + tf.abs(first))


def rows_changed(whole: tf.Tensor, changed: tf.Tensor, time: int) -> int:
    """Return the distance before `time` of the first row that changed.

    Args:
      whole: outputs, [batch, time, ...].
      changed: outputs for inputs that differ from `time` on.
      time: number of outputs that should not differ.
    """
    distance = _distance(whole[:, :time], changed[:, :time])
    axes = [axis for axis in range(distance.shape.rank) if axis != 1]
    rows = tf.reduce_any(distance > TOLERANCE, axes).numpy()
    return time - int(np.argmax(rows)) if rows.any() else 0
