"""Loops over time: rules for recurrent layers, and Python loops that are rolled up.

A Python loop has operations for each time step, so that no two lengths have the same graph. A
`Pack` of as many tensors as there are time steps, computed alike from the rows of other tensors,
becomes a `tf.map_fn` over these rows.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.step.replay import (
    LOOPS,
    called_graph,
    move_axis,
    run_graph,
    run_op,
    same,
    source_of,
    static_value,
    values_by_name,
)
from onepass.step.rules import rule
from onepass.step.streams import Call, Kind, Node, Part, Refused, Start, Stream
from onepass.step.time_rules import align_streams, alignment
from onepass.step.tracing import draws, graph_of, specs_of

ADDITIONS = ("Add", "AddV2")


@rule("TensorListFromTensor")
def _list_of_rows(node: Node) -> Part:
    stream = node.only()
    if stream.axis != 0 or stream.is_merged:
        raise node.unsupported_error("time must be the first axis of a tensor that becomes a list")
    return Part([stream], lambda inputs, call: [inputs[0][0]], is_alias=True)


@rule("TensorListStack")
def _stacked_list(node: Node) -> Part:
    stream = node.first("its list was not written by a loop over time")
    return Part([node.derive_kind(0, stream)], lambda inputs, call: [inputs[0][0]])


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of a loop over time, whose graph maps the loop's variables to their next values.

    Indices of variables: `counters` count iterations, `reads` and `writes` are lists of input and
    output rows, and `states` carry values from one time step to the next.
    """

    name: str
    graph: tf.Graph
    counters: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    states: tuple[int, ...]

    def key(self, index: int) -> str:
        """Return the name of a variable in the step's state."""
        return f"{self.name}:{index}"

    def iterate(
        self, fixed: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], states: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return results and states of one iteration; of `fixed`, only other variables count."""
        variables = list(fixed)
        for index, state in zip(self.states, states, strict=True):
            variables[index] = state
        values = {
            tensor.name: variable
            for i, (tensor, variable) in enumerate(zip(self.graph.inputs, variables, strict=True))
            if i not in self.counters + self.reads + self.writes
        }
        for index, row in zip(self.reads, rows, strict=True):
            for op in self.graph.inputs[index].consumers():
                if op.type == "TensorListGetItem":
                    values[op.outputs[0].name] = row
        fetches = [_written_tensor(self.graph, index) for index in self.writes]
        fetches += [self.graph.outputs[index] for index in self.states]
        outputs = run_graph(values, fetches)
        return outputs[: len(self.writes)], outputs[len(self.writes) :]

    def scan(
        self, fixed: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], states: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Run n iterations on `rows` [n, ...]; return the results [n, ...] and the last states."""
        count = rows[0].shape[0]
        if count == 1:
            results, states = self.iterate(fixed, [row[0] for row in rows], states)
            return [result[tf.newaxis] for result in results], states

        def body(
            index: tf.Tensor, states: list[tf.Tensor], written: list[tf.TensorArray]
        ) -> tuple[Any, ...]:
            results, states = self.iterate(fixed, [row[index] for row in rows], states)
            pairs = zip(written, results, strict=True)
            return index + 1, states, [array.write(index, result) for array, result in pairs]

        written = [
            tf.TensorArray(tensor.dtype, count, element_shape=tensor.shape)
            for tensor in (_written_tensor(self.graph, index) for index in self.writes)
        ]
        _, states, written = tf.while_loop(
            lambda index, *_: index < count, body, (0, list(states), written)
        )
        return [array.stack() for array in written], states


