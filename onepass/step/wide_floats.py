"""Compute a network from its graph in float64, so that rounding neither hides nor feigns a fault.

Whether a network is causal is a property of its graph. Rounding is not: in bfloat16 a product has
another value in another batch, and a recurrent layer amplifies it. Every operation of the graph,
loops included, is executed on float64 numbers and on copies of the weights; where an operation has
no float64 kernel, 16-bit numbers become float32, and otherwise everything remains as it is.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # functions by name have no public interface

from onepass.step.replay import (
    Prepared,
    captures_by_name,
    execute_prepared,
    operations_for,
    prepare_operation,
    run_op,
    schedule,
)
from onepass.step.tracing import Traces, specs_of

ERRORS = (ValueError, TypeError, tf.errors.OpError)
HALVES = (tf.float16, tf.bfloat16)


class Precision(NamedTuple):
    """Floating-point types in which a graph is computed, and how far its outputs are rounded."""

    types: Mapping[tf.DType, tf.DType]
    relative: float  # the largest rounding of an output, relative to the output
    of_channel: float  # the largest rounding of an output, relative to the largest in its channel
    unit: float  # the distance between 1 and the next number


DOUBLE = Precision(
    dict.fromkeys((*HALVES, tf.float32), tf.float64) | {tf.complex64: tf.complex128},
    relative=1e-6,
    of_channel=1e-12,
    unit=2.0**-52,
)
SINGLE = Precision(dict.fromkeys(HALVES, tf.float32), 1e-3, 1e-5, 2.0**-23)
UNCHANGED = Precision({}, 5e-2, 5e-2, 2.0**-7)


class WideCalls:
    """A network computed from its graph in the widest floating-point types that it can take.

    Variables that are converted, or that the network assigns to, are copied once; assignments
    change the copies. `weights`, by the `id` of a handle, replace variables' own values. The first
    of `precisions` in which the network can be computed is used for all calls. All weights change
    at random by the relative size `shake`, to measure how rounding grows.
    """

    def __init__(
        self,
        call: Callable[..., tf.Tensor],
        weights: Mapping[int, Any] | None = None,
        precisions: Sequence[Precision] = (DOUBLE, SINGLE, UNCHANGED),
        shake: float = 0.0,
    ) -> None:
        self._call = call if isinstance(call, Traces) else Traces(call)
        self._weights, self._precisions = dict(weights or {}), list(precisions)
        self._shake, self._generator = shake, np.random.default_rng(0)
        self._begin()

    def _begin(self) -> None:
        self._outside: dict[int, tuple[Any, Any]] = {}  # by `id`: the original and its copy
        self._prepared: dict[tf.Graph, dict[str, Prepared]] = {}
        self._functions = _Functions(self.precision.types)

    @property
    def precision(self) -> Precision:
        """The types of the calls; known after the first call."""
        return self._precisions[0]

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the network's output for arguments, in the types of `precision`."""
        graph = self.graph(arguments)
        while True:
            try:
                return self._output(graph, arguments)
            except ERRORS:
                if len(self._precisions) == 1:
                    raise
                del self._precisions[0]
                self._begin()

    def graph(self, arguments: Sequence[tf.Tensor]) -> tf.Graph:
        """Return the network's graph for arguments."""
        return self._call.of(specs_of(arguments)).graph

    def _output(self, graph: tf.Graph, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
        output = graph.outputs[0]
        found = dict(zip((x.name for x in graph.inputs), arguments, strict=False)).get(output.name)
        for op, made in self.operations(graph, arguments):
            if op is output.op:
                found = made[output.value_index]
        return self._wide(found)

    def operations(
        self, graph: tf.Graph, arguments: Sequence[tf.Tensor]
    ) -> Iterator[tuple[tf.Operation, list[tf.Tensor]]]:
        """Yield the operations that compute the first output, in order, with their values."""
        assigns = any(op.type.startswith("Assign") for op in graph.get_operations())
        known = {name: self._copy(x, assigns) for name, x in captures_by_name(graph).items()}
        inputs = (tensor.name for tensor in graph.inputs[: len(arguments)])
        known |= zip(inputs, map(self._wide, arguments), strict=True)
        for op, names, outputs, last in schedule(graph.outputs[:1], known, operations_for, True):
            made = run_op(op, [known[name] for name in names], execute=self._execute_wide)
            known.update(zip(outputs, made, strict=True))
            yield op, made
            for name in last:
                del known[name]

    def shake_weights(self) -> "WideCalls":
        """Return the network with weights that are changed by a unit in the last place."""
        found = WideCalls(self._call, self._weights, self._precisions, self.precision.unit)
        found._prepared, found._functions = self._prepared, self._functions
        return found

    def shake(self, values: tf.Tensor) -> tf.Tensor:
        """Return floats with random changes of the relative size `shake`; other values as given."""
        if not self._shake or not values.dtype.is_floating:
            return values
        scales = np.array([1 - self._shake, 1 + self._shake], values.dtype.as_numpy_dtype)
        signs = self._generator.integers(0, 2, values.shape.as_list(), np.int8)
        return values * tf.constant(scales[signs])

    def _wide(self, values: tf.Tensor) -> tf.Tensor:
        wide = self.precision.types.get(values.dtype)
        return values if wide is None else tf.cast(values, wide)

    def _copy(self, outside: Any, assigns: bool) -> Any:
        if id(outside) not in self._outside:
            self._outside[id(outside)] = outside, self._copy_wide(outside, assigns)
        copy = self._outside[id(outside)][1]
        return copy.handle if isinstance(copy, tf.Variable) else copy

    def _copy_wide(self, outside: Any, assigns: bool) -> Any:
        if outside.dtype != tf.resource:
            return self.shake(self._wide(outside))
        dtype = variable_dtype(outside)
        if dtype is None:  # not a variable
            return outside
        given = self._weights.get(id(outside))
        is_same = given is None and not (dtype.is_floating and self._shake)
        if is_same and not assigns and dtype not in self.precision.types:
            return outside
        if given is None:
            given = tf.raw_ops.ReadVariableOp(resource=outside, dtype=dtype)
        wide = self.precision.types.get(dtype, dtype)
        return tf.Variable(self.shake(tf.cast(given, wide)), trainable=False)

    def _execute_wide(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        known = self._prepared.setdefault(op.graph, {})
        if op.name not in known:
            node = type(op.node_def)()
            node.CopyFrom(op.node_def)
            self._functions.widen(node)
            dtype = op.outputs[0].dtype if op.outputs else None
            wide = self.precision.types.get(dtype, dtype)
            known[op.name] = prepare_operation(node, len(op.outputs), wide)
        return execute_prepared(known[op.name], inputs)


class _Functions:
    """Copies of functions that operations call, such as a loop's body, in wide types."""

    def __init__(self, types: Mapping[tf.DType, tf.DType]) -> None:
        self._types = {x.as_datatype_enum: wide.as_datatype_enum for x, wide in types.items()}
        self._names: dict[str, str] = {}
        self._suffix = f"_wide_{id(self)}"
        weakref.finalize(self, _remove_functions, self._names)

    def widen(self, node: Any) -> None:
        for name in [name for name in node.attr if name[0] == "_"]:
            del node.attr[name]
        if not self._types:
            return
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "type":
                value.type = self._types.get(value.type, value.type)
            elif kind == "func":
                value.func.name = self._function(value.func.name)
            elif kind == "tensor" and value.tensor.dtype in self._types:
                wide = tf.as_dtype(self._types[value.tensor.dtype])
                values = tf.make_ndarray(value.tensor).astype(wide.as_numpy_dtype)
                value.tensor.CopyFrom(tf.make_tensor_proto(values, wide))
            elif kind == "list":
                value.list.type[:] = [self._types.get(x, x) for x in value.list.type]
                for each in value.list.func:
                    each.name = self._function(each.name)

    def _function(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        self._names[name] = name + self._suffix
        found = context.context().get_function_def(name)
        copy = type(found)()
        copy.CopyFrom(found)
        copy.signature.name = self._names[name]
        copy.attr.clear()
        copy.arg_attr.clear()
        for argument in (*copy.signature.input_arg, *copy.signature.output_arg):
            argument.type = self._types.get(argument.type, argument.type)
        for node in copy.node_def:
            self.widen(node)
        context.context().add_function_def(copy)
        return self._names[name]


def _remove_functions(names: Mapping[str, str]) -> None:
    for name in names.values():
        if context.context().has_function(name):
            context.context().remove_function(name)


def variable_dtype(handle: tf.Tensor) -> tf.DType | None:
    """Return the type of the variable that a handle refers to; None if it refers to none."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)
