"""Lowering rules for operations that only select, reorder and repeat entries."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.lowering import Lowering, Resource, rule
from onepass.machine.values import (
    Any_Value,
    Constant,
    Unlowerable,
    Value,
    contiguous,
    rearrange_value,
)


def whole(given: Any_Value, what: str = "a size or an axis") -> np.ndarray:
    """Return the array of a constant; raise Unlowerable for a value that varies by step."""
    if not isinstance(given, Constant):
        raise Unlowerable(f"{what} that changes from step to step")
    return given.array


@rule("Const")
def _const(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [Constant(tf.make_ndarray(op.get_attr("value")))]


@rule("ReadVariableOp")
def _read_variable(lowering: Lowering, op: tf.Operation, inputs: list[Resource]) -> list[Any_Value]:
    return [Constant(lowering.variable(inputs[0], op.get_attr("dtype")))]


@rule("Shape", "ShapeN")
def _shape(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    dtype = op.get_attr("out_type").as_numpy_dtype
    return [Constant(np.array(each.shape, dtype)) for each in inputs]


@rule("Size", "Rank")
def _size(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    (given,) = inputs
    return [Constant(np.int32(given.size if op.type == "Size" else len(given.shape)))]


@rule("ZerosLike", "OnesLike")
def _like(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    make = np.zeros if op.type == "ZerosLike" else np.ones
    return [Constant(make(inputs[0].shape, inputs[0].dtype))]


@rule("Range")
def _range(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    start, stop, step = (whole(each).item() for each in inputs)
    return [Constant(np.arange(start, stop, step, dtype=inputs[0].dtype))]


@rule("Reshape")
def _reshape(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [reshape_value(lowering, inputs[0], [int(size) for size in whole(inputs[1])])]


def reshape_value(lowering: Lowering, given: Any_Value, shape: list[int]) -> Any_Value:
    """Reshape a value."""
    if isinstance(given, Value) and not given.contiguous:
        made = rearrange_value(given, lambda x: x.reshape(shape))
        if isinstance(made, Value):
            return made
        given = lowering.materialise_value(given)
    return lowering.arrange_entries(given, lambda x: x.reshape(shape))


def _arrangement(*names: str) -> Callable[..., Any]:
    def add(function: Callable[..., Callable[[np.ndarray], np.ndarray]]) -> Callable[..., Any]:
        @rule(*names)
        def lower(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
            arrange = function(op, *(whole(each) for each in inputs[1:]))
            return [lowering.arrange_entries(inputs[0], arrange)]

        return lower

    return add


@_arrangement("ExpandDims")
def _expand(op: tf.Operation, axis: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.expand_dims(x, int(axis))


@_arrangement("Squeeze")
def _squeeze(op: tf.Operation) -> Callable[[np.ndarray], np.ndarray]:
    axes = tuple(op.get_attr("squeeze_dims")) or None
    return lambda x: np.squeeze(x, axes)


@_arrangement("Transpose")
def _transpose(op: tf.Operation, order: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.transpose(order)


@_arrangement("BroadcastTo")
def _broadcast(op: tf.Operation, shape: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.broadcast_to(x, shape)


@_arrangement("Tile")
def _tile(op: tf.Operation, times: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.tile(x, times)


@_arrangement("ReverseV2")
def _reverse(op: tf.Operation, axes: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.flip(x, tuple(axes))


@_arrangement("Roll")
def _roll(
    op: tf.Operation, shift: np.ndarray, axis: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.roll(x, tuple(np.ravel(shift)), tuple(np.ravel(axis)))


@_arrangement("MatrixDiagPartV3")
def _diagonal(
    op: tf.Operation, k: np.ndarray, padding: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    if np.any(k):
        raise Unlowerable("a diagonal other than the main one")
    return lambda x: np.diagonal(x, 0, -2, -1)


@_arrangement("MirrorPad")
def _mirror(op: tf.Operation, widths: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    if op.get_attr("mode") == b"REFLECT":
        return lambda x: np.pad(x, widths, "reflect")
    return lambda x: np.pad(x, widths, "symmetric")


@rule("Fill")
def _fill(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    shape = whole(inputs[0])
    return [lowering.arrange_entries(inputs[1], lambda x: np.broadcast_to(x, shape))]


@rule("Split")
def _split(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    count = int(op.get_attr("num_split"))
    return _parts(lowering, inputs[1], [None] * count, int(whole(inputs[0])))


@rule("SplitV")
def _split_sizes(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(whole(inputs[2]))
    sizes = [int(size) for size in whole(inputs[1])]
    rest = inputs[0].shape[axis] - sum(size for size in sizes if size >= 0)
    return _parts(lowering, inputs[0], [rest if s < 0 else s for s in sizes], axis)


def _parts(lowering: Lowering, given: Any_Value, sizes: list, axis: int) -> list[Any_Value]:
    if sizes[0] is None:
        sizes = [given.shape[axis] // len(sizes)] * len(sizes)
    made, start = [], 0
    for size in sizes:
        chosen = np.arange(start, start + size)
        made.append(
            lowering.arrange_entries(given, functools.partial(np.take, indices=chosen, axis=axis))
        )
        start += size
    return made


@rule("Unpack")
def _unpack(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(op.get_attr("axis"))
    return [
        lowering.arrange_entries(inputs[0], functools.partial(np.take, indices=index, axis=axis))
        for index in range(inputs[0].shape[axis])
    ]


@rule("Pack")
def _pack(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(op.get_attr("axis"))
    if all(isinstance(each, Constant) for each in inputs):
        return [Constant(np.stack([whole(each) for each in inputs], axis))]
    wider = [lowering.arrange_entries(each, lambda x: np.expand_dims(x, axis)) for each in inputs]
    made = concatenate_values(lowering, wider, axis)
    if not inputs[0].shape and isinstance(made, Value):
        lowering.packed[made.buffer] = list(inputs)
    return [made]


@rule("ConcatV2")
def _concat(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    made = concatenate_values(lowering, inputs[:-1], int(whole(inputs[-1])))
    if isinstance(made, Value) and all(each.shape == (1,) for each in inputs[:-1]):
        lowering.packed[made.buffer] = [
            lowering.arrange_entries(each, lambda x: x.reshape([])) for each in inputs[:-1]
        ]
    return [made]


def concatenate_values(lowering: Lowering, parts: list[Any_Value], axis: int) -> Any_Value:
    """Concatenate values along an axis."""
    parts = [part for part in parts if part.size]
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Constant) for part in parts):
        return Constant(np.concatenate([whole(part) for part in parts], axis))
    shape = list(parts[0].shape)
    axis %= len(shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return fill_parts(lowering, shape, parts, axis)


def fill_parts(lowering: Lowering, shape: list[int], parts: list[Any_Value], axis: int) -> Value:
    """Return a new value that is filled with parts in sequence along an axis."""
    key = ("joined", tuple(shape), axis, tuple(_identity(lowering, part) for part in parts))
    found = lowering.joined.get(key)
    if found is not None:
        return found
    out = contiguous(shape, parts[0].dtype)
    start = 0
    for part in parts:
        value = lowering.value(part)
        step = out.strides[axis] if out.shape[axis] > 1 else 1
        size = value.shape[axis]
        target = Value(out.buffer, start * step, value.shape, out.strides, out.dtype)
        lowering.copy_value(target, value, fills=True)
        start += size
    lowering.joined[key] = out
    return out


def _identity(lowering: Lowering, part: Any_Value) -> tuple:
    value = lowering.value(part)
    return value.buffer.number, value.start, value.shape, value.strides


@rule("Pad", "PadV2")
def _pad(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    widths = whole(inputs[1])
    fill = whole(inputs[2]) if op.type == "PadV2" else np.zeros([], inputs[0].dtype)
    if isinstance(inputs[0], Constant):
        return [Constant(np.pad(inputs[0].array, widths, constant_values=fill))]
    made: Any_Value = inputs[0]
    for axis, (front, after) in enumerate(widths):
        parts: list[Any_Value] = [made]
        for place, width in ((0, front), (len(parts) + 1, after)):
            if width > 0:
                shape = [*made.shape[:axis], int(width), *made.shape[axis + 1 :]]
                parts.insert(place, Constant(np.full(shape, fill, made.dtype)))
        made = concatenate_values(lowering, parts, axis)
    return [made]


def slicing(op: tf.Operation, begin: Any, end: Any, steps: Any) -> tuple:
    """Return the NumPy index equivalent to a strided slice."""
    masks = {
        name: int(op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(np.newaxis)
        elif masks["shrink_axis"] & bit:
            index.append(int(first))
        else:
            low = None if masks["begin"] & bit else int(first)
            high = None if masks["end"] & bit else int(last)
            index.append(slice(low, high, int(step)))
    return tuple(index)
