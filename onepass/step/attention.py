"""Rules for pairs of time steps: attention's scores, masks, weights and products with values.

Pairs arise where a product or a broadcast combines two tensors with time at different axes.
Element-wise operations and a softmax over the keys keep them; a sum over the keys, or a product
that contracts the keys, consumes them. A step computes the rows of the current query time steps,
for all keys so far.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.step.replay import run_op, static_value
from onepass.step.streams import (
    ENDLESS,
    Call,
    Groups,
    Kind,
    Mask,
    Node,
    Pairs,
    Part,
    Refused,
    Run,
    Stream,
    Table,
    TableRead,
    Turned,
    Weights,
)
from onepass.step.time_rules import ELEMENTWISE, entry_of, masks_of, replay_operation

PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul")


def only_pairs(node: Node) -> Pairs:
    """Return the kind of the first input; raise an error unless it is a tensor of pairs."""
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported_error("its input is not a tensor of pairs")
    return kind


def _delay(node: Node, kind: Stream, is_query: bool) -> tuple[int, ...]:
    if (kind.offset or 0) < 0:
        raise node.unsupported_error("its first time steps were dropped")
    if kind.is_merged and (kind.offset or not is_query or node.type not in PRODUCTS):
        raise node.unsupported_error("time was merged with another axis")
    return (kind.offset or 0,)


def _reads(node: Node, labels: Mapping[int, Sequence], query: Any, key: Any, group: str) -> Part:
    """Return a part that reads inputs' growing axes, by their labels, as queries or as keys."""
    part = Part([], None, group=group)
    for index, own in labels.items():
        kind, at = node.kinds[index], dict(zip(own, growing_axes(node.kinds[index]), strict=True))
        if isinstance(kind, Pairs) or not {query, key} & at.keys():
            continue
        if index in node.static_inputs:
            part.tables[index] = TableRead(at.get(query), at.get(key))
        elif isinstance(kind, Stream):
            part.delays[index] = _delay(node, kind, key not in at)
            part.keys |= {index} if key in at else set()
    return part


def merged_group(node: Node, groups: Groups, query: int | str, axes: Sequence) -> str:
    """Return the group of a node's pairs, all of which must have the same orientation."""
    names = []
    for index, axis in axes:
        kind = node.kinds[index]
        if isinstance(kind, Pairs):
            if axis != query:
                raise turn(node, groups, kind.group)
            names.append(kind.group)
    for name in names[1:]:
        groups.join(names[0], name)
    return names[0] if names else node.op.name


def turn(node: Node, groups: Groups, group: str) -> Exception:
    """Return `Turned`, to swap a group's axes, or an error if they have already been swapped."""
    if group in groups.turned:
        return node.unsupported_error("it mixes queries with keys")
    return Turned(group)


def check_growth(node: Node, output: int, made: Pairs) -> Pairs:
    """Return `made` after checking that the output's axes grow by one entry per time step."""
    growth = node.lengths[1] - node.lengths[0]
    tensors = [op.outputs[output] for op in (node.op, node.longer)]
    for axis, entries in ((made.query, made.outer * made.inner), (made.key, 1)):
        if tensors[1].shape[axis] - tensors[0].shape[axis] != growth * entries:
            raise node.unsupported_error("its axes do not grow by one entry per time step")
    return made


def in_same_order(node: Node, output: int, like: Pairs) -> Pairs:
    """Return the pairs of an output that has its two time axes in the same order as its input."""
    axes = node.moving(output)
    if len(axes) != 2:
        raise node.unsupported_error("it does not keep both time axes")
    first, second = axes
    query, key = (first, second) if like.query < like.key else (second, first)
    return dataclasses.replace(like, query=query, key=key)


def growing_axes(kind: Kind) -> list[int]:
    """Return the growing axes of a tensor; for pairs, the query axis first."""
    if isinstance(kind, Pairs):
        return [kind.query, kind.key]
    if isinstance(kind, Table):
        return list(kind.axes)
    return [kind.axis] if isinstance(kind, Stream) else []


def plain(kind: Pairs) -> Pairs:
    """Return pairs with the same axes, without masks and not marked as a softmax."""
    return dataclasses.replace(kind, masks=(), is_softmax=False)


def _softmax(node: Node, groups: Groups) -> Part:
    kind = only_pairs(node)
    last = node.op.inputs[0].shape.rank - 1
    if kind.query == last:
        raise turn(node, groups, kind.group)
    if kind.key != last:
        return Part([plain(kind)], replay_operation(node), group=kind.group)
    groups.softmaxes.append((kind.group, kind.masks))
    made = dataclasses.replace(plain(kind), is_softmax=node.type == "Softmax")

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        scores, keys = inputs[0][0], call.keys(kind.group)
        if keys.is_window:  # the network has no mask for the zero rows before the first time step
            scores = tf.where(keys.times >= 0, scores, tf.constant(scores.dtype.min, scores.dtype))
        return run_op(node.op, [scores])

    return Part([made], run, group=kind.group)


