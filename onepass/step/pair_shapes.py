"""Rules for operations that move or slice the axes of pairs of time steps."""

import dataclasses
import math

import tensorflow as tf

from onepass.step.pair_kinds import check_growth, only_pairs, plain, same_order
from onepass.step.rowwise import replay_operation
from onepass.step.shifts import entry_of
from onepass.step.streams import Call, Node, Part


def transpose(node: Node) -> Part:
    """Return how a step runs a transpose."""
    kind = only_pairs(node)
    order = [int(axis) for axis in node.static(1)]
    made = kind.with_axes(order.index(kind.query), order.index(kind.key))
    return Part([made], replay_operation(node), group=kind.group)


def reshape(node: Node) -> Part:
    """Return how a step runs a reshape that may merge the query axis with others, or split it."""
    kind = only_pairs(node)
    query, key = same_order(node, 0, kind)
    before, after = node.op.inputs[0].shape.as_list(), node.op.outputs[0].shape.as_list()
    parts = _around(before, kind.query, kind.key), _around(after, query, key)
    (outer, left), (inner, right) = (
        divmod(parts[0][i] * size, parts[1][i]) for i, size in ((0, kind.outer), (1, kind.inner))
    )
    if left or right or parts[0][2] != parts[1][2]:
        raise node.unsupported_error("it merges the keys' axis with another one")
    made = dataclasses.replace(kind, query=query, key=key, outer=outer, inner=inner)

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = list(after)
        sizes[query], sizes[key] = outer * call.rows * inner, call.keys(kind.group).count
        return [tf.reshape(inputs[0][0], sizes)]

    return Part([check_growth(node, 0, made)], run, group=kind.group)


def _around(shape: list[int], query: int, key: int) -> tuple[int, int, int]:
    """Return the numbers of entries before the query axis, after it, and beyond the key axis.

    The first two count only axes on the same side of the key axis as the query axis.
    """
    first, last = math.prod(shape[: min(query, key)]), math.prod(shape[max(query, key) + 1 :])
    between = math.prod(shape[min(query, key) + 1 : max(query, key)])
    return (first, between, last) if query < key else (between, last, first)


def band_part(node: Node) -> Part:
    """Return how a step runs `tf.linalg.band_part` over the two time axes."""
    kind, rank = only_pairs(node), node.op.inputs[0].shape.rank
    is_last = {kind.query, kind.key} == {rank - 2, rank - 1}
    if not is_last or kind.outer * kind.inner != 1:
        raise node.unsupported_error("its last two axes are not those of time")
    below, above = int(node.static(1)), int(node.static(2))

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        distances = call.keys(kind.group).distances  # row minus column, if rows are queries
        down = distances if kind.query < kind.key else -tf.transpose(distances)
        kept = tf.ones_like(down, tf.bool)
        kept &= True if below < 0 else down <= below
        kept &= True if above < 0 else -down <= above
        return [tf.where(kept, inputs[0][0], tf.zeros([], inputs[0][0].dtype))]

    return Part([plain(kind)], run, group=kind.group)


def slice_pairs(node: Node) -> Part:
    """Return how a step runs a slice along axes other than the two time axes."""
    kind = only_pairs(node)
    if len(node.moving(0)) != 2:
        raise node.unsupported_error("it reads some of the pairs")
    made = kind.with_axes(*same_order(node, 0, kind))
    for axis in (kind.query, kind.key):
        _require_all(node, axis)
    bounds = [node.bounds(i)[0].copy() for i in range(1, len(node.op.inputs))]
    if node.type == "Slice":
        bounds[1][[kind.query, kind.key]] = -1
        return Part([made], lambda x, _: [tf.slice(x[0][0], *bounds)], group=kind.group)
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = {name: node.op.get_attr(name) for name in names}
    for axis in (kind.query, kind.key):
        entry = entry_of(node, axis)
        if entry is not None:
            masks["begin_mask"] |= 1 << entry
            masks["end_mask"] |= 1 << entry
    return Part(
        [made], lambda x, _: [tf.strided_slice(x[0][0], *bounds, **masks)], group=kind.group
    )


def _require_all(node: Node, axis: int) -> None:
    moving = node.moving(0)
    sizes = [node.op.inputs[0].shape[axis], *(node.op.outputs[0].shape[i] for i in moving)]
    entry = axis if node.type == "Slice" else entry_of(node, axis)
    if entry is None:
        return
    if len(set(sizes)) > 1 or (node.type == "StridedSlice" and node.entry(3, entry) != 1):
        raise node.unsupported_error("it reads some of the pairs")
