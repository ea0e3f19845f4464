"""The tables and attention windows of a step whose state has a horizon, a limited length."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from onepass.step.analysis import Analysis
from onepass.step.replay import captures_by_name, entries, operations_for, run_graph
from onepass.step.streams import Keys, Mask, Part, TableRead, UnsupportedNetworkError
from onepass.step.tracing import match_operations

State = dict[str, tf.Tensor]
POSITION = "position"
# Name of an empty state entry [batch, horizon, 0], which only records the shape.
EXTENT = "extent"


def horizon_of(state: State) -> int:
    """Return the horizon of a state, in time steps; 0: there is no limit."""
    return state[EXTENT].shape[1] if EXTENT in state else 0


def batch_of(state: State) -> int:
    """Return the batch size of a state that has a horizon."""
    return state[EXTENT].shape[0]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A table in the state of a step."""

    key: str
    read: TableRead
    # Whether only the table's diagonals are kept: [2 horizon - 1, ...], with the entry of query q
    # and key k at k - q + horizon - 1. Otherwise the time axes come first, query before key.
    is_band: bool = False


class Horizon:
    """The tables that a step reads, and the number of keys that it keeps.

    `windows` has the number of most recent keys that a query reads, by group of pairs, where it is
    at most half the horizon; `names` the number of rows kept as keys, by stream and state entry.
    """

    def __init__(self, analysis: Analysis, length: int, graph: tf.Graph | None) -> None:
        self.length, self._analysis, self._graph = length, analysis, graph or tf.Graph()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._learned: dict[str, tuple[tf.Tensor, TableRead]] = {}
        self._far = self._counterparts() if graph is not None else {}
        for op, part in analysis.parts:
            for index, read in part.tables.items():
                self._entries[op.name, index] = self._entry(op, index, read)
        self.windows = dict(self._windows())
        self.names = dict(self._keyed_caches())

    def _counterparts(self) -> dict[tf.Operation, tf.Operation]:
        first = self._analysis.graphs[0]
        found = match_operations(first, self._graph, self._analysis.timed)
        if found is None:
            raise UnsupportedNetworkError(
                f"the network has different operations for {self.length} time steps"
            )
        return found

    def _keyed_caches(self) -> Iterator[tuple[tuple[str, str], int]]:
        for op, part in self._analysis.parts:
            root = self._analysis.groups.root(part.group) if part.keys else ""
            for index in part.keys:
                name = self._analysis.sources(op)[index].name
                yield (name, self.keys_name(name, root)), self.windows.get(root, self.length)

    def keys_name(self, name: str, root: str) -> str:
        """Return the name of the state entry in which a stream's rows are keys of a group."""
        window = self.windows.get(root)
        return f"keys/{name}" + (f"/{window}" if window else "")

    def _entry(self, op: tf.Operation, index: int, read: TableRead) -> Entry:
        tensor = self._far[op].inputs[index]
        self._check_size(op, tensor, read)
        self._check_lookups(tensor)
        axes = [axis for axis in (read.query, read.key) if axis is not None]
        name = f"table/{op.inputs[index].name}/" + "".join(f"{axis}" for axis in axes)
        if name in self._learned:
            return Entry(name, read)
        varying = captures_by_name(self._graph).keys() | self._fixed_arguments()
        if any(each.name in varying for each in _placeholders(tensor)):
            self._learned[name] = tensor, read
            return Entry(name, read)
        values = _times_first(self._evaluate([tensor])[0].numpy(), axes)
        is_band = len(axes) == 2 and bool((values[1:, 1:] == values[:-1, :-1]).all())
        if is_band:
            values = np.concatenate([values[:0:-1, 0], values[0]])
        for key, known in self._constants.items():
            if known.dtype == values.dtype and np.array_equal(known, values):
                return Entry(key, read, is_band)
        self._constants[name] = values
        return Entry(name, read, is_band)

    def _check_size(self, op: tf.Operation, tensor: tf.Tensor, read: TableRead) -> None:
        sizes = [tensor.shape[axis] for axis in (read.query, read.key) if axis is not None]
        if min(sizes) < self.length:
            raise too_long(self._analysis.layer(op), min(sizes), self.length)

    def _check_lookups(self, tensor: tf.Tensor) -> None:
        for op in operations_for([tensor]):
            size = entries(op)
            if size is not None:
                largest = int(tf.reduce_max(self._evaluate([op.inputs[1]])[0]))
                if largest >= size:
                    raise too_long(self._analysis.layer(op), size, self.length)

    def _fixed_arguments(self) -> list[str]:
        analysis = self._analysis
        fixed = [i for i in range(len(analysis.inputs)) if i not in analysis.timed]
        return [self._graph.inputs[index].name for index in fixed]

    def _evaluate(
        self, tensors: Sequence[tf.Tensor], fixed: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Return the values of tensors that ignore the sequence, for zeros if `fixed` is empty."""
        graph = self._graph
        zeros = {x.name: x for x in graph.inputs[: len(self._analysis.inputs)]}
        given = dict(zip(self._fixed_arguments(), fixed, strict=False))

        fed = {name: tf.zeros(x.shape, x.dtype) for name, x in zeros.items()}
        return run_graph(captures_by_name(graph) | fed | given, list(tensors))

    def _windows(self) -> Iterator[tuple[str, int]]:
        groups = self._analysis.groups
        found: dict[str, int] = {}
        for group, masks in groups.softmaxes:
            reach = min((self._reach(mask) for mask in masks), default=self.length)
            root = groups.root(group)
            found[root] = max(found.get(root, 0), reach)
        unbounded = {groups.root(group) for group in groups.unbounded}
        for root, reach in found.items():
            if root not in unbounded and 2 * reach <= self.length:
                yield root, max(reach, 2)

    def _reach(self, mask: Mask) -> int:
        entry = self._entries[mask.operation, mask.index]
        if not entry.is_band:
            return self.length
        values = self._constants[entry.key]
        past = mask.hides(values)[self.length - 1 :: -1]  # ordered by distance from the query
        shown = ~past.reshape([self.length, -1]).all(1)
        return int(np.flatnonzero(shown)[-1]) + 1 if shown.any() else 1

    def tables(self, fixed: Sequence[tf.Tensor]) -> State:
        """Return the tables, by name; learned tables are computed from the current weights."""
        state: State = {key: tf.constant(values) for key, values in self._constants.items()}
        for key, (tensor, read) in self._learned.items():
            axes = [axis for axis in (read.query, read.key) if axis is not None]
            state[key] = _times_first(self._evaluate([tensor], fixed)[0], axes)
        return state

    def keys(self, group: str, rows: int, position: tf.Tensor) -> Keys:
        """Return the keys that `rows` queries read; the first query is at time step `position`."""
        window = self.windows.get(self._analysis.groups.root(group))
        if window is None:
            times = tf.range(self.length)
        elif rows == 1:  # time step t is in slot t modulo the window
            times = position - tf.math.floormod(position - tf.range(window), window)
        else:
            # In order of time; the first query also reads the window - 1 time steps before it.
            times = position - (window - 1) + tf.range(window - 1 + rows)
        queries = position + tf.range(rows)
        return Keys(times, queries[:, tf.newaxis] - times, window is not None)

    def read(
        self, op: tf.Operation, index: int, state: State, keys: Callable[[], Keys], rows: int
    ) -> tf.Tensor:
        """Return the entries of a table that an operation reads in a step."""
        entry, rank = self._entries[op.name, index], op.inputs[index].shape.rank
        table, read = state[entry.key], entry.read
        if entry.is_band:
            found = self._diagonals(table, keys(), rows)
        else:
            found = table
            if read.query is not None:
                first = tf.maximum(state[POSITION] - read.delay, 0)
                begin = tf.concat([[first], tf.zeros([rank - 1], tf.int32)], 0)
                found = tf.slice(table, begin, [rows, *table.shape[1:]])
                found.set_shape([rows, *table.shape[1:]])
            if read.key is not None and keys().is_window:
                times = tf.maximum(keys().times, 0)
                found = tf.gather(found, times, axis=0 if read.query is None else 1)
        return _times_back(found, [axis for axis in (read.query, read.key) if axis is not None])

    def _diagonals(self, table: tf.Tensor, keys: Keys, rows: int) -> tf.Tensor:
        """Return the entries [rows, keys, ...] of a table that is stored as its diagonals."""
        if rows > 1 or keys.is_window:
            at = self.length - 1 - keys.distances  # out of bounds before the first time step
            return tf.gather(table, tf.clip_by_value(at, 0, 2 * self.length - 2))
        first = self.length - 1 - keys.distances[0, 0]
        begin = tf.concat([[first], tf.zeros([table.shape.rank - 1], tf.int32)], 0)
        return tf.slice(table, begin, [self.length, *table.shape[1:]])[tf.newaxis]


def too_long(layer: str, positions: int, length: int) -> ValueError:
    """Return the error for a sequence that is longer than a layer's table of positions."""
    return ValueError(
        f"`length` must be at most {positions}, the positions that {layer} has, got {length}."
    )


def _placeholders(tensor: tf.Tensor) -> list[tf.Tensor]:
    return [op.outputs[0] for op in operations_for([tensor]) if op.type == "Placeholder"]


def _times_first(values: np.ndarray | tf.Tensor, axes: Sequence[int]) -> np.ndarray | tf.Tensor:
    order = [*axes, *(i for i in range(len(values.shape)) if i not in axes)]
    return (
        values.transpose(order) if isinstance(values, np.ndarray) else tf.transpose(values, order)
    )


def _times_back(values: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    order = [*axes, *(i for i in range(values.shape.rank) if i not in axes)]
    return tf.transpose(values, [order.index(i) for i in range(values.shape.rank)])


def parts_with_tables(parts: Sequence[tuple[tf.Operation, Part]]) -> bool:
    """Return whether any operation of a step reads a table."""
    return any(part.tables for _, part in parts)
