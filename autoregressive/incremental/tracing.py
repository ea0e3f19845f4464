"""Graphs of a network at given lengths, and the operations that depend on its inputs."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from autoregressive.condition_specs import is_at_rate
from autoregressive.incremental.replay import CALLS, inlined, needed

# Operations whose values depend only on the shapes of their inputs.
SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")


def is_temporal(spec: tf.TensorSpec) -> bool:
    """Return whether an argument has a time axis, [batch, None, ...]."""
    return is_at_rate(spec)


def sized(spec: tf.TensorSpec, length: int) -> tf.TensorSpec:
    """Return the spec of an argument with `length` times."""
    if not is_temporal(spec):
        return spec
    return tf.TensorSpec([spec.shape[0], length, *spec.shape[2:]], spec.dtype)


def trace(
    function: Callable, specs: Sequence[tf.TensorSpec], length: int
) -> tf.types.experimental.ConcreteFunction:
    """Return the function traced for one length, without calls of other functions.

    Args:
      function: from tensors to a tensor.
      specs: specs of its arguments, with the batch size and without the length.
      length: number of times.
    """
    given = [sized(spec, length) for spec in specs]
    traced = tf.function(function, autograph=False).get_concrete_function(*given)
    has_calls = any(op.type in CALLS for op in needed(traced.graph.outputs))
    return inlined(traced, given) if has_calls else traced


def first_difference(
    short: Sequence[tf.Operation], long: Sequence[tf.Operation]
) -> tf.Operation | None:
    """Return the first operation for the shorter length that differs from the longer one's."""
    for op, longer in zip(short, long, strict=False):
        if op.type != longer.type:
            return op
    return None if len(short) == len(long) else short[min(len(short), len(long)) - 1]


def dependent(graph: tf.Graph, arguments: Sequence[int]) -> list[tf.Operation]:
    """Return the operations whose values depend on some of the graph's arguments, in order.

    Args:
      graph: has its arguments before the tensors that it captures.
      arguments: their indices.
    """
    inputs = {graph.inputs[index].op for index in arguments}
    found, operations = set(inputs), []
    for op in needed(graph.outputs):
        if op in inputs:
            continue
        is_drawn = "Random" in op.type or op.type == "Multinomial"
        reads = any(tensor.op in found for tensor in op.inputs)
        if is_drawn or (reads and op.type not in SHAPES):
            found.add(op)
            operations.append(op)
    return operations


def aligned(
    first: tf.Graph, second: tf.Graph, arguments: Sequence[int]
) -> dict[tf.Operation, tf.Operation] | None:
    """Return the second graph's operation for each of the first that depends on arguments.

    Operations on constants may differ: TensorFlow folds some of them for some sizes only.

    Args:
      first: a graph.
      second: the graph of the same network for another length.
      arguments: indices of the arguments with a time axis.

    Returns:
      None if the graphs differ.
    """
    pair = dependent(first, arguments), dependent(second, arguments)
    if first_difference(*pair) is not None:
        return None
    return dict(zip(*pair, strict=True))
