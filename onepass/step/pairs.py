"""Rules for pairs of time steps: attention scores, masks, weights and products with values.

Pairs arise where a product or a broadcast combines two tensors with time at different axes.
Element-wise operations and a softmax over the keys keep them; a sum over the keys, or a product
that contracts the keys, consumes them. A step computes the rows of the current query time steps,
for all keys so far.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.step.groups import Groups
from onepass.step.pair_ends import reduction, running, softmax
from onepass.step.pair_kinds import (
    PRODUCTS,
    Reads,
    check_growth,
    growing_axes,
    merged_group,
    same_order,
)
from onepass.step.pair_products import product
from onepass.step.pair_shapes import band_part, reshape, slice_pairs, transpose
from onepass.step.rowwise import ELEMENTWISE, replay_operation
from onepass.step.sizes import static_value
from onepass.step.streams import Call, Kind, Mask, Node, Pairs, Part, Run, Table

# Scores at or below this value get no weight in a softmax, unless all scores of a query are so low.
HIDDEN = -1e4
REDUCTIONS = ("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum")
SUMS = ("Cumprod", "Cumsum", "CumulativeLogsumexp")
SHAPED = ("BroadcastTo", "Tile")
# Operations on other axes, which keep the order of the two time axes.
PLAIN = ("ConcatV2", "ExpandDims", "GatherV2", "Pack", "Split", "SplitV", "Squeeze", "Unpack")
# Element-wise operations that keep hidden scores hidden.
KEEPS_HIDDEN = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose")


def concerns(node: Node) -> bool:
    """Return whether an operation reads or creates pairs."""
    kinds = node.kinds
    is_pairs = any(isinstance(kind, Pairs) for kind in kinds)
    is_table = any(isinstance(kind, Table) and len(kind.axes) > 1 for kind in kinds)
    return is_pairs or is_table or any(len(node.moving(i)) > 1 for i in range(node.num_outputs))


def pairs(node: Node, groups: Groups) -> Part:
    """Return how a step runs an operation on pairs; raise Turned to swap a group's axes."""
    node.refuse_kinds(but=[1] if node.type in (*SHAPED, "Reshape") else [])
    if any(isinstance(kind, Table) and len(kind.axes) > 2 for kind in node.kinds):
        raise node.unsupported_error("three axes of its input grow with time")
    if node.type in PRODUCTS:
        return product(node, groups)
    if node.type in ("Softmax", "LogSoftmax"):
        return softmax(node, groups)
    if node.type in REDUCTIONS:
        return reduction(node, groups)
    if node.type == "Transpose":
        return transpose(node)
    if node.type == "Reshape":
        return reshape(node)
    if node.type == "MatrixBandPart":
        return band_part(node)
    if node.type in SUMS:
        return running(node, groups)
    if node.type in ("Slice", "StridedSlice"):
        return slice_pairs(node)
    if node.type in SHAPED or node.type in PLAIN or node.type in ELEMENTWISE:
        return _elementwise(node, groups)
    raise node.unsupported_error("there is no rule for it on pairs of time steps")


def _elementwise(node: Node, groups: Groups) -> Part:
    moving = node.moving(0)
    if len(moving) != 2:
        raise node.unsupported_error("it does not keep both time axes")
    aligned = {i: _align_axes(node, i, moving) for i, k in enumerate(node.kinds) if growing_axes(k)}
    first = next((i for i, kind in enumerate(node.kinds) if isinstance(kind, Pairs)), None)
    if first is None:
        query, key = groups.axes(node.op.name, *moving)
    else:
        query, key = aligned[first]
    oriented = [(i, axes[0]) for i, axes in aligned.items() if isinstance(node.kinds[i], Pairs)]
    group = merged_group(node, groups, query, oriented)
    reads = Reads(node)
    for index, axes in aligned.items():
        own = dict(zip(axes, growing_axes(node.kinds[index]), strict=True))
        reads.add(index, own.get(query), own.get(key))
    before = node.kinds[first] if first is not None else None
    made = Pairs(query, key, group, masks=_masks(node, first))
    if isinstance(before, Pairs):
        made = dataclasses.replace(
            made, outer=before.outer, inner=before.inner, is_softmax=before.is_softmax
        )
        if (made.outer, made.inner) != (1, 1) and len(aligned) > 1:
            raise node.unsupported_error("the query's time was merged with another axis")
    kinds: list[Kind] = [
        check_growth(node, i, made.with_axes(*same_order(node, i, made)))
        for i in range(node.num_outputs)
    ]
    return reads.part(kinds, _run_with_shape(node, made), group)


def _align_axes(node: Node, index: int, moving: list[int]) -> list[int]:
    """Return the output axes that match an input's time axes; for pairs, the query first."""
    growing = growing_axes(node.kinds[index])
    if len(growing) == 2:
        return [moving[sorted(growing).index(axis)] for axis in growing]
    if node.type in PLAIN:
        raise node.unsupported_error("it makes pairs of time steps in a way that has no rule")
    ranks = [tensor.shape.rank for tensor in (node.op.outputs[0], node.op.inputs[index])]
    return [growing[0] + ranks[0] - ranks[1]]


def _run_with_shape(node: Node, made: Pairs) -> Run:
    if node.type not in SHAPED:
        return replay_operation(node)
    shape = node.op.outputs[0].shape.as_list()
    if node.type == "Tile":
        for axis, size in enumerate(node.op.inputs[0].shape):
            if size not in (1, shape[axis]):
                raise node.unsupported_error("it repeats an axis of several entries")

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = list(shape)
        sizes[made.query], sizes[made.key] = call.rows, call.keys(made.group).count
        return [tf.broadcast_to(inputs[0][0], sizes)]

    return run


def _masks(node: Node, first: int | None) -> tuple[Mask, ...]:
    pairs_before = None if first is None else node.kinds[first]
    if first is None or not isinstance(pairs_before, Pairs):
        return ()
    before = pairs_before.masks
    if node.type in KEEPS_HIDDEN:
        return before
    name, kinds = node.op.name, node.kinds
    if node.type in ("Add", "AddV2", "Sub") and first == 0 and isinstance(kinds[1], Table):
        # Attention hides a pair by adding a number so low that its softmax is 0.
        sign = -1.0 if node.type == "Sub" else 1.0
        return (*before, Mask(name, 1, lambda values: sign * values <= HIDDEN))
    if node.type in ("Add", "AddV2") and isinstance(kinds[0], Table):
        return (*before, Mask(name, 0, lambda values: values <= HIDDEN))
    if node.type in ("Select", "SelectV2") and isinstance(kinds[0], Table):
        other = static_value(node.op.inputs[3 - first]) if kinds[3 - first] is None else None
        if other is not None and np.all(other <= HIDDEN):
            if first == 1:
                return (*before, Mask(name, 0, np.logical_not))
            return (*before, Mask(name, 0, lambda values: values.astype(bool)))
    return ()
