"""Run a traced graph's operations inside another graph, or eagerly on given tensors.

Building and optimising a function that is called only once or twice takes longer than executing its
operations: with 24 layers, both together take a second, and execution a thirtieth of that.
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context, execute  # operations by name have no public name
from tensorflow.python.framework import function_def_to_graph  # it has no public name

_KEPT = "onepass/at_once"


class Prepared(NamedTuple):
    """Arguments for eager execution of an operation; `attributes` alternates names and values."""

    name: str
    outputs: int
    attributes: tuple
    constant: tf.Tensor | None


class Entry(NamedTuple):
    """An operation of a schedule."""

    op: tf.Operation
    inputs: list[str]
    outputs: list[str]
    last: list[str]  # names of the tensors that are neither fetched nor read by a later operation


def execute_operation(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of an operation for given inputs."""
    known = _cache_of(op.graph)
    if op.name not in known:
        dtype = op.outputs[0].dtype if op.outputs else None
        known[op.name] = prepare_operation(op.node_def, len(op.outputs), dtype)
    return execute_prepared(known[op.name], inputs)


def execute_prepared(found: Prepared, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of a prepared operation for given inputs."""
    if found.constant is not None:
        return [found.constant]
    name, count, attributes, _ = found
    return list(execute.execute(name, count, list(inputs), attributes, context.context()))


def _cache_of(graph: tf.Graph) -> dict:
    kept = graph.get_collection_ref(_KEPT)
    if not kept or kept[0] is not graph:  # a nested graph copies the collections of the outer one
        kept[:] = [graph, {}]
    return kept[1]


def prepare_operation(node: Any, outputs: int, dtype: tf.DType | None) -> Prepared:
    """Return what the eager execution of an operation needs."""
    if node.op == "Const":
        value = tf.make_ndarray(node.attr["value"].tensor)
        return Prepared(node.op, 1, (), tf.constant(value, dtype))
    named = [(name, _plain(value)) for name, value in node.attr.items() if name[0] != "_"]
    return Prepared(node.op, outputs, tuple(itertools.chain.from_iterable(named)), None)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        found = next((each for _, each in value.list.ListFields()), ())
        return [_of_kind(each) for each in found]
    return _of_kind(getattr(value, kind)) if kind else None


def _of_kind(value: Any) -> Any:
    if hasattr(value, "unknown_rank"):  # a shape
        return None if value.unknown_rank else [dim.size for dim in value.dim]
    return value.name if hasattr(value, "attr") else value  # function or number


def schedule(
    fetches: Sequence[tf.Tensor], known: Mapping[str, Any], needed: Any, assigns: bool
) -> list[Entry]:
    """Return the operations that compute `fetches`, in order; the result is cached."""
    names = tuple(tensor.name for tensor in fetches)
    found = _cache_of(fetches[0].graph)
    key = names, frozenset(known), assigns
    if key not in found:
        kept, entries = set(names), []
        for op in reversed(needed(fetches, known, assigns)):
            inputs = [tensor.name for tensor in op.inputs]
            outputs = [tensor.name for tensor in op.outputs]
            last = {name for name in (*inputs, *outputs) if name not in kept}
            kept |= last
            entries.append(Entry(op, inputs, outputs, sorted(last)))
        found[key] = entries[::-1]
    return found[key]


def types_of(names: str) -> frozenset[str]:
    """Return a set of names of operations, which are separated by spaces."""
    return frozenset(names.split())


ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "Add": operator.add,
    "AddV2": operator.add,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Identity": np.asarray,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Sub": operator.sub,
}
# Other operations that TensorFlow evaluates ahead of time.
FOLDED = types_of("""
    BroadcastTo Cast ConcatV2 Equal ExpandDims Fill GatherV2 Greater Less Max Min OnesLike Pack Prod
    Range Reshape SelectV2 Slice Squeeze StridedSlice Sum Tile Transpose Unpack ZerosLike
""")
_KNOWN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def static_value(tensor: tf.Tensor) -> np.ndarray | None:
    """Return a tensor's value if known in tracing, also by arithmetic on sizes; else None."""
    known = _KNOWN.setdefault(tensor.graph, {})
    if tensor.name not in known:
        value = tf.get_static_value(tensor)
        known[tensor.name] = _fold_arithmetic(tensor) if value is None else np.asarray(value)
    return known[tensor.name]


def forget(graph: tf.Graph) -> None:
    """Drop the cached values of a graph; they are recomputed when needed."""
    _KNOWN.pop(graph, None)


def _fold_arithmetic(tensor: tf.Tensor) -> np.ndarray | None:
    op = tensor.op
    if op.type not in ARITHMETIC and op.type not in FOLDED:
        return None
    inputs = [static_value(part) for part in op.inputs]
    if any(value is None for value in inputs):
        return None
    if op.type in ARITHMETIC:
        return np.asarray(ARITHMETIC[op.type](*inputs), tensor.dtype.as_numpy_dtype)
    with tf.init_scope():
        given = [tf.constant(x, part.dtype) for x, part in zip(inputs, op.inputs, strict=True)]
        return execute_operation(op, given)[tensor.value_index].numpy()


def same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Return whether both values are known and equal."""
    return first is not None and second is not None and np.array_equal(first, second)


Execute = Callable[[tf.Operation, Sequence[tf.Tensor]], list[tf.Tensor]]
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS = ("While", "StatelessWhile")
BRANCHING = (*LOOPS, "If", "StatelessIf", "Case", "StatelessCase")
_UNCHANGED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def run_op(
    op: tf.Operation,
    inputs: Sequence[tf.Tensor],
    scope: str | None = None,
    execute: Execute = execute_operation,
) -> list[tf.Tensor]:
    """Run an operation on other inputs, in the default graph or eagerly; return its outputs.

    `scope` is a prefix of the new operation's name; None: the name has no scopes, unlike those
    that TensorFlow gives the nodes of an inlined function.
    """
    if scope is None and (groups := _groups(op, inputs)) > 1:
        # Without XLA, not every processor has a kernel for grouped convolutions.
        parts = zip(*(tf.split(each, groups, -1) for each in inputs), strict=True)
        return [tf.concat([run_op(op, part, None, execute)[0] for part in parts], -1)]
    if tf.executing_eagerly():
        return execute(op, inputs)
    if op.type in LOOPS and (made := run_loop(op, inputs, scope)) is not None:
        return made
    graph = tf.compat.v1.get_default_graph()
    attrs: dict[str, Any] = {key: value for key, value in op.node_def.attr.items() if key[0] != "_"}
    for value in attrs.values():
        if value.HasField("func"):
            graph._add_function_recursive(op.graph._get_function(value.func.name))
    if op.type == "TensorListStack":
        count, shape = _list_shape(inputs[0])
        inputs = [inputs[0], inputs[1] if shape is None else tf.constant(shape)]
        if count is not None:
            attrs["num_elements"] = attr_value_pb2.AttrValue(i=count)
    dtypes = [output.dtype for output in op.outputs]
    name = op.name.split("/")[-1] if scope is None else scope + op.name
    return list(graph.create_op(op.type, list(inputs), dtypes, name=name, attrs=attrs).outputs)


def run_loop(
    op: tf.Operation, inputs: Sequence[tf.Tensor], scope: str | None
) -> list[tf.Tensor] | None:
    """Trace a loop anew for known shapes and return its outputs; None if nothing is gained."""
    body, condition = (called_graph(op, name) for name in ("body", "cond"))
    pairs = zip(inputs, body.inputs, strict=True)
    if not any(known.shape.is_fully_defined() > x.shape.is_fully_defined() for known, x in pairs):
        return None

    shapes = [_row_shape(rows) for rows in inputs]

    def run(graph: tf.Graph, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        known = dict(zip((tensor.name for tensor in graph.inputs), values, strict=True))
        for listed, shape in zip(graph.inputs, shapes, strict=True):
            for read in listed.consumers() if shape is not None else ():
                if read.type == "TensorListGetItem":
                    place = run_graph(known, [read.inputs[1]], scope)[0]
                    row = run_op(read, [known[listed.name], place, tf.constant(shape)], scope)
                    known[read.outputs[0].name] = row[0]
        # What an iteration only passes on stays recognisable as such.
        return run_graph(known, [source_of(tensor) for tensor in graph.outputs], scope)

    most = static_value(inputs[1]) if inputs[1].dtype.is_integer else None
    try:
        return list(
            tf.while_loop(
                lambda *values: run(condition, values)[0],
                lambda *values: run(body, values),
                list(inputs),
                parallel_iterations=op.get_attr("parallel_iterations"),
                maximum_iterations=int(most) if most is not None and most >= 0 else None,
                name=op.name.split("/")[-1] if scope is None else scope + op.name,
            )
        )
    except ValueError:
        return None


def _row_shape(rows: tf.Tensor) -> list[int] | None:
    if rows.dtype != tf.variant or rows.op.type != "TensorListFromTensor":
        return None
    shape = rows.op.inputs[0].shape[1:]
    return shape.as_list() if shape.is_fully_defined() else None


def _list_shape(rows: tf.Tensor) -> tuple[int | None, list[int] | None]:
    """Return the number of elements of a list and their shape, each None if it is unknown."""
    shape = None
    while rows.op.type in (*LOOPS, "Identity"):
        index = 0
        if rows.op.type in LOOPS:
            index = rows.value_index
            written = source_of(called_graph(rows.op, "body").outputs[index]).op
            if written.type == "TensorListSetItem" and written.inputs[2].shape.is_fully_defined():
                shape = written.inputs[2].shape.as_list()
        rows = rows.op.inputs[index]
    is_reserved = rows.op.type == "TensorListReserve"
    count = static_value(rows.op.inputs[1]) if is_reserved else None
    return None if count is None else int(count), shape


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor that a chain of Identity operations starts from."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _groups(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> int:
    if op.type != "Conv2D" or op.get_attr("data_format") != b"NHWC":
        return 1
    return inputs[0].shape[-1] // inputs[1].shape[2]


def called_graph(op: tf.Operation, attribute: str) -> tf.Graph:
    """Return the graph of a function that an operation calls, such as a loop's `body`."""
    return graph_named(op.graph, op.get_attr(attribute).name)


def graph_named(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a function that operations of a graph may call by its name."""
    found = graph._get_function(name)
    calls = (op for op in found.graph.get_operations() if op.type in BRANCHING)
    names = (value.func.name for op in calls for value in op.node_def.attr.values())
    return _original_graph(found) if any("_rewritten" in name for name in names) else found.graph


def _original_graph(found: Any) -> tf.Graph:
    made = _UNCHANGED.get(found.graph)
    if made is None:
        shapes = [tensor.shape for tensor in found.graph.inputs]
        with found.graph.as_default():
            made = function_def_to_graph.function_def_to_graph(found.cached_definition, shapes)
        for each in found.graph._functions.values():
            made._add_function_recursive(each)
        _UNCHANGED[found.graph] = made
    return made


def operations_for(
    fetches: Sequence[tf.Tensor], known: Container[str] = (), assigns: bool = False
) -> list[tf.Operation]:
    """Return the operations that compute `fetches`, in order; with assignments if `assigns`."""
    found, waiting = set(), [tensor.op for tensor in fetches if tensor.name not in known]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs if tensor.name not in known)
            before = op.control_inputs if assigns else ()
            waiting.extend(each for each in before if each.type.startswith("Assign"))
    graph = fetches[0].graph if fetches else None
    return [op for op in graph.get_operations() if op in found] if graph else []


def run_graph(
    values: Mapping[str, tf.Tensor],
    fetches: Sequence[tf.Tensor],
    scope: str | None = None,
    assigns: bool = False,
) -> list[tf.Tensor]:
    """Run a graph with calls inlined, in the default graph or eagerly; return the fetches."""
    known = dict(values)
    if not fetches:
        return []
    at_once = tf.executing_eagerly()
    for op, names, outputs, last in schedule(fetches, known, operations_for, assigns):
        inputs = [known[name] for name in names]
        if op.type in CALLS:
            body = called_graph(op, "f")
            inner = dict(zip((tensor.name for tensor in body.inputs), inputs, strict=True))
            inside = None if scope is None else f"{scope}{op.name}/"
            made = run_graph(inner, body.outputs, inside, assigns)
            outputs = [tensor.name for tensor in op.outputs]
            made = made[: len(outputs)]  # a differentiated function has more outputs
        else:
            made = run_op(op, inputs, scope)
        known.update(zip(outputs, made, strict=True))
        if at_once:
            del inputs, made
            for name in last:  # frees memory: long sequences have large activations
                del known[name]
    return [known[tensor.name] for tensor in fetches]


def captures_by_name(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Return the outer tensors that a graph captures, by the names of their placeholders."""
    return {inner.name: outer for outer, inner in graph.captures}


def values_by_name(graph: tf.Graph, arguments: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return what `captures_by_name` does, and arguments by the names of the first inputs."""
    names = (tensor.name for tensor in graph.inputs[: len(arguments)])
    return captures_by_name(graph) | dict(zip(names, arguments, strict=True))


def move_axis(values: tf.Tensor, source: int, target: int) -> tf.Tensor:
    """Return values with one axis moved, like `np.moveaxis`, for axes of at least 0."""
    order = [axis for axis in range(values.shape.rank) if axis != source]
    order.insert(target, source)
    return values if source == target else tf.transpose(values, order)


def inline_calls(
    function: tf.types.experimental.ConcreteFunction, specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Return a function's first output as one graph, with calls inlined and shapes inferred."""
    graph = function.graph

    def run(*arguments: tf.Tensor) -> tf.Tensor:
        values = values_by_name(graph, arguments)
        return run_graph(values, graph.outputs, scope="", assigns=True)[0]

    return tf.function(run, autograph=False).get_concrete_function(*specs)


def entries(op: tf.Operation) -> int | None:
    """Return the number of entries of the table that a lookup reads; None if unknown or no lookup.

    The operation may be any of a graph, such as a read of a variable through its handle.
    """
    if op.type == "GatherV2":
        axis = static_value(op.inputs[2])
        return None if axis is None else op.inputs[0].shape[int(axis)]
    if op.type != "ResourceGather":
        return None
    outside = captures_by_name(op.graph).get(op.inputs[0].name)
    data = getattr(outside, "_handle_data", None)
    sizes = data.shape_and_type[0].shape.dim if data else ()
    return sizes[0].size if sizes else None


def fits(graph: tf.Graph) -> bool:
    """Return whether every lookup with constant indices in a graph stays within its table."""
    for op in operations_for(graph.outputs):
        size = entries(op)
        chosen = None if size is None else static_value(op.inputs[1])
        if size is not None and chosen is not None and chosen.size and chosen.max() >= size:
            return False
    return True
