"""Rules for recurrent layers: loops over time, whose variables become part of a step's state."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.step.replay import LOOPS, called_graph, run_graph, source_of
from onepass.step.rowwise import align_streams, alignment
from onepass.step.rules import rule
from onepass.step.sizes import static_value
from onepass.step.streams import (
    Call,
    Kind,
    Node,
    Part,
    Refused,
    Start,
    Stream,
)

ADDITIONS = ("Add", "AddV2")


@rule("TensorListFromTensor")
def list_of_rows(node: Node) -> Part:
    """Return how a step runs TensorListFromTensor, which lists the rows of a time-major tensor."""
    stream = node.only()
    if stream.axis != 0 or stream.is_merged:
        raise node.unsupported_error("time must be the first axis of a tensor that becomes a list")
    return Part([stream], lambda inputs, call: [inputs[0][0]], is_alias=True)


@rule("TensorListStack")
def stacked_list(node: Node) -> Part:
    """Return how a step runs TensorListStack, which stacks a list written by a loop."""
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
            for op in _readers(self.graph.inputs[index]):
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
    stream = Stream(0, offset, end, ahead=ahead)
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
    """Return the loop's state before the first time step, after the `offset` rows before it."""

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
        used = index in body.states or _is_read(graph.inputs[index], graph.outputs[index])
        if isinstance(kind, Refused) and used and index not in body.writes + body.counters:
            raise kind.error()
    return body


def _is_read(variable: tf.Tensor, output: tf.Tensor) -> bool:
    return any(op.outputs[0].name != output.name for op in variable.consumers())


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


def _readers(rows: tf.Tensor) -> list[tf.Operation]:
    return [op for op in rows.consumers() if op.type == "TensorListGetItem"]


def _written_tensor(graph: tf.Graph, index: int) -> tf.Tensor:
    return source_of(graph.outputs[index]).op.inputs[2]


def _counts(source: tf.Tensor, variable: tf.Tensor) -> bool:
    if source.op.type not in ADDITIONS or not source.dtype.is_integer or source.shape.rank != 0:
        return False
    terms = [source_of(tensor) for tensor in source.op.inputs]
    others = [term for term in terms if term.name != variable.name]
    return len(others) == 1 and static_value(others[0]) == 1