@rule(*LOOPS)
def loop(node: Node) -> Part:
    """Return how a step runs a `tf.while_loop` over time (Keras' recurrent layers, `tf.scan`)."""
    body = _body(node)
    streams = [
        kind for i, kind in enumerate(node.kinds) if i in body.reads and isinstance(kind, Stream)
    ]
    # Rows that are equal at all time steps have no delay.
    offsets = {stream.offset for stream in streams if stream.offset is not None}
    if not offsets:
        raise node.unsupported_error("all rows that it reads are equal")
    if min(offsets) < 0:
        raise node.unsupported_error("the first time steps were dropped before it")
    offset, end, ahead = align_streams(node, streams)
    phase = max(stream.phase for stream in streams)
    stream = Stream(0, offset, end, ahead=ahead, period=streams[0].period, phase=phase)
    every = alignment(node, offset)
    delays = {index: every[index] for index in body.reads if index in every}
    kinds: list[Kind] = [stream if i in body.writes else None for i in range(len(node.kinds))]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        fixed = [given[0] for given in inputs]
        states = [call.state[body.key(index)] for index in body.states]
        rows = [fixed[index] for index in body.reads]
        results, states = body.scan(fixed, rows, states)
        call.changed |= {body.key(i): s for i, s in zip(body.states, states, strict=True)}
        outputs = list(fixed)
        for index, result in zip(body.writes, results, strict=True):
            outputs[index] = result
        return outputs

    return Part(kinds, run, delays, start=_start(node, body, offset or 0))


def _start(node: Node, body: Body, offset: int) -> Start:
    def states(values: list[tf.Tensor], whole: Callable) -> dict[str, tf.Tensor]:
        carried = [values[index] for index in body.states]
        if offset:
            rows = [whole(_tensor_of_list(node.op.inputs[index]))[:offset] for index in body.reads]
            _, carried = body.scan(values, rows, carried)
        return {body.key(i): state for i, state in zip(body.states, carried, strict=True)}

    return Start(tuple(node.op.inputs), states)


def _tensor_of_list(rows: tf.Tensor) -> tf.Tensor:
    while rows.op.type in ("Identity", "TensorListFromTensor"):
        rows = rows.op.inputs[0]
    return rows


def _body(node: Node) -> Body:
    graph = called_graph(node.op, "body")
    found: dict[str, list[int]] = {"counters": [], "reads": [], "writes": [], "states": []}
    for index, (inner, outer) in enumerate(zip(graph.inputs, graph.outputs, strict=True)):
        source = source_of(outer)
        if source.name == inner.name:
            if isinstance(node.kinds[index], Stream):
                found["reads"].append(index)
        elif source.op.type == "TensorListSetItem":
            found["writes"].append(index)
        elif _counts(source, inner):
            found["counters"].append(index)
        else:
            found["states"].append(index)
    body = Body(node.op.name, graph, **{name: tuple(indices) for name, indices in found.items()})
    if not body.reads:
        raise node.unsupported_error("it reads no list of the sequence's rows")
    _check_use(node, body)
    for index, kind in enumerate(node.kinds):
        readers, output = graph.inputs[index].consumers(), graph.outputs[index].name
        used = index in body.states or any(op.outputs[0].name != output for op in readers)
        if isinstance(kind, Refused) and used and index not in body.writes + body.counters:
            raise kind.error()
    return body


def _check_use(node: Node, body: Body) -> None:
    counters = {body.graph.inputs[index].name for index in body.counters}
    for index in body.reads:
        consumers = [op for op in body.graph.inputs[index].consumers() if op.type != "Identity"]
        at_counter = all(source_of(op.inputs[1]).name in counters for op in consumers)
        if not at_counter or any(op.type != "TensorListGetItem" for op in consumers):
            raise node.unsupported_error("it does not read the sequence in order")
    for index in body.writes:
        written = source_of(body.graph.outputs[index]).op
        if source_of(written.inputs[1]).name not in counters:
            raise node.unsupported_error("it does not write its results in order")
    for index in body.counters:
        for op in body.graph.inputs[index].consumers():
            if op.type not in ("TensorListGetItem", "TensorListSetItem", "Identity", *ADDITIONS):
                raise node.unsupported_error("it depends on the position in the sequence")


