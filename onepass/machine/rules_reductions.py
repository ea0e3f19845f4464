"""Lowering rules for operations along an axis: reductions, argmax, running sums, softmax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.assembly import Op
from onepass.machine.kernels import LANES, pad_channels
from onepass.machine.lowering import Lowering, rule
from onepass.machine.rules_numbers import cast
from onepass.machine.rules_shapes import reshape_value, whole
from onepass.machine.values import (
    Any_Value,
    Constant,
    Unlowerable,
    Value,
    axes_of,
    contiguous,
)

MOST_SORTED = 128  # largest number of entries that are put in order
_CODES = {"Sum": 0, "Mean": 1, "Max": 2, "Min": 3, "Prod": 4, "Any": 2, "All": 3}
_NUMPY: dict[str, Callable[..., Any]] = {
    "Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min, "Prod": np.prod, "Any": np.any,
    "All": np.all,
}  # fmt: skip


@rule(*_CODES)
def _reduction(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axes = [int(axis) for axis in np.ravel(whole(inputs[1]))]
    return [reduce_axes(lowering, op.type, inputs[0], axes, op.get_attr("keep_dims"))]


def reduce_axes(
    lowering: Lowering, name: str, given: Any_Value, axes: Sequence[int], keep: bool
) -> Any_Value:
    """Return the named reduction over axes, such as a sum or a maximum."""
    rank = len(given.shape)
    axes = sorted({axis % rank for axis in axes}) if rank else []
    if isinstance(given, Constant):
        made = _NUMPY[name](given.array, axis=tuple(axes), keepdims=keep)
        return Constant(np.asarray(made, given.dtype))
    others = [axis for axis in range(rank) if axis not in axes]
    shape = [given.shape[axis] for axis in others]
    kept = [1 if axis in axes else size for axis, size in enumerate(given.shape)]
    value, found = given, None
    for _ in range(2):
        found = _three_axes(value, others, axes)
        if found:
            break
        order = [*others, *axes]
        turned = lowering.arrange_entries(value, functools.partial(np.transpose, axes=order))
        value = lowering.materialise_value(lowering.value(turned))
        others, axes = list(range(len(others))), list(range(len(others), rank))
    if not found:
        raise Unlowerable("a reduction along axes between others")
    outer, inner, along = found
    out = contiguous(shape, given.dtype)
    numbers = [_CODES[name], given.wide, outer[0], along[0], inner[0], outer[1], along[1], inner[1]]
    limited = 3 if value.filled is not None and axes == [value.filled] else None
    made = lowering.add_instruction(Op.REDUCE, out, [value], numbers, limited)
    return reshape_value(lowering, made, kept) if keep else made


def _three_axes(value: Value, others: Sequence[int], axes: Sequence[int]) -> tuple[Any, ...] | None:
    """Return (size, stride) of two kept axes and of the reduced axis; None if there are more."""
    stay, go = (
        axes_of([value.shape[i] for i in part], [value.strides[i] for i in part])
        for part in (others, axes)
    )
    if len(stay) > 2 or len(go) > 1:
        return None
    stay = [*[(1, 0)] * (2 - len(stay)), *stay]
    return stay[0], stay[1], (go or [(1, 1)])[0]


def _last(lowering: Lowering, given: Value, axis: int) -> tuple[Value, list[tuple[int, ...]]]:
    turned = lowering.value(lowering.arrange_entries(given, lambda x: np.moveaxis(x, axis, -1)))
    before = axes_of(turned.shape[:-1], turned.strides[:-1])
    if len(before) > 1:
        turned = lowering.materialise_value(turned)
        before = axes_of(turned.shape[:-1], turned.strides[:-1])
    return turned, before or [(1, 0)]


@rule("ArgMax", "ArgMin")
def _argmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    axis = int(whole(inputs[1])) % len(inputs[0].shape)
    dtype = op.get_attr("output_type").as_numpy_dtype
    if isinstance(inputs[0], Constant):
        find = np.argmax if op.type == "ArgMax" else np.argmin
        return [Constant(find(inputs[0].array, axis).astype(dtype))]
    turned, ((outer, step),) = _last(lowering, inputs[0], axis)
    out = contiguous(turned.shape[:-1], dtype)
    numbers = [turned.wide, outer, turned.shape[-1], step, turned.strides[-1], op.type == "ArgMin"]
    return [lowering.add_instruction(Op.ARGMAX, out, [turned], numbers)]


@rule("TopKV2")
def _top_k(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    """Return the largest entries in order, and their indices: entries by the number above them."""
    given, count = lowering.value(inputs[0]), int(whole(inputs[1]))
    size, number = given.shape[-1], np.dtype(np.float32)
    if size > MOST_SORTED:
        raise Unlowerable(f"more than {MOST_SORTED} numbers in order")
    one, other = _both(lowering, given)
    above = cast(lowering, lowering.map("Greater", other, one), number)
    before = Constant(np.tril(np.ones([size, size], np.float32), -1))
    equal = cast(lowering, lowering.map("Equal", other, one), number)
    above = lowering.map("Add", above, lowering.map("Mul", equal, before))
    rank = reduce_axes(lowering, "Sum", above, [-1], False)
    row = lowering.arrange_entries(rank, lambda x: x[..., np.newaxis, :])
    chosen = lowering.map("Equal", row, Constant(np.arange(count, dtype=number)[:, None]))
    values = lowering.map("Select", chosen, other, Constant(np.zeros([], given.dtype)))
    places = lowering.map(
        "Mul", cast(lowering, chosen, number), Constant(np.arange(size, dtype=number))
    )
    index = cast(lowering, reduce_axes(lowering, "Sum", places, [-1], False), np.dtype(np.int32))
    return [reduce_axes(lowering, "Sum", values, [-1], False), index]


def _both(lowering: Lowering, given: Value) -> tuple[Any_Value, Any_Value]:
    column = lowering.arrange_entries(given, lambda x: x[..., np.newaxis])
    return column, lowering.arrange_entries(given, lambda x: x[..., np.newaxis, :])


@rule("Cumsum", "Cumprod")
def _lower_cumulative(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> list[Any_Value]:
    axis = int(whole(inputs[1])) % len(inputs[0].shape)
    given = lowering.value(inputs[0])
    turned, ((outer, step),) = _last(lowering, given, axis)
    out = contiguous(turned.shape, given.dtype)
    code = _CODES["Sum" if op.type == "Cumsum" else "Prod"]
    numbers = [given.wide, outer, turned.shape[-1], step, turned.strides[-1], code]
    numbers += [op.get_attr("exclusive"), op.get_attr("reverse")]
    made = lowering.add_instruction(Op.CUMULATE, out, [turned], numbers)
    return [lowering.arrange_entries(made, lambda x: np.moveaxis(x, -1, axis))]


@rule("Softmax")
def _softmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given = lowering.value(inputs[0])
    if given.wide:
        return [_softmax_of_doubles(lowering, given)]
    if given.shape[-1] > 1 and given.strides[-1] != 1:
        given = lowering.materialise_value(given)
    turned, ((outer, step),) = _last(lowering, given, -1)
    pitch = pad_channels(turned.shape[-1]) + LANES  # with room for one more number per row
    out = contiguous([outer, turned.shape[-1]], np.float32, pitch=pitch)
    limited = 1 if turned.filled == len(turned.shape) - 1 else None
    out = dataclasses.replace(out, filled=None if limited is None else 1)
    numbers = [outer, turned.shape[-1], step, pitch]
    made = lowering.add_instruction(Op.SOFTMAX, out, [turned], numbers, limited)
    return [reshape_value(lowering, made, list(given.shape))]


def _softmax_of_doubles(lowering: Lowering, given: Value) -> Any_Value:
    largest = reduce_axes(lowering, "Max", given, [-1], True)
    powers = lowering.map("Exp", lowering.map("Sub", given, largest))
    return lowering.map("RealDiv", powers, reduce_axes(lowering, "Sum", powers, [-1], True))


@rule("LogSoftmax")
def _log_softmax(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    shifted = lowering.map("Sub", inputs[0], reduce_axes(lowering, "Max", inputs[0], [-1], True))
    total = reduce_axes(lowering, "Sum", lowering.map("Exp", shifted), [-1], True)
    return [lowering.map("Sub", shifted, lowering.map("Log", total))]


@rule("OneHot")
def _one_hot(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, depth, on, off = inputs
    if int(op.get_attr("axis")) not in (-1, len(given.shape)):
        raise Unlowerable("its axis is not the last one")
    count = int(whole(depth))
    index = lowering.arrange_entries(given, lambda x: x[..., np.newaxis])
    if count <= 1 << 24:  # exact in float32
        index = cast(lowering, index, np.dtype(np.float32))
    test = lowering.map("Equal", index, Constant(np.arange(count, dtype=index.dtype)))
    known = isinstance(on, Constant) and isinstance(off, Constant)
    if known and whole(on) == 1 and whole(off) == 0:
        return [cast(lowering, test, on.dtype)]
    return [lowering.map("Select", test, on, off)]
