"""Run Keras models that are graphs of layers at sizes other than those they were built for.

The layers are called individually; no layer is copied. Keras checks input shapes only when the
model as a whole is called. Sizes stored in layers are replaced where they are recognised.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from onepass.networks.outputs import one_line
from onepass.networks.trainable import attribute_of

# Errors that a call may raise if it does not support a size.
ERRORS = (ValueError, TypeError, IndexError, AttributeError, tf.errors.OpError)


class BakedSizeError(ValueError):
    """An error that names a layer that cannot be called at another size."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(reason)
        self.layer = layer


def graph_of(network: Any) -> Any:
    """Return the graph of layers of a functional or built sequential Keras model, or None."""
    call = getattr(type(network), "call", None)
    if not str(getattr(call, "__module__", "")).startswith("keras."):
        return None  # not a Keras model, or one that overrides `call`
    graph = attribute_of(network, "_functional") or network
    return graph if hasattr(graph, "_run_through_graph") else None


def built_sizes(network: Any, axes: int) -> tuple[int, ...]:
    """Return the declared sizes of a Keras model's first input; () if they vary or are unknown."""
    try:
        sizes = tuple(attribute_of(network, "inputs")[0].shape[1 : 1 + axes])
    except (AttributeError, ValueError, TypeError, IndexError):
        return ()
    return sizes if len(sizes) == axes and all(isinstance(size, int) for size in sizes) else ()


def called_in_training(network: Any) -> str:
    """Return the name of a layer that a graph of layers calls with training=True; "" if none."""
    for model in getattr(network, "_flatten_layers", list)():
        nodes = getattr(graph_of(model), "_nodes_by_depth", {})
        for node in itertools.chain.from_iterable(nodes.values()):
            if node.arguments.kwargs.get("training") is True:
                return node.operation.name
    return ""


class OtherSizes:
    """A Keras model whose inputs may have sizes other than those it was built for.

    Args:
      replaces: where layers' stored copies of these sizes are replaced. "all": in shapes, in
        repetition counts, and in constants, which are cut to the input's size; "first": only the
        first matching axis of a shape, since the number of channels may be equal; "": nowhere.
    """

    def __init__(
        self, network: Any, sizes: Sequence[int], replaces: Literal["", "first", "all"]
    ) -> None:
        self.network, self._sizes, self._replaces = network, tuple(sizes), replaces

    def __call__(self, *inputs: tf.Tensor) -> Any:
        """Return the outputs in inference mode for the model's inputs, given as a flat list."""
        count = len(self._sizes)
        known, asked = inputs[0].shape[1 : 1 + count], tf.shape(inputs[0])[1 : 1 + count]
        now = [asked[i] if size is None else size for i, size in enumerate(known)]
        is_first = self._replaces == "first"
        replaced = _Replaced(self._sizes, now, is_first) if self._replaces else None
        return _run(self.network, list(inputs) if len(inputs) > 1 else inputs[0], replaced)


def _run(model: Any, inputs: Any, replaced: "_Replaced | None") -> Any:
    graph = graph_of(model)
    constants = _constants(graph) if replaced else {}

    def wrap_operation(operation: Any) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(operation, "_call_has_training_arg", False):
                options["training"] = False
            try:
                if graph_of(operation) is not None and built_sizes(operation, 1):
                    return _run(operation, arguments[0], replaced)
                if replaced is None:
                    return operation(*arguments, **options)
                with tf.name_scope(operation.name):  # errors contain the name
                    arguments, options = tf.nest.map_structure(
                        lambda x: replaced.constant(x) if id(x) in constants else x,
                        (arguments, options),
                    )
                return replaced.call_operation(operation, *arguments, **options)
            except BakedSizeError:
                raise
            except ERRORS as error:
                raise BakedSizeError(operation.name, one_line(error)) from error

        return call

    outputs = graph._run_through_graph(
        graph._standardize_inputs(inputs), operation_fn=wrap_operation
    )
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def _constants(graph: Any) -> dict[int, Any]:
    nodes = [node for each in graph.operations for node in each._inbound_nodes]
    given = [tf.nest.flatten([node.arguments.args, node.arguments.kwargs]) for node in nodes]
    return {
        id(x): x for each in given for x in each if isinstance(x, np.ndarray | tf.Tensor) and x.ndim
    }


class _Replaced:
    def __init__(self, built: Sequence[int], now: Sequence[Any], is_first: bool) -> None:
        self._now, self._is_first = dict(zip(built, now, strict=True)), is_first

    def _axes(self, shape: Sequence[Any]) -> dict[int, Any]:
        left, found = dict(self._now), {}
        for axis, size in enumerate(shape):
            if isinstance(size, int) and size in left:
                found[axis] = left.pop(size) if self._is_first else left[size]
        return found

    def _shape(self, shape: Sequence[Any]) -> list[Any]:
        return [self._axes(shape).get(axis, size) for axis, size in enumerate(shape)]

    def constant(self, values: Any) -> Any:
        for axis, size in self._axes(list(values.shape)).items():
            values = tf.gather(values, tf.range(size), axis=axis)
        return values

    def call_operation(self, operation: Any, *arguments: Any, **options: Any) -> Any:
        ops = sys.modules["keras"].ops
        kind, first = type(operation).__name__, arguments[0] if arguments else None
        if not type(operation).__module__.startswith("keras."):
            return operation(*arguments, **options)
        if kind == "Reshape" and hasattr(operation, "target_shape"):
            shape = [ops.shape(first)[0], *self._shape(operation.target_shape)]
            return ops.reshape(first, shape)
        if kind == "Reshape" and hasattr(operation, "newshape"):
            return ops.reshape(first, self._shape(operation.newshape))
        if kind == "BroadcastTo":
            return ops.broadcast_to(first, self._shape(operation.shape))
        if kind == "RepeatVector":
            return ops.repeat(ops.expand_dims(first, 1), self._shape([operation.n])[0], axis=1)
        return operation(*arguments, **options)