def _reduction(node: Node, groups: Groups) -> Part:
    kind = only_pairs(node)
    rank = node.op.inputs[0].shape.rank
    axes = {int(axis) % rank for axis in np.ravel(node.static(1))}
    if kind.query in axes and kind.key not in axes:
        raise turn(node, groups, kind.group)
    if kind.query in axes:
        return Part(
            [Refused(f"{node.layer} reads all of the sequence at once ({node.type})")], None
        )
    if kind.key not in axes:
        made = in_same_order(node, 0, kind)
        return Part([plain(made)], replay_operation(node), group=kind.group)
    groups.unbounded.add(kind.group)
    if node.type == "Mean":
        raise node.refusal_error("averages over all time steps (Mean)")
    by = "" if kind.outer * kind.inner == 1 else node.layer
    stream = node.derive_kind(0, Stream(0, 0, ENDLESS, kind.outer, kind.inner, merged_by=by))
    return Part([stream], replay_operation(node), group=kind.group)


def _running(node: Node, groups: Groups) -> Part:
    kind = only_pairs(node)
    axis = int(node.static(1)) % node.op.inputs[0].shape.rank
    if axis == kind.query:
        raise turn(node, groups, kind.group)
    if axis == kind.key:
        groups.unbounded.add(kind.group)
    return Part([plain(kind)], replay_operation(node), group=kind.group)


def _product(node: Node, groups: Groups) -> Part:
    sources, target = _labels(node)
    growing = [
        [letters[axis] for axis in growing_axes(kind)]
        for letters, kind in zip(sources, node.kinds, strict=True)
    ]
    both = [i for i, kind in enumerate(node.kinds) if isinstance(kind, Pairs)]
    if both:
        query, key = growing[both[0]]
        oriented = [(i, growing[i][0]) for i in both]
        group = merged_group(node, groups, query, oriented)
    else:
        query, key = _letters(node, groups, growing, target)
        group = node.op.name
    if any(letter not in (query, key) for letters in growing for letter in letters):
        raise node.unsupported_error("three axes of its output grow with time")
    if query not in target:
        raise turn(node, groups, group)
    merged = [
        (kind.outer, kind.inner)
        for kind, letters in zip(node.kinds, growing, strict=True)
        if query in letters and isinstance(kind, Stream | Pairs)
    ]
    if len(set(merged)) > 1:
        raise node.unsupported_error("the query's time was merged with another axis")
    outer, inner = merged[0] if merged else (1, 1)
    part = _reads(node, dict(enumerate(growing)), query, key, group)
    if key in target:
        made = Pairs(target.index(query), target.index(key), group, outer, inner)
        kind: Kind = check_growth(node, 0, made)
    else:
        by = "" if outer * inner == 1 else node.layer
        kind = node.derive_kind(0, Stream(0, 0, ENDLESS, outer, inner, merged_by=by))
        _note_weights(node, groups, growing, group)
    part.kinds, part.run = [kind], replay_operation(node)
    return part


def _labels(node: Node) -> tuple[list[str], str]:
    if node.type == "Einsum":
        sources, target = node.op.get_attr("equation").decode().split("->")
        letters = sources.split(",")
        if "." in sources:
            return _without_ellipsis(node, letters, target)
        return letters, target
    ranks = [tensor.shape.rank for tensor in node.op.inputs]
    first, second = ("adj_x", "adj_y") if node.type != "MatMul" else ("transpose_a", "transpose_b")
    lead = "abcdefghijklm"[: max(ranks) - 2]
    left = "zx" if node.op.get_attr(first) else "xz"
    right = "yz" if node.op.get_attr(second) else "zy"
    leads = [lead[len(lead) - (rank - 2) :] for rank in ranks]
    return [leads[0] + left, leads[1] + right], lead + "xy"


def _without_ellipsis(node: Node, letters: list[str], target: str) -> tuple[list[str], str]:
    free = [letter for letter in "ABCDEFGHIJKLM" if letter not in "".join(letters)]
    counts = [
        tensor.shape.rank - len(text.replace("...", ""))
        for text, tensor in zip(letters, node.op.inputs, strict=True)
    ]
    named = "".join(free[: max(counts)])

    def write_letters(text: str, count: int) -> str:
        return text.replace("...", named[len(named) - count :])

    given = [write_letters(text, count) for text, count in zip(letters, counts, strict=True)]
    return given, write_letters(target, max(counts))


def _letters(
    node: Node, groups: Groups, growing: Sequence[list[str]], target: str
) -> tuple[str, str]:
    every = dict.fromkeys(letter for letters in growing for letter in letters)
    kept = sorted((letter for letter in every if letter in target), key=target.index)
    if len(every) != 2 or not kept:
        raise node.unsupported_error("three axes of its output grow with time")
    if len(kept) == 2:
        first, second = groups.axes(node.op.name, 0, 1)
        return kept[first], kept[second]
    groups.axes(node.op.name, 0, 1)
    return kept[0], next(letter for letter in every if letter != kept[0])


