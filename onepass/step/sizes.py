"""Compute values that follow from constants and static shapes, such as bounds of slices."""

import operator
import weakref
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from onepass.step.at_once import execute_operation

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
FOLDED = frozenset(
    (
        *("BroadcastTo", "Cast", "ConcatV2", "Equal", "ExpandDims", "Fill", "GatherV2", "Greater"),
        *(
            "Less",
            "Max",
            "Min",
            "OnesLike",
            "Pack",
            "Prod",
            "Range",
            "Reshape",
            "SelectV2",
            "Slice",
        ),
        *("Squeeze", "StridedSlice", "Sum", "Tile", "Transpose", "Unpack", "ZerosLike"),
    )
)
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
