"""Lowering rules for operations that read or write rows at an index that varies by step."""

import dataclasses
import math
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.machine.assembly import Op
from onepass.machine.lowering import Lowering, Resource, Slot, rule
from onepass.machine.rules_shapes import reshape_value, slicing, whole
from onepass.machine.values import (
    Any_Value,
    Constant,
    Unlowerable,
    Value,
    axes_of,
    contiguous,
)

MOST_WRITES = 16  # largest number of rows in one update


def components(lowering: Lowering, given: Any_Value) -> list[Any_Value]:
    """Return the entries of a small vector, each a constant or a value."""
    if isinstance(given, Constant):
        return [Constant(each) for each in given.array]
    if given.buffer in lowering.packed and given.start == 0:
        return lowering.packed[given.buffer]
    return [
        lowering.arrange_entries(given, operator.itemgetter((i, ...)))
        for i in range(given.shape[0])
    ]


@rule("StridedSlice")
def _lower_strided_slice(
    lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]
) -> list[Any_Value]:
    given, begin, end, steps = inputs
    if all(isinstance(each, Constant) for each in (begin, end, steps)):
        index = slicing(op, whole(begin), whole(end), whole(steps))
        return [lowering.arrange_entries(given, lambda x: x[index])]
    firsts, stops = components(lowering, begin), components(lowering, end)
    shape = op.outputs[0].shape
    found = None
    for i, first in enumerate(firsts):
        if isinstance(first, Constant):
            continue
        if (
            found is not None
            or _bit(op, "ellipsis", slice(0, i))
            or _bit(op, "new_axis", slice(0, i))
        ):
            raise Unlowerable("a slice at several indices that change from step to step")
        found = i
    if found is None:
        raise Unlowerable("a slice whose length changes from step to step")
    lone = _bit(op, "shrink_axis", slice(found, found + 1))
    dropped = sum(_bit(op, "shrink_axis", slice(i, i + 1)) for i in range(found))
    count = 1 if lone else shape[found - dropped]
    if count is None:
        raise Unlowerable("a slice whose length changes from step to step")
    slot = lowering.slot(lowering.value(firsts[found]))
    part = read(lowering, lowering.value(given), slot, found, count)
    known = [
        [int(whole(x)) if isinstance(x, Constant) else 0 for x in each] for each in (firsts, stops)
    ]
    known[1][found] = 1 if lone else count
    index = slicing(op, known[0], known[1], whole(steps))
    return [lowering.arrange_entries(part, lambda x: x[index])]


def _bit(op: tf.Operation, name: str, places: slice) -> bool:
    mask = int(op.get_attr(f"{name}_mask"))
    return any(mask >> i & 1 for i in range(places.start, places.stop))