def _written_tensor(graph: tf.Graph, index: int) -> tf.Tensor:
    return source_of(graph.outputs[index]).op.inputs[2]


def _counts(source: tf.Tensor, variable: tf.Tensor) -> bool:
    if source.op.type not in ADDITIONS or not source.dtype.is_integer or source.shape.rank != 0:
        return False
    terms = [source_of(tensor) for tensor in source.op.inputs]
    others = [term for term in terms if term.name != variable.name]
    return len(others) == 1 and static_value(others[0]) == 1


class _Rows(NamedTuple):
    """The rows of a tensor, given by its name, along an axis, one for each time step."""

    source: str
    axis: int


class _Alike(NamedTuple):
    """An output of operations alike in all time steps; `tensor` is that of the first one.

    It is computed from `rows`, and from tensors outside of the loop that `reads` names.
    """

    tensor: tf.Tensor
    inputs: tuple
    rows: frozenset[_Rows]
    reads: frozenset[str]


class _Different(Exception):  # noqa: N818, not an error: the operations stay as they are
    """A signal that the time steps are not computed alike."""


class Rolled:
    """A network whose loops over time are rolled up."""

    def __init__(self, function: Callable) -> None:
        self._function = function

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the network's output, for a static length."""
        graph = graph_of(self._function, specs_of(arguments)).graph
        known = values_by_name(graph, arguments)
        loops = _Loops(graph, arguments[0].shape[1])
        for op in loops.operations(known):
            if op in loops.found:
                known[op.outputs[0].name] = _map_over_rows(op, loops.found[op], known)
            else:
                made = run_op(op, [known[x.name] for x in op.inputs], scope="")
                known.update(zip((x.name for x in op.outputs), made, strict=True))
        return known[graph.outputs[0].name]


class _Loops:
    def __init__(self, graph: tf.Graph, length: int) -> None:
        self._graph = graph
        self.found: dict[tf.Operation, _Alike | _Rows] = {}
        for op in graph.get_operations():
            if op.type == "Pack" and len(op.inputs) == length > 1:
                try:
                    alike = _match_steps(tuple(op.inputs), {})
                except _Different:
                    continue
                if not isinstance(alike, tf.Tensor):
                    self.found[op] = alike

    def operations(self, known: dict[str, tf.Tensor]) -> list[tf.Operation]:
        found, waiting = set(), [x.op for x in self._graph.outputs if x.name not in known]
        while waiting:
            op = waiting.pop()
            if op not in found:
                found.add(op)
                names = _reads(self.found[op]) if op in self.found else {x.name for x in op.inputs}
                tensors = (self._graph.get_tensor_by_name(name) for name in names - known.keys())
                waiting.extend(tensor.op for tensor in tensors)
        return [op for op in self._graph.get_operations() if op in found]


def _reads(part: _Alike | _Rows | tf.Tensor) -> frozenset[str]:
    if isinstance(part, _Alike):
        return part.reads
    return frozenset([part.source if isinstance(part, _Rows) else part.name])


def _map_over_rows(
    pack: tf.Operation, part: _Alike | _Rows, known: dict[str, tf.Tensor]
) -> tf.Tensor:
    rows = sorted(_rows(part))
    given = [move_axis(known[each.source], each.axis, 0) for each in rows]

    def one(values: Sequence[tf.Tensor]) -> tf.Tensor:
        of_rows = dict(zip(rows, values, strict=True))
        return _value(part, of_rows, known, {})

    spec = tf.TensorSpec(pack.inputs[0].shape, pack.outputs[0].dtype)
    made = tf.map_fn(one, given, fn_output_signature=spec)
    return move_axis(made, 0, pack.get_attr("axis") % pack.outputs[0].shape.rank)


