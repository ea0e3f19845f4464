"""The past that every operation of a graph needs, and how many steps back."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from onepass.step import indexing, loops, time_rules
from onepass.step.attention import concerns, pairs
from onepass.step.replay import (
    captures_by_name,
    entries,
    operations_for,
    run_graph,
    same,
    static_value,
    values_by_name,
)
from onepass.step.rules import RULES
from onepass.step.streams import (
    ENDLESS,
    Groups,
    Keys,
    Kind,
    LengthDependenceError,
    Mask,
    Node,
    NotCausalError,
    Part,
    Refused,
    Stream,
    Table,
    TableRead,
    Turned,
    UnsupportedNetworkError,
)
from onepass.step.tracing import (
    SHAPES,
    dependent,
    draws,
    first_difference,
    layer_of,
    match_operations,
)


class Analysis:
    """The operations of a step, and the past rows that it keeps.

    Attributes:
      parts: the operations of a step in order, each with its `Part`.
      fixed: tensors read in a step that depend only on arguments without a time axis, by name.
      memory: number of past rows to keep of each tensor that a step reads at a delay, by name.
      groups: the groups of tensors with an entry per pair of time steps, such as attention scores.
      lag: number of the output's rows before time step 0, by which a step delays its output.
      clocks: the period and phase at which a step runs an operation, by its name.
    """

    def __init__(
        self,
        graphs: Sequence[tf.Graph],
        lengths: tuple[int, int],
        temporal: Sequence[bool],
        names: frozenset[str],
    ) -> None:
        self.graphs, self.lengths, self._names = graphs, lengths, names
        self.inputs = [tensor.name for tensor in graphs[0].inputs[: len(temporal)]]
        self.timed = [index for index, has_time in enumerate(temporal) if has_time]
        self._dynamic = set(dependent(graphs[0], self.timed))
        self._dynamic.update(graphs[0].inputs[index].op for index in self.timed)
        fixed = [index for index, has_time in enumerate(temporal) if not has_time]
        self._fixed = set(dependent(graphs[0], fixed)) - self._dynamic
        self._fixed.update(graphs[0].inputs[index].op for index in fixed)
        self.tensors = {x.name: x for op in graphs[0].get_operations() for x in op.outputs}
        start: list[Kind] = [Stream(1, 0, 0) if has_time else None for has_time in temporal]
        turned: frozenset[str] = frozenset()
        while True:
            self.kinds: dict[str, Kind] = dict(zip(self.inputs, start, strict=True))
            self.parts: list[tuple[tf.Operation, Part]] = []
            self.fixed: dict[str, tf.Tensor] = {}
            self.memory: dict[str, int] = {}
            self.roots: dict[str, str] = {}
            self.clocks: dict[str, tuple[int, int]] = {}
            self.groups = Groups(turned)
            try:
                for op, longer in self._pairs():
                    self._add(op, longer)
                break
            except Turned as sign:
                turned |= {sign.group}
        self._check_output()
        self.memory = {name: rows for name, rows in self.memory.items() if rows}

    def root(self, name: str) -> str:
        """Return the name under which a tensor's rows are kept; equal rows are kept once."""
        return self.roots.get(name, name)

    def stream(self, name: str) -> Stream:
        """Return the stream of a tensor, which has a time axis."""
        return cast(Stream, self.kinds[name])

    def layer(self, op: tf.Operation) -> str:
        """Return the name of an operation's layer."""
        return layer_of(op.name, self._names)

    def sources(self, op: tf.Operation) -> list[tf.Tensor]:
        """Return the tensors an operation reads, which may stand for several in the graph."""
        whole = _whole(op)
        return whole.sources if whole else list(op.inputs)

    def _pairs(self) -> Iterator[tuple[tf.Operation, tf.Operation]]:
        short, long = (operations_for(graph.outputs) for graph in self.graphs)
        first = first_difference(short, long)
        if first is not None:
            raise UnsupportedNetworkError(
                f"{self.layer(first)} has different operations for a longer input, like"
                " a Python loop over time; no step can be derived from it"
            )
        wholes = [whole for op in short if (whole := _whole(op))]
        inside = {op for whole in wholes for op in whole.inside}
        yield from (pair for pair in zip(short, long, strict=True) if pair[0] not in inside)

    def _add(self, op: tf.Operation, longer: tf.Operation) -> None:
        if op.type == "Placeholder":
            return
        tensors = self.sources(op)
        kinds = [self.kinds.get(tensor.name) for tensor in tensors]
        static = frozenset(i for i, x in enumerate(tensors) if x.op not in self._dynamic)
        node = Node(op, longer, self.lengths, kinds, self.layer, static)
        part = self._part(node)
        self.kinds.update(zip((x.name for x in op.outputs), part.kinds, strict=True))
        if op in self._fixed and not any(part.kinds):
            return  # it is computed once, with the first state
        if part.run is not None:  # a tensor without a value is refused where it is read
            self.parts.append((op, part))
            for index, tensor in enumerate(tensors):
                if index not in part.tables and tensor.op in self._fixed:
                    self.fixed[tensor.name] = tensor
        if part.is_alias:
            self.roots[op.outputs[0].name] = self.root(tensors[0].name)
        timed = (kind for kind in (*part.kinds, *kinds) if isinstance(kind, Stream))
        clock = next(((kind.period, kind.phase) for kind in timed), (1, 0))
        self.clocks[op.name] = clock
        for index, tensor in enumerate(tensors):
            kind, delays = kinds[index], part.delays.get(index, (0,))
            if isinstance(kind, Stream) and index not in part.tables:
                # At other times than its own, the latest row of a lower rate is read.
                held = int(kind.period > 1 and (kind.period, kind.phase) != clock)
                name = self.root(tensor.name)
                self.memory[name] = max(self.memory.get(name, 0), max(delays) + held)

    def _part(self, node: Node) -> Part:
        op = node.op
        if draws(op):
            text = "draws random numbers of its own; call it without dropout or noise"
            raise NotCausalError(f"{node.layer} {text}")
        grows = any(node.moving(i) for i in range(node.num_outputs))
        is_list = op.type.startswith("TensorList") and bool(node.streams())
        if op not in self._dynamic and op.type not in loops.LOOPS and not is_list:
            return self._static(node) if grows else self._constant(node)
        if op.type == "BatchToSpaceND" and any(node.kinds):
            short, long = (time_rules.Dilated.ending_at(x) for x in (op, node.longer))
            if short is None or long is None:
                raise node.unsupported_error("it does not end a dilated convolution")
            return time_rules.dilated_convolution(node, short, long)
        if op.type in indexing.INDEXED and (whole := indexing.Indexed.ending_at(op)):
            return indexing.index_part(node, whole)
        if concerns(node):
            if any(stream.period > 1 for stream in node.streams()):
                raise node.unsupported_error("it attends at a lower rate of time")
            return pairs(node, self.groups)
        tables = {i: kind for i, kind in enumerate(node.kinds) if isinstance(kind, Table)}
        for index, kind in tables.items():
            node.kinds[index] = Stream(kind.axes[0], 0, ENDLESS)
        if not node.streams() and op.type not in loops.LOOPS:
            return time_rules.still(node) if grows else self._constant(node)
        part = _apply_rule(node)
        for index, kind in tables.items():
            delays = part.delays.get(index, (0,))
            if len(delays) > 1:
                raise node.unsupported_error("it reads a table of positions at several delays")
            part.tables[index] = TableRead(kind.axes[0], None, delays[0])
        return part

    def _static(self, node: Node) -> Part:
        """Return how a step gets a tensor that grows with the length but ignores the sequence."""
        if not any(isinstance(kind, Table) for kind in node.kinds):
            try:
                if not node.streams() or node.type in SHAPES:
                    return time_rules.still(node)
                if node.type in RULES:
                    return _apply_rule(node)
            except UnsupportedNetworkError:
                pass  # its rows differ from each other
        refused = Refused(str(node.length_error()), LengthDependenceError)
        axes = [node.moving(i) for i in range(node.num_outputs)]
        return Part([Table(tuple(each)) if each else refused for each in axes], None)

    def _constant(self, node: Node) -> Part:
        """Return how a step runs an operation whose output depends on neither length nor input."""
        outputs = node.op.outputs
        if not any(node.kinds) and node.type != "Const":
            return Part([None] * len(outputs), time_rules.replay_operation(node))
        short, long = ([static_value(x) for x in op.outputs] for op in (node.op, node.longer))
        if all(same(x, y) for x, y in zip(short, long, strict=True)):
            known = list(zip(short, outputs, strict=True))
            constants: list[Kind] = [None] * len(known)
            return Part(constants, lambda inputs, call: [tf.constant(x, y.dtype) for x, y in known])
        if node.type in time_rules.LIKE:
            make = tf.zeros if node.type == "ZerosLike" else tf.ones
            return Part([None], lambda inputs, call: [make(outputs[0].shape, outputs[0].dtype)])
        refused = [kind for kind in node.kinds if isinstance(kind, Refused)]
        refused += [Refused(str(node.length_error()), LengthDependenceError)]
        return Part([refused[0]] * len(outputs), None)

    def _check_output(self) -> None:
        output = self.graphs[0].outputs[0]
        kind, layer = self.kinds.get(output.name), self.layer(output.op)
        if isinstance(kind, Refused):
            raise kind.error()
        if kind is None or isinstance(kind, Table):
            raise UnsupportedNetworkError("the output does not depend on the input")
        if not isinstance(kind, Stream):
            raise UnsupportedNetworkError(f"{layer} gives the output two axes that grow with time")
        if kind.axis != 1 or kind.is_merged:
            raise UnsupportedNetworkError(
                f"{kind.merged_by or layer} gives the output a rate or order other than [batch,"
                f" time, parameters]: for {self.lengths[0]} inputs it has shape {output.shape}"
            )
        offset, texts = kind.offset or 0, " and ".join(kind.ahead or (layer,))
        if output.shape[1] != self.lengths[0]:
            raise UnsupportedNetworkError(
                f"{texts}: the output must be as long as the input, for {self.lengths[0]} inputs it"
                f" has shape {output.shape}"
            )
        if offset < 0:
            raise NotCausalError(f"{texts}: output t depends on input t + {-offset}", -offset)
        if kind.end < -offset:
            raise NotCausalError(f"{texts}: the last outputs consist of padding")
        root = self.root(output.name)
        self.memory[root] = max(self.memory.get(root, 0), offset)
        self.lag = offset


