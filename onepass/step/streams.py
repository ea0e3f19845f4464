"""The role of time in a tensor: time axis, alignment, valid rows; and pairs of time steps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.step.replay import static_value

# `Stream.end` of a tensor whose rows are known for all later time steps.
ENDLESS = 1 << 40


class NotCausalError(ValueError):
    """Raised if outputs depend on later inputs or on the length of the sequence, or are random.

    Args:
      message: the fault, with the name of the layer if it is known.
      ahead: number of time steps by which outputs look ahead, as far as it is known.
    """

    def __init__(self, message: str, ahead: int = 0) -> None:
        super().__init__(message)
        self.ahead = ahead


class UnsupportedNetworkError(ValueError):
    """Raised if no step can be derived for a network, although it may be causal."""


class LengthDependenceError(UnsupportedNetworkError):
    """Raised if an operation differs with the length; for whole periods it may be the same."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """A tensor with a time axis; row `i` along it belongs to time step `i - offset`.

    At a lower rate, a time step of the tensor is a `period` of the network's time steps, and row
    `i` can be computed at time step `(i - offset) * period + phase`.

    Attributes:
      axis: the time axis, with `outer * rows * inner` entries in this order.
      offset: number of rows before time step 0; negative if rows of the first time steps are
        missing; None if all rows are equal.
      end: number of rows after the last time step that a longer input would not change; negative if
        rows of the last time steps are missing.
      outer, inner: sizes of the axes merged with time, before and after it.
      ahead: phrases that say how layers looked ahead, one per layer.
      merged_by: name of the layer that merged time with another axis, or "".
      period: number of the network's time steps between two rows.
      phase: time step within a period, from 0, at which a row can be computed.
    """

    axis: int
    offset: int | None
    end: int
    outer: int = 1
    inner: int = 1
    ahead: tuple[str, ...] = ()
    merged_by: str = ""
    period: int = 1
    phase: int = 0

    def decimate(self, factor: int) -> "Stream":
        """Return a stream whose row i can be computed as soon as row `factor * i` of this one."""
        period = self.period * factor
        if self.offset is None:
            return dataclasses.replace(self, period=period, phase=0)
        first = self.phase - self.offset * self.period  # the time of row 0
        offset = -(first // period)
        end = self.end if self.end >= ENDLESS else -(-(self.offset + self.end) // factor) - offset
        return dataclasses.replace(
            self, period=period, phase=first % period, offset=offset, end=end
        )

    def interleave(self, factor: int) -> "Stream":
        """Return a stream of which rows `factor * i` and after are computed from row i of this."""
        period = self.period // factor
        if self.offset is None:
            return dataclasses.replace(self, period=period, phase=0)
        ahead = self.phase // period  # rows of the new stream in which row i is not yet known
        offset, end = self.offset * factor - ahead, self.end
        end = end if end >= ENDLESS else end * factor + ahead
        return dataclasses.replace(
            self, period=period, phase=self.phase % period, offset=offset, end=end
        )

    @property
    def is_merged(self) -> bool:
        """True if another axis is merged with time, as in [batch * time, channels]."""
        return self.rows_per_time != 1

    @property
    def rows_per_time(self) -> int:
        """Number of entries of the axis per time step."""
        return self.outer * self.inner


@dataclasses.dataclass(frozen=True)
class Refused:
    """A tensor that is not available in a step, and the error message."""

    reason: str
    kind: type[UnsupportedNetworkError] = UnsupportedNetworkError

    def error(self) -> UnsupportedNetworkError:
        """Return the error to raise for an output that depends on the tensor."""
        return self.kind(self.reason)


@dataclasses.dataclass(frozen=True)
class Table:
    """A tensor that ignores the inputs and grows along `axes`, two for pairs: positions, masks."""

    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Mask:
    """A table over pairs of time steps that makes scores so low that their softmax is 0."""

    operation: str
    index: int
    hides: Callable[[np.ndarray], np.ndarray]  # from the table's values to where a pair is hidden


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A tensor with an entry per pair of query and key time steps, such as attention scores.

    Row i along either axis belongs to time step i. A step computes the rows of its time steps, for
    all keys so far.
    """

    query: int
    key: int
    group: str  # name of the operation that created the first tensor with these two axes
    outer: int = 1  # size of an axis merged into the query axis, before the time steps
    inner: int = 1  # size of an axis merged into the query axis, after the time steps
    masks: tuple[Mask, ...] = ()  # the masks that were applied and still hide pairs
    is_softmax: bool = False


Kind = Stream | Table | Pairs | Refused | None


