"""Roll up Python loops that compute every time step alike, such as that of `TimeDistributed`.

Such a loop has operations for each time step, so that no two lengths have the same graph. A `Pack`
of as many tensors as there are time steps, computed alike from the rows of other tensors, becomes a
`tf.map_fn` over these rows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from onepass.step.replay import captures_by_name, run_op
from onepass.step.sizes import same, static_value
from onepass.step.tracing import draws, graph_of, specs_of


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
        names = [tensor.name for tensor in graph.inputs[: len(arguments)]]
        known = captures_by_name(graph) | dict(zip(names, arguments, strict=True))
        loops = _Loops(graph, arguments[0].shape[1])
        for op in loops.operations(known):
            if op in loops.found:
                known[op.outputs[0].name] = _map_over_rows(op, loops.found[op], known)
            else:
                made = run_op(op, [known[x.name] for x in op.inputs], scope="")
                known.update(zip((x.name for x in op.outputs), made, strict=True))
        return known[graph.outputs[0].name]


class _Loops:
    """The loops over time in a graph."""

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
    given = [_time_first(known[each.source], each.axis) for each in rows]

    def one(values: Sequence[tf.Tensor]) -> tf.Tensor:
        of_rows = dict(zip(rows, values, strict=True))
        return _value(part, of_rows, known, {})

    spec = tf.TensorSpec(pack.inputs[0].shape, pack.outputs[0].dtype)
    made = tf.map_fn(one, given, fn_output_signature=spec)
    axis = pack.get_attr("axis") % pack.outputs[0].shape.rank
    order = list(range(1, made.shape.rank))
    order.insert(axis, 0)
    return tf.transpose(made, order)


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


def _time_first(values: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.transpose(values, [axis, *(i for i in range(values.shape.rank) if i != axis)])


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
