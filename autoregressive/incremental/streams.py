"""The role of time in a tensor: its axis, its alignment with the input, its valid rows."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.incremental.sizes import static_value

# Rows after the present of a tensor that is equal at every time.
ENDLESS = 1 << 40


class NotCausalError(ValueError):
    """An error of an output that depends on later inputs, or on the length of the sequence."""


class UnsupportedNetworkError(ValueError):
    """An error of a network that may be causal, but has an operation without a rule for a step."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """A tensor that grows with time; row `i` along its time axis is of time `i - offset`.

    Attributes:
      axis: holds `outer * rows * inner` entries, in this order.
      offset: rows before time 0; negative if the first times have none; None if all rows are equal.
      end: rows after the present that a longer input would not change; negative if the last
        rows of the present are missing.
      outer, inner: sizes of the axes that are merged with time.
      ahead: layers that looked ahead, one text per layer.
      merged_by: the layer that merged the axis with another one.
    """

    axis: int
    offset: int | None
    end: int
    outer: int = 1
    inner: int = 1
    ahead: tuple[str, ...] = ()
    merged_by: str = ""

    @property
    def is_merged(self) -> bool:
        """True if the axis also holds another one, such as [batch * time, channels]."""
        return self.outer * self.inner != 1

    @property
    def rows_per_time(self) -> int:
        """Entries of the axis per time."""
        return self.outer * self.inner


@dataclasses.dataclass(frozen=True)
class Refused:
    """A tensor that is not available in a step.

    Attributes:
      reason: a sentence.
      is_causal: whether an output that reads it may still be causal.
    """

    reason: str
    is_causal: bool = False

    def error(self) -> NotCausalError | UnsupportedNetworkError:
        """Return the error of an output that reads the tensor."""
        return (UnsupportedNetworkError if self.is_causal else NotCausalError)(self.reason)


Kind = Stream | Refused | None


class Node:
    """An operation traced at two lengths.

    Args:
      pair: the operation in both graphs.
      lengths: of the input in both graphs.
      kinds: of the inputs; None: the same for all lengths and inputs.
      layer_of: from an operation to the name of its layer, for errors.
    """

    def __init__(
        self,
        pair: tuple[tf.Operation, tf.Operation],
        lengths: tuple[int, int],
        kinds: Sequence[Kind],
        layer_of: Callable[[tf.Operation], str],
    ):
        self.op, self.longer = pair
        self.lengths, self.kinds, self._layer_of = lengths, list(kinds), layer_of

    @property
    def layer(self) -> str:
        """Name of the layer."""
        return self._layer_of(self.op)

    @property
    def type(self) -> str:
        """The TensorFlow operation, such as "Conv2D"."""
        return self.op.type

    def streams(self) -> list[Stream]:
        """Return the kinds of the inputs that grow with time."""
        return [kind for kind in self.kinds if isinstance(kind, Stream)]

    def only(self, index: int = 0) -> Stream:
        """Return the kind of one input, the only one that may depend on the sequence."""
        stream = self.kinds[index]
        if isinstance(stream, Stream) and all(
            kind is None for i, kind in enumerate(self.kinds) if i != index
        ):
            return stream
        self.refuse_kinds()
        raise self.unsupported("the sequence is not the input that its rule expects")

    def refuse_kinds(self, but: Sequence[int] = ()) -> None:
        """Raise NotCausalError if an input depends on the length or on all of the sequence."""
        for i, kind in enumerate(self.kinds):
            if isinstance(kind, Refused) and i not in but:
                raise kind.error()

    def bounds(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of an input at both lengths; it must not depend on the sequence."""
        values = [static_value(op.inputs[index]) for op in (self.op, self.longer)]
        if values[0] is None or values[1] is None:
            raise self.unsupported("an argument that must be constant is computed")
        return values[0], values[1]

    def static(self, index: int) -> np.ndarray:
        """Return the value of an input, which must be the same at both lengths."""
        short, long = self.bounds(index)
        if not np.array_equal(short, long):
            raise self.refused("depends on the length of its input")
        return short

    def entry(self, index: int, position: int) -> int:
        """Return one entry of an input, which must be the same at both lengths."""
        short, long = (int(value[position]) for value in self.bounds(index))
        if short != long:
            raise self.refused("depends on the length of its input")
        return short

    def moving(self, output: int) -> list[int]:
        """Return the axes of an output that grow with the length."""
        return moving_axes(self.op.outputs[output], self.longer.outputs[output])

    def grown(self, output: int, like: Stream, **changes) -> Kind:
        """Return the kind of an output with the time of `like`, with the changes.

        Raises:
          NotCausalError: two axes grow, or time has another rate.
        """
        axes = self.moving(output)
        if not axes:
            if self.type in ("Slice", "StridedSlice"):
                return Refused(f"{self.layer} reads fixed times of the sequence", is_causal=True)
            return Refused(f"{self.layer} reads all of the sequence at once ({self.type})")
        if len(axes) > 1:
            raise UnsupportedNetworkError(
                f"{self.layer} has two axes that grow with time, like attention ({self.type});"
                " no step can be derived from it"
            )
        stream = dataclasses.replace(like, axis=axes[0], **changes)
        self._check_rate(output, stream)
        if stream.offset is None:
            return stream
        size = self.op.outputs[output].shape[stream.axis]
        after = size // stream.rows_per_time - self.lengths[0] - stream.offset
        return dataclasses.replace(stream, end=min(stream.end, after))

    def _check_rate(self, output: int, stream: Stream) -> None:
        sizes = [op.outputs[output].shape[stream.axis] for op in (self.op, self.longer)]
        growth = self.lengths[1] - self.lengths[0]
        if sizes[1] - sizes[0] != growth * stream.rows_per_time:
            raise NotCausalError(
                f"{self.layer} changes the rate of time ({self.type}): {growth} more inputs give "
                f"{(sizes[1] - sizes[0]) // stream.rows_per_time} more rows"
            )

    def refused(self, reason: str) -> NotCausalError:
        """Return the error for a layer that is not causal."""
        return NotCausalError(f"{self.layer} {reason}")

    def unsupported(self, reason: str) -> UnsupportedNetworkError:
        """Return the error for a layer without a derived step."""
        return UnsupportedNetworkError(f"{self.layer}: no step for {self.type}: {reason}")


@dataclasses.dataclass
class Call:
    """Arguments of an operation in a step: the number of rows, and the state of loops.

    Attributes:
      rows: times in this call.
      state: before the call, by name.
      changed: after the call; other entries are unchanged.
    """

    rows: int
    state: dict[str, tf.Tensor]
    changed: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)


Run = Callable[[list[list[tf.Tensor]], Call], list[tf.Tensor]]


@dataclasses.dataclass
class Part:
    """The execution of an operation in a step.

    Attributes:
      kinds: of the outputs.
      run: from the inputs, each as a list with a tensor per delay, to the outputs.
      delays: of every input that is a stream, by its index, in steps; by default (0,).
      loop: of a recurrent layer, its `Body`, for the initial state.
      is_alias: whether the rows are those of the first input, at the same times.
    """

    kinds: list[Kind]
    run: Run | None
    delays: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    loop: Any = None
    is_alias: bool = False


def moving_axes(short: tf.Tensor, long: tf.Tensor) -> list[int]:
    """Return the axes in which the shapes of a tensor differ between two lengths."""
    if short.shape.rank is None or long.shape.rank is None:
        return []
    sizes = zip(short.shape.as_list(), long.shape.as_list(), strict=True)
    return [axis for axis, (one, other) in enumerate(sizes) if one != other]