class Node:
    """An operation, `op` and `longer`, traced for two `lengths` of the network's input.

    `kinds` has one for each input; None: independent of length and sequence. The inputs whose
    indices are in `static_inputs` do not depend on the sequence.
    """

    def __init__(
        self,
        op: tf.Operation,
        longer: tf.Operation,
        lengths: tuple[int, int],
        kinds: Sequence[Kind],
        layer_of: Callable[[tf.Operation], str],
        static_inputs: frozenset[int],
    ) -> None:
        self.op, self.longer = op, longer
        self.lengths, self.kinds, self._layer_of = lengths, list(kinds), layer_of
        self.static_inputs = static_inputs

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the operation."""
        return len(self.op.outputs)

    @property
    def layer(self) -> str:
        """Name of the operation's layer."""
        return self._layer_of(self.op)

    @property
    def type(self) -> str:
        """Name of the TensorFlow operation, such as "Conv2D"."""
        return self.op.type

    def streams(self) -> list[Stream]:
        """Return the kinds of the inputs that are streams."""
        return [kind for kind in self.kinds if isinstance(kind, Stream)]

    def only(self, index: int = 0) -> Stream:
        """Return the stream of an input; raise an error unless it is the only input that varies."""
        stream, others = self.kinds[index], self.kinds[:index] + self.kinds[index + 1 :]
        if isinstance(stream, Stream) and all(kind is None for kind in others):
            return stream
        self.refuse_kinds()
        raise self.unsupported_error("the sequence is not the input that its rule expects")

    def first(self, fault: str = "its input has no time axis") -> Stream:
        """Return the stream of the first input; if it is none, raise an error that says `fault`."""
        stream = self.kinds[0]
        if isinstance(stream, Stream):
            return stream
        self.refuse_kinds(but=[1])
        raise self.unsupported_error(fault)

    def refuse_kinds(self, but: Sequence[int] = ()) -> None:
        """Raise the error of the first refused input, except for the indices in `but`."""
        for i, kind in enumerate(self.kinds):
            if isinstance(kind, Refused) and i not in but:
                raise kind.error()

    def bounds(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of an input for both lengths; raise an error if it is not known."""
        values = [static_value(op.inputs[index]) for op in (self.op, self.longer)]
        if values[0] is None or values[1] is None:
            raise self.unsupported_error("an argument that must be constant is computed")
        return values[0], values[1]

    def static(self, index: int) -> np.ndarray:
        """Return the value of an input; raise an error unless it is the same at both lengths."""
        short, long = self.bounds(index)
        if not np.array_equal(short, long):
            raise self.length_error()
        return short

    def entry(self, index: int, position: int) -> int:
        """Return one entry of an input; raise an error unless it is the same at both lengths."""
        short, long = (int(value[position]) for value in self.bounds(index))
        if short != long:
            raise self.length_error()
        return short

    def moving(self, output: int) -> list[int]:
        """Return the axes of an output that grow with the length."""
        return moving_axes(self.op.outputs[output], self.longer.outputs[output])

    def derive_kind(self, output: int, like: Stream, **changes: Any) -> Kind:
        """Return the kind of an output: a stream aligned with `like`; `Refused` if no axis grows.

        Raises UnsupportedNetworkError if two axes grow, or by another number of rows.
        """
        axes = self.moving(output)
        if not axes:
            if self.type in ("Slice", "StridedSlice"):
                return Refused(f"{self.layer} reads fixed time steps")
            return Refused(f"{self.layer} reads all of the sequence at once ({self.type})")
        if len(axes) > 1:
            raise self.unsupported_error("two axes of its output grow with time")
        stream = dataclasses.replace(like, axis=axes[0], **changes)
        inputs = (kind for kind in self.streams() if kind.period == stream.period)
        latest = max((kind.phase for kind in inputs), default=0)
        stream = dataclasses.replace(stream, phase=max(stream.phase, latest))
        self._check_rate(output, stream)
        if stream.offset is None:
            return stream
        size = self.op.outputs[output].shape[stream.axis]
        rows = self.lengths[0] // stream.period
        after = size // stream.rows_per_time - rows - stream.offset
        return dataclasses.replace(stream, end=min(stream.end, after))

    def _check_rate(self, output: int, stream: Stream) -> None:
        short, long = (op.outputs[output].shape[stream.axis] for op in (self.op, self.longer))
        growth = self.lengths[1] - self.lengths[0]
        if (long - short) * stream.period != growth * stream.rows_per_time:
            raise LengthDependenceError(
                f"{self.layer} changes the rate of time ({self.type}): {growth} more inputs give "
                f"{(long - short) // stream.rows_per_time} more rows"
            )

    def refusal_error(self, reason: str) -> UnsupportedNetworkError:
        """Return the error for a layer whose rows a step cannot compute from the rows before."""
        return UnsupportedNetworkError(f"{self.layer} {reason}")

    def length_error(self) -> LengthDependenceError:
        """Return the error for a layer that treats sequences of different lengths differently."""
        return LengthDependenceError(f"{self.layer} depends on the length of its input")

    def unsupported_error(self, reason: str) -> UnsupportedNetworkError:
        """Return the error for a layer without a derived step."""
        return UnsupportedNetworkError(f"{self.layer}: no step for {self.type}: {reason}")


@dataclasses.dataclass(frozen=True)
class Keys:
    """The key time steps of a group of pairs in one step."""

    times: tf.Tensor  # int32 [count], time step of every key; negative before the first
    distances: tf.Tensor  # int32 [rows, count], query time step minus key time step
    is_window: bool  # there are keys for the last time steps alone, not the whole horizon

    @property
    def count(self) -> int:
        """Number of entries of the key axis."""
        return self.times.shape[0]


@dataclasses.dataclass
class Call:
    """The context in which a step runs an operation, and its changes of the state."""

    rows: int
    position: tf.Tensor  # int32, the time step of the first row
    state: dict[str, tf.Tensor]
    keys: Callable[[str], Keys]  # those that queries of a group read
    changed: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)  # what it changes


@dataclasses.dataclass(frozen=True)
class TableRead:
    """The way in which an operation reads a table in a step."""

    query: int | None  # axis along which entries of the step's time steps are read
    key: int | None = None  # axis along which entries of all keys' time steps are read
    delay: int = 0  # time steps by which the rows that are read precede the step's

    @property
    def axes(self) -> list[int]:
        """The axes of time, that of queries first."""
        return [axis for axis in (self.query, self.key) if axis is not None]


@dataclasses.dataclass(frozen=True)
class Start:
    """The state of a stateful operation before the first time step."""

    needs: tuple[tf.Tensor, ...]  # their values for zero inputs make the state
    # Function from these values, and a function that evaluates other tensors, to the entries of the
    # state by name.
    states: Callable[[list[tf.Tensor], Callable], dict[str, tf.Tensor]]


Run = Callable[[list[list[tf.Tensor]], Call], list[tf.Tensor]]


@dataclasses.dataclass
class Part:
    """The way in which a step runs an operation.

    Attributes:
      kinds: kind of each output.
      run: function from the inputs, each a list with one tensor per delay, and a `Call`, to the
        outputs; None if the outputs have no value in a step.
      delays: delays in time steps at which an input is read, by index of the input; (0,) by
        default.
      start: the initial state of a stateful operation, such as a loop.
      is_alias: whether the output has the same rows as the first input, at the same time steps.
      tables: how each table among the inputs is read, by index of the input.
      keys: indices of the inputs whose time steps are keys; their rows so far are read.
      group: name of the group of pairs that the operation reads or creates.
    """

    kinds: list[Kind]
    run: Run | None
    delays: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    start: Start | None = None
    is_alias: bool = False
    tables: dict[int, TableRead] = dataclasses.field(default_factory=dict)
    keys: frozenset[int] = frozenset()
    group: str = ""


def moving_axes(short: tf.Tensor, long: tf.Tensor) -> list[int]:
    """Return the axes whose size differs between a tensor's shapes for two lengths."""
    if short.shape.rank is None or long.shape.rank is None:
        return []
    sizes = zip(short.shape.as_list(), long.shape.as_list(), strict=True)
    return [axis for axis, (one, other) in enumerate(sizes) if one != other]


class Turned(Exception):  # noqa: N818, not an error: the analysis starts again
    """A signal that the second of two growing axes is the query axis, not the first."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@dataclasses.dataclass(frozen=True)
class Weights:
    """A tensor of pairs, such as attention weights, or a table that `layer` applies to values."""

    tensor: str
    query: int
    key: int
    layer: str


class Groups:
    """The groups of tensors of pairs in a graph, and what is known about them.

    In `turned` groups, the second growing axis is the query axis. `softmaxes` has the group and the
    masks of the scores of every softmax; no window suffices for groups in `unbounded`.
    """

    def __init__(self, turned: frozenset[str]) -> None:
        self.turned = turned
        self.softmaxes: list[tuple[str, tuple[Mask, ...]]] = []
        self.unbounded: set[str] = set()
        self.weights: list[Weights] = []
        self._parents: dict[str, str] = {}

    def axes(self, group: str, first: int, second: int) -> tuple[int, int]:
        """Return a new group's query axis and key axis, given its two growing axes in order."""
        self._parents.setdefault(group, group)
        return (second, first) if group in self.turned else (first, second)

    def root(self, group: str) -> str:
        """Return the name that represents all groups merged with this one."""
        while self._parents[group] != group:
            group = self._parents[group]
        return group

    def join(self, first: str, second: str) -> None:
        """Merge two groups whose pairs have the same keys."""
        self._parents[self.root(second)] = self.root(first)
