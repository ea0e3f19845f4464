"""Values that follow from constants and static shapes, such as bounds of slices and pads."""

import operator
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

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
        *("Squeeze", "StridedSlice", "Sum", "Tile", "Transpose", "ZerosLike"),
    )
)
# Arguments that `tf.raw_ops` calls otherwise than graphs do.
RENAMED = {"dim": "axis", "reduction_indices": "axis", "squeeze_dims": "axis"}
_KNOWN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def static_value(tensor: tf.Tensor) -> np.ndarray | None:
    """Return the value of a tensor that is known when the graph is traced, or None.

    In addition to `tf.get_static_value`, it computes arithmetic of sizes.
    """
    known = _KNOWN.setdefault(tensor.graph, {})
    if tensor.name not in known:
        value = tf.get_static_value(tensor)
        known[tensor.name] = _folded(tensor) if value is None else np.asarray(value)
    return known[tensor.name]


def _folded(tensor: tf.Tensor) -> np.ndarray | None:
    op = tensor.op
    if op.type not in ARITHMETIC and op.type not in FOLDED:
        return None
    inputs = [static_value(part) for part in op.inputs]
    if any(value is None for value in inputs):
        return None
    if op.type in ARITHMETIC:
        return np.asarray(ARITHMETIC[op.type](*inputs), tensor.dtype.as_numpy_dtype)
    with tf.init_scope():
        return _computed(op, inputs).numpy()


def _computed(op: tf.Operation, values: list) -> tf.Tensor:
    """Return the output of an operation for known inputs, computed at once.

    A function that is traced for one operation takes a hundred times longer, and an associative
    scan of one layer has hundreds of sizes.
    """
    left = [tf.constant(value, x.dtype) for value, x in zip(values, op.inputs, strict=True)]
    given: dict[str, Any] = {}
    inferred = set()
    for argument in op.op_def.input_arg:
        name = RENAMED.get(argument.name, argument.name)
        inferred |= {argument.type_attr, argument.number_attr}
        count = op.get_attr(argument.number_attr) if argument.number_attr else 1
        given[name] = left[:count] if argument.number_attr else left[0]
        left = left[count:]
    for attribute in op.op_def.attr:
        if attribute.name not in inferred:
            name = RENAMED.get(attribute.name, attribute.name)
            given[name] = op.get_attr(attribute.name)
    return getattr(tf.raw_ops, op.type)(**given)


def same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Return whether both values are known and equal."""
    return first is not None and second is not None and np.array_equal(first, second)