def _whole(op: tf.Operation) -> time_rules.Dilated | indexing.Indexed | None:
    """Return several operations that count as the one that ends them; None if it is alone."""
    if op.type == "BatchToSpaceND":
        return time_rules.Dilated.ending_at(op)
    return indexing.Indexed.ending_at(op) if op.type in indexing.INDEXED else None


def _apply_rule(node: Node) -> Part:
    if node.type not in RULES:
        node.refuse_kinds()
        raise node.unsupported_error("there is no rule for it; `rule` registers one")
    part = RULES[node.type](node)
    if not isinstance(part, Part):
        raise TypeError(f"the rule for {node.type} must return a Part, got {part!r}.")
    if len(part.kinds) != node.num_outputs:
        raise TypeError(
            f"the rule for {node.type} must have a kind for each of {node.num_outputs} outputs,"
            f" got {len(part.kinds)}."
        )
    return part


State = dict[str, tf.Tensor]
POSITION = "position"
EXTENT = "extent"  # name of an empty state entry [batch, horizon, 0], which only records the shape


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
            text = f"the network has different operations for {self.length} time steps"
            raise UnsupportedNetworkError(text)
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
        tensor, axes = self._far[op].inputs[index], read.axes
        size = min(tensor.shape[axis] for axis in axes)
        if size < self.length:
            raise too_long(self._analysis.layer(op), size, self.length)
        self._check_lookups(tensor)
        name = f"table/{op.inputs[index].name}/" + "".join(f"{axis}" for axis in axes)
        if name in self._learned:
            return Entry(name, read)
        varying = captures_by_name(self._graph).keys() | self._fixed_arguments()
        if any(x.name in varying for op in operations_for([tensor]) for x in op.outputs):
            self._learned[name] = tensor, read
            return Entry(name, read)
        values = _times_first(self._evaluate([tensor])[0], axes).numpy()
        is_band = len(axes) == 2 and bool((values[1:, 1:] == values[:-1, :-1]).all())
        if is_band:
            values = np.concatenate([values[:0:-1, 0], values[0]])
        for key, known in self._constants.items():
            if known.dtype == values.dtype and np.array_equal(known, values):
                return Entry(key, read, is_band)
        self._constants[name] = values
        return Entry(name, read, is_band)

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
        inputs = self._graph.inputs[: len(self._analysis.inputs)]
        values = values_by_name(self._graph, [tf.zeros(x.shape, x.dtype) for x in inputs])
        values |= zip(self._fixed_arguments(), fixed, strict=False)
        return run_graph(values, list(tensors))

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
            state[key] = _times_first(self._evaluate([tensor], fixed)[0], read.axes)
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
        order = [*read.axes, *(i for i in range(rank) if i not in read.axes)]
        return tf.transpose(found, [order.index(i) for i in range(rank)])

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


def _times_first(values: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    return tf.transpose(values, [*axes, *(i for i in range(len(values.shape)) if i not in axes)])