def _value(
    part: _Alike | _Rows | tf.Tensor,
    of_rows: dict[_Rows, tf.Tensor],
    known: dict[str, tf.Tensor],
    made: dict[str, tf.Tensor],
) -> tf.Tensor:
    if isinstance(part, _Rows):
        return of_rows[part]
    if not isinstance(part, _Alike):
        return known[part.name]
    if part.tensor.name not in made:
        inputs = [_value(each, of_rows, known, made) for each in part.inputs]
        outputs = run_op(part.tensor.op, inputs, scope="")
        made.update(zip((x.name for x in part.tensor.op.outputs), outputs, strict=True))
    return made[part.tensor.name]


def _rows(part: _Alike | _Rows | tf.Tensor) -> frozenset[_Rows]:
    if isinstance(part, _Alike):
        return part.rows
    return frozenset([part] if isinstance(part, _Rows) else [])


def _match_steps(
    tensors: tuple[tf.Tensor, ...], done: dict[str, tuple]
) -> "_Alike | _Rows | tf.Tensor":
    """Return how tensors, one for each time step, are computed; a tensor if they are all equal."""
    first = tensors[0]
    if first.name in done:
        before, part = done[first.name]
        if any(one.name != other.name for one, other in zip(before, tensors, strict=True)):
            raise _Different
        return part
    part = _alike(tensors, done)
    done[first.name] = tensors, part
    return part


def _alike(tensors: tuple[tf.Tensor, ...], done: dict[str, tuple]) -> _Alike | _Rows | tf.Tensor:
    first = tensors[0]
    if all(each.name == first.name for each in tensors):
        return first
    rows = _as_rows(tensors)
    if rows is not None:
        return rows
    if first.op.type == "Const":
        value = static_value(first)
        if not all(same(value, static_value(each)) for each in tensors):
            raise _Different
        return first
    attributes = _attributes(first.op)
    if draws(first.op) or not first.op.inputs:
        raise _Different
    for each in tensors[1:]:
        if each.value_index != first.value_index or _attributes(each.op) != attributes:
            raise _Different
    inputs = tuple(
        _match_steps(each, done) for each in zip(*(x.op.inputs for x in tensors), strict=True)
    )
    read = frozenset(name for each in inputs for name in _reads(each))
    every = frozenset(row for each in inputs for row in _rows(each))
    return _Alike(first, inputs, every, read) if every else first


def _attributes(op: tf.Operation) -> tuple:
    found = {key: x.SerializeToString() for key, x in op.node_def.attr.items() if key[0] != "_"}
    return op.type, len(op.inputs), tuple(sorted(found.items()))


def _as_rows(tensors: tuple[tf.Tensor, ...]) -> _Rows | None:
    ops = [each.op for each in tensors]
    if any(each.type not in ("Unpack", "StridedSlice") for each in ops):
        return None
    if len({(each.type, each.inputs[0].name) for each in ops}) > 1:
        return None
    source = ops[0].inputs[0]
    if ops[0].type == "Unpack":
        in_order = [each.value_index for each in tensors] == list(range(len(tensors)))
        axis = ops[0].get_attr("axis") % source.shape.rank
        is_whole = in_order and source.shape[axis] == len(tensors)
        return _Rows(source.name, axis) if is_whole else None
    axes = [_row_axis(op, number) for number, op in enumerate(ops)]
    axis = axes[0]
    if axis is None or len(set(axes)) > 1 or source.shape[axis] != len(tensors):
        return None
    return _Rows(source.name, axis)


def _row_axis(op: tf.Operation, number: int) -> int | None:
    begin, strides = (static_value(op.inputs[i]) for i in (1, 3))
    if begin is None or strides is None or np.any(strides != 1):
        return None
    if op.get_attr("new_axis_mask") or op.get_attr("ellipsis_mask"):
        return None
    shrunk = op.get_attr("shrink_axis_mask")
    whole = op.get_attr("begin_mask") & op.get_attr("end_mask")
    axes = [i for i in range(len(begin)) if shrunk >> i & 1]
    others = [i for i in range(len(begin)) if i not in axes and not whole >> i & 1]
    if len(axes) != 1 or others or begin[axes[0]] != number:
        return None
    return axes[0]