@rule("Slice")
def _slice(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    made = inputs[0]
    sizes = [int(size) for size in whole(inputs[2])]
    for axis, first in enumerate(components(lowering, inputs[1])):
        if isinstance(first, Constant):
            start = int(first.array)
            stop = made.shape[axis] if sizes[axis] < 0 else start + sizes[axis]
            index = (*[slice(None)] * axis, slice(start, stop))
            made = lowering.arrange_entries(made, operator.itemgetter(index))
        else:
            made = read(lowering, lowering.value(made), lowering.slot(first), axis, sizes[axis])
    return [made]


def read(lowering: Lowering, given: Value, slot: Slot, axis: int, count: int) -> Value:
    """Return `count` rows of an axis, starting at the index in `slot`."""
    given, (outer, outer_step), inner = _around(lowering, given, axis)
    size, step = given.shape[axis], given.strides[axis]
    shape = [*given.shape[:axis], count, *given.shape[axis + 1 :]]
    out = contiguous(shape, given.dtype)
    if count > 1 and step != inner:
        raise Unlowerable("rows that are not adjacent")
    numbers = [2 if given.wide else 1, outer, count * inner, outer_step, step]
    numbers += [slot.add, slot.modulo, size - count]
    return lowering.add_instruction(Op.READ, out, [given, slot.place], numbers)


def _around(lowering: Lowering, given: Value, axis: int) -> tuple[Value, tuple[int, int], int]:
    for _ in range(2):
        before = axes_of(given.shape[:axis], given.strides[:axis]) or [(1, 0)]
        after = axes_of(given.shape[axis + 1 :], given.strides[axis + 1 :]) or [(1, 1)]
        if len(before) == 1 and len(after) == 1 and after[0][1] == 1:
            return given, (before[0][0], before[0][1]), after[0][0]
        given = lowering.materialise_value(given)
    raise Unlowerable("rows of scattered numbers")


@rule("GatherV2", "Gather", "ResourceGather", "GatherNd")
def _gather(lowering: Lowering, op: tf.Operation, inputs: list[Any]) -> list[Any_Value]:
    given, index = inputs[0], inputs[1]
    if isinstance(given, Resource):
        given = Constant(lowering.variable(given, op.get_attr("dtype")))
    if op.type == "GatherNd":
        given, index = _merge_indices(lowering, given, index)
    axis = int(whole(inputs[2])) if op.type == "GatherV2" else 0
    axis %= len(given.shape)
    if op.type in ("GatherV2", "ResourceGather") and (batch := int(op.get_attr("batch_dims"))):
        if axis != batch:
            raise Unlowerable("indices of an axis behind others")
        return [_gather_batch(lowering, given, index, batch)]
    return [_gather_axis(lowering, given, index, axis)]


def _gather_axis(lowering: Lowering, given: Any_Value, index: Any_Value, axis: int) -> Any_Value:
    if isinstance(index, Constant):
        return lowering.arrange_entries(given, lambda x: np.take(x, index.array, axis))
    shape = [*given.shape[:axis], *index.shape, *given.shape[axis + 1 :]]
    if index.size == 1:
        at = lowering.value(reshape_value(lowering, index, []))
        part = read(lowering, lowering.value(given), lowering.slot(at), axis, 1)
        return reshape_value(lowering, part, shape)
    return reshape_value(lowering, _rows(lowering, lowering.value(given), index, axis), shape)


def _gather_batch(lowering: Lowering, given: Any_Value, index: Any_Value, batch: int) -> Any_Value:
    rows, size = math.prod(given.shape[:batch]), given.shape[batch]
    flat = reshape_value(lowering, given, [rows * size, *given.shape[batch + 1 :]])
    if rows > 1:
        first = np.arange(0, rows * size, size).astype(index.dtype)
        first = first.reshape([*given.shape[:batch], *[1] * (len(index.shape) - batch)])
        index = lowering.map("Add", index, Constant(first))
    return _gather_axis(lowering, flat, index, 0)


def _merge_indices(
    lowering: Lowering, given: Any_Value, index: Any_Value
) -> tuple[Any_Value, Any_Value]:
    count = index.shape[-1]
    columns = [lowering.arrange_entries(index, operator.itemgetter((..., i))) for i in range(count)]
    total = columns[0]
    for column, size in zip(columns[1:], given.shape[1:count], strict=True):
        scaled = lowering.map("Mul", total, Constant(np.asarray(size, index.dtype)))
        total = lowering.map("Add", scaled, column)
    sizes = [math.prod(given.shape[:count]), *given.shape[count:]]
    return reshape_value(lowering, given, sizes), total


def _rows(lowering: Lowering, given: Value, index: Value, axis: int) -> Value:
    given, (outer, _), inner = _around(lowering, given, axis)
    if outer > 1:
        raise Unlowerable("several indices along an inner axis")
    if index.wide is False:
        index = lowering.doubles(index)
    steps = axes_of(index.shape, index.strides)
    if len(steps) > 1:
        index = lowering.materialise_value(index)
        steps = axes_of(index.shape, index.strides)
    out = contiguous([index.size, inner], given.dtype)
    numbers = [2 if given.wide else 1, index.size, inner, steps[0][1], given.strides[axis]]
    numbers += [given.shape[axis] - 1]
    return lowering.add_instruction(Op.ROWS, out, [given, index], numbers)


@rule("TensorScatterUpdate")
def _scatter(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, index, update = inputs
    value = lowering.value(given)
    if index.shape[-1] != 1:
        raise Unlowerable("indices along several axes")
    count = index.size
    if count > MOST_WRITES:
        raise Unlowerable(f"more than {MOST_WRITES} rows at once")
    flat = reshape_value(lowering, index, [count])
    rows = reshape_value(lowering, update, [count, *value.shape[1:]])
    for i, place in enumerate(components(lowering, flat)):
        row = lowering.arrange_entries(rows, operator.itemgetter(slice(i, i + 1)))
        value = write_rows(lowering, value, lowering.value(row), place, 0)
    return [value]


@rule("XlaDynamicUpdateSlice")
def _update_slice(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, update = lowering.value(inputs[0]), lowering.value(inputs[1])
    changing = [
        (axis, place)
        for axis, place in enumerate(components(lowering, inputs[2]))
        if not isinstance(place, Constant) or int(place.array)
    ]
    if len(changing) != 1:
        raise Unlowerable("an update at indices along several axes")
    axis, place = changing[0]
    others = [i for i in range(len(given.shape)) if i != axis]
    if any(given.shape[i] != update.shape[i] for i in others):
        raise Unlowerable("an update of a part of the rows")
    return [write_rows(lowering, given, update, place, axis)]


def write_rows(
    lowering: Lowering, given: Value, update: Value, place: Any_Value, axis: int
) -> Value:
    """Return a value with rows replaced from an index on; whether in place is decided later."""
    update = lowering.materialise_value(update)
    at = lowering.value(place)
    slot = lowering.slot(at)
    given, (outer, outer_step), inner = _around(lowering, given, axis)
    if not given.contiguous:
        given = lowering.materialise_value(given)
    count, size, step = update.shape[axis], given.shape[axis], given.strides[axis]
    out = contiguous(given.shape, given.dtype)
    numbers = [
        2 if given.wide else 1,
        outer,
        count * inner,
        outer_step,
        step if size > 1 else inner,
    ]
    numbers += [slot.add, slot.modulo, size - count]
    lowering.assembly.add(Op.WRITE, out, [update, slot.place, given], numbers, fills=True)
    at_position = count == 1 and slot.add == 0 and lowering.counts(slot.place.buffer)
    fills_up = at_position and slot.modulo in (0, size)
    return dataclasses.replace(out, filled=axis if fills_up and size > 1 else None)
