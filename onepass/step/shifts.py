"""Rules for operations that shift the sequence in time: slices, pads, concatenations."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from onepass.step.rowwise import rowwise
from onepass.step.rules import rule
from onepass.step.streams import Call, Node, Part, Stream


def pad_stream(node: Node, stream: Stream, front: int, after: int) -> Stream:
    """Return a stream after padding with constant rows at the front and the end."""
    if front and (stream.offset or 0) < 0:
        raise node.unsupported_error("it pads a sequence whose first time steps were dropped")
    offset = (stream.offset or 0) + front
    ahead = stream.ahead
    if after > 0:
        where = "on both sides" if front else "at the end"
        ahead = (*ahead, f"{node.layer} pads {where}")
    return dataclasses.replace(stream, offset=offset, ahead=ahead)


@rule("Pad", "PadV2")
def pad(node: Node) -> Part:
    """Return how a step runs a pad with a constant."""
    stream = node.only()
    short, long = (value[stream.axis] for value in node.bounds(1))
    if not np.array_equal(short, long):
        raise node.refusal_error("depends on the length of its input")
    front, after = (int(rows) for rows in short)
    if stream.is_merged and (front or after):
        raise node.unsupported_error("it pads a merged axis")
    moved = pad_stream(node, stream, front, after)
    kind = node.derive_kind(0, stream, offset=moved.offset, ahead=moved.ahead)
    paddings = node.bounds(1)[0].copy()
    paddings[stream.axis] = 0
    value = node.static(2) if node.type == "PadV2" else 0

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        return [
            tf.pad(inputs[0][0], paddings, constant_values=value)
            if paddings.any()
            else inputs[0][0]
        ]

    return Part([kind], run)


@rule("MirrorPad")
def mirror_pad(node: Node) -> Part:
    """Return how a step runs a mirror pad along axes other than time."""
    stream = node.only()
    if node.bounds(1)[0][stream.axis].any():
        raise node.refusal_error("mirrors the start of the sequence, which reads later time steps")
    return rowwise(node)


@rule("ConcatV2")
def concatenation(node: Node) -> Part:
    """Return how a step runs a concatenation along channels, or of constant rows and a sequence."""
    axis = int(node.static(len(node.kinds) - 1)) % node.op.outputs[0].shape.rank
    axes = node.moving(0)
    if axes != [axis]:
        return rowwise(node)
    node.refuse_kinds()
    live = [index for index, kind in enumerate(node.kinds) if isinstance(kind, Stream)]
    if len(live) != 1:
        raise node.unsupported_error("it joins two sequences end to end")
    stream = node.streams()[0]
    rows = [tensor.shape[axis] for tensor in node.op.inputs[:-1]]
    moved = pad_stream(node, stream, sum(rows[: live[0]]), sum(rows[live[0] + 1 :]))
    kind = node.derive_kind(0, stream, offset=moved.offset, ahead=moved.ahead)
    return Part([kind], lambda inputs, call: [inputs[live[0]][0]])


@rule("Slice")
def slices(node: Node) -> Part:
    """Return how a step runs a `tf.slice`."""
    stream = node.kinds[0]
    if not isinstance(stream, Stream):
        return rowwise(node)
    first = node.entry(1, stream.axis)
    begin, sizes = (node.bounds(index)[0].copy() for index in (1, 2))
    begin[stream.axis], sizes[stream.axis] = 0, -1
    return _slice_stream(node, stream, first, lambda rows: tf.slice(rows, begin, sizes))


@rule("StridedSlice")
def strided_slices(node: Node) -> Part:
    """Return how a step runs `x[...]`, a strided slice."""
    stream = node.kinds[0]
    if not isinstance(stream, Stream):
        return rowwise(node)
    entry = entry_of(node, stream.axis)
    masks = {
        name: node.op.get_attr(name)
        for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    }
    first = 0
    if entry is not None:
        if masks["shrink_axis_mask"] >> entry & 1:
            return Part([node.derive_kind(0, stream)], None)
        if node.entry(3, entry) != 1:
            raise node.refusal_error("changes the rate of time (strided slice)")
        if not masks["begin_mask"] >> entry & 1:
            first = node.entry(1, entry)
        masks["begin_mask"] |= 1 << entry
        masks["end_mask"] |= 1 << entry
    bounds = [node.bounds(index)[0] for index in (1, 2, 3)]
    part = _slice_stream(node, stream, first, lambda rows: tf.strided_slice(rows, *bounds, **masks))
    part.is_alias &= bool(np.all(bounds[2] == 1))
    return part


def _slice_stream(
    node: Node, stream: Stream, first: int, run: Callable[[tf.Tensor], tf.Tensor]
) -> Part:
    if first and stream.is_merged:
        raise node.unsupported_error("it slices a merged axis")
    ahead = stream.ahead
    offset = None if stream.offset is None else stream.offset - first
    if first > 0:
        ahead = (*ahead, f"{node.layer} drops the first {first} of its rows")
    kind = node.derive_kind(0, stream, offset=offset, ahead=ahead)
    is_alias = isinstance(kind, Stream) and _others(node.op.inputs[0], stream.axis) == _others(
        node.op.outputs[0], kind.axis
    )
    return Part([kind], lambda inputs, call: [run(inputs[0][0])], is_alias=is_alias)


def _others(tensor: tf.Tensor, axis: int) -> list[int | None]:
    return [None if i == axis else size for i, size in enumerate(tensor.shape)]


def entry_of(node: Node, axis: int) -> int | None:
    """Return the index of an axis's entry in a StridedSlice's specification; None without one."""
    count = len(node.bounds(3)[0])
    new, ellipsis = (node.op.get_attr(f"{name}_mask") for name in ("new_axis", "ellipsis"))
    named = sum(not (new | ellipsis) >> i & 1 for i in range(count))
    dimension = 0
    for i in range(count):
        if ellipsis >> i & 1:
            skipped = node.op.inputs[0].shape.rank - named
            if dimension <= axis < dimension + skipped:
                return None
            dimension += skipped
        elif not new >> i & 1:
            if dimension == axis:
                return i
            dimension += 1
    return None