def _note_weights(node: Node, groups: Groups, growing: Sequence[list[str]], group: str) -> None:
    """Record pairs that are multiplied with values, to check later that they do not look ahead."""
    for index, kind in enumerate(node.kinds):
        if len(growing[index]) == 2:
            tensor = node.op.inputs[index].name
            query, key = growing_axes(kind)
            if not isinstance(kind, Pairs) and growing[index][0] not in _labels(node)[1]:
                query, key = key, query
            groups.weights.append(Weights(tensor, query, key, node.layer))
            if not (isinstance(kind, Pairs) and kind.is_softmax):
                groups.unbounded.add(group)


def _transpose(node: Node, _: Groups) -> Part:
    kind = only_pairs(node)
    order = [int(axis) for axis in node.static(1)]
    query, key = order.index(kind.query), order.index(kind.key)
    made = dataclasses.replace(kind, query=query, key=key)
    return Part([made], replay_operation(node), group=kind.group)


def _reshape(node: Node, _: Groups) -> Part:
    kind = only_pairs(node)
    axes = in_same_order(node, 0, kind)
    query, key = axes.query, axes.key
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


def _band_part(node: Node, _: Groups) -> Part:
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


def _slice_pairs(node: Node, _: Groups) -> Part:
    kind = only_pairs(node)
    if len(node.moving(0)) != 2:
        raise node.unsupported_error("it reads some of the pairs")
    made = in_same_order(node, 0, kind)
    for axis in (kind.query, kind.key):
        _require_all(node, axis)
    bounds = [node.bounds(i)[0].copy() for i in range(1, len(node.op.inputs))]
    if node.type == "Slice":
        begin, size = bounds
        size[[kind.query, kind.key]] = -1
        return Part([made], lambda x, _: [tf.slice(x[0][0], begin, size)], group=kind.group)
    begin, end, strides = bounds
    masks = masks_of(node)
    for axis in (kind.query, kind.key):
        entry = entry_of(node, axis)
        if entry is not None:
            masks["begin_mask"] |= 1 << entry
            masks["end_mask"] |= 1 << entry

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        return [tf.strided_slice(inputs[0][0], begin, end, strides, **masks)]

    return Part([made], run, group=kind.group)


def _require_all(node: Node, axis: int) -> None:
    moving = node.moving(0)
    sizes = [node.op.inputs[0].shape[axis], *(node.op.outputs[0].shape[i] for i in moving)]
    entry = axis if node.type == "Slice" else entry_of(node, axis)
    if entry is None:
        return
    if len(set(sizes)) > 1 or (node.type == "StridedSlice" and node.entry(3, entry) != 1):
        raise node.unsupported_error("it reads some of the pairs")


# Scores at or below this value get no weight in a softmax, unless all scores of a query are so low.
HIDDEN = -1e4
REDUCTIONS = ("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum")
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
    if node.type not in RULES:
        raise node.unsupported_error("there is no rule for it on pairs of time steps")
    return RULES[node.type](node, groups)


def _elementwise(node: Node, groups: Groups) -> Part:
    moving = node.moving(0)
    if len(moving) != 2:
        raise node.unsupported_error("it does not keep both time axes")
    aligned = {i: _align_axes(node, i, moving) for i, k in enumerate(node.kinds) if growing_axes(k)}
    first = next((i for i, kind in enumerate(node.kinds) if isinstance(kind, Pairs)), None)
    query, key = (
        aligned[first] if first is not None else groups.axes(node.op.name, moving[0], moving[1])
    )
    oriented = [(i, axes[0]) for i, axes in aligned.items() if isinstance(node.kinds[i], Pairs)]
    group = merged_group(node, groups, query, oriented)
    part = _reads(node, aligned, query, key, group)
    made, before = Pairs(query, key, group), None if first is None else node.kinds[first]
    if first is not None and isinstance(before, Pairs):
        masks = _masks(node, first, before.masks)
        made = dataclasses.replace(before, query=query, key=key, group=group, masks=masks)
        if (made.outer, made.inner) != (1, 1) and len(aligned) > 1:
            raise node.unsupported_error("the query's time was merged with another axis")
    outputs = range(node.num_outputs)
    part.kinds = [check_growth(node, i, in_same_order(node, i, made)) for i in outputs]
    part.run = _run_with_shape(node, made)
    return part


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


RULES: dict[str, Callable[[Node, Groups], Part]] = {
    **dict.fromkeys((*SHAPED, *PLAIN, *ELEMENTWISE), _elementwise),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(("Cumprod", "Cumsum", "CumulativeLogsumexp"), _running),
    **dict.fromkeys(("Slice", "StridedSlice"), _slice_pairs),
    "MatrixBandPart": _band_part,
    "Reshape": _reshape,
    "Transpose": _transpose,
}


def _masks(node: Node, first: int, before: tuple[Mask, ...]) -> tuple[Mask, ...]:
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
