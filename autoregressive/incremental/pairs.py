"""Operations on pairs of times: attention scores, masks, weights and their products with values.

A tensor has pairs where a product or a broadcast brings together two tensors with time at different
axes. Element-wise operations keep them; a softmax or a sum over the keys, or a product that
contracts the keys, ends them. A step computes the rows of its own query times, for all keys so far.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from autoregressive.incremental.groups import Groups, Turned, Weights
from autoregressive.incremental.replay import run_op
from autoregressive.incremental.rowwise import ELEMENTWISE
from autoregressive.incremental.shifts import entry_of
from autoregressive.incremental.sizes import static_value
from autoregressive.incremental.streams import (
    ENDLESS,
    Call,
    Kind,
    Mask,
    Node,
    Pairs,
    Part,
    Refused,
    Stream,
    Table,
    TableRead,
)

# Scores at or below it have no weight after a softmax, unless all scores of a query do.
HIDDEN = -1e4
REDUCTIONS = ("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum")
PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul")
SUMS = ("Cumprod", "Cumsum", "CumulativeLogsumexp")
SHAPED = ("BroadcastTo", "Tile")
# Operations on other axes than those of time, which stay in order.
PLAIN = ("ConcatV2", "ExpandDims", "GatherV2", "Pack", "Split", "SplitV", "Squeeze", "Unpack")
# Element-wise operations that keep hidden scores hidden.
KEEPS_HIDDEN = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose")


def concerns(node: Node) -> bool:
    """Return whether an operation reads or makes pairs."""
    kinds = node.kinds
    is_pairs = any(isinstance(kind, Pairs) for kind in kinds)
    is_table = any(isinstance(kind, Table) and len(kind.axes) > 1 for kind in kinds)
    return is_pairs or is_table or any(len(node.moving(i)) > 1 for i in range(node.num_outputs))


def pairs(node: Node, groups: Groups) -> Part:
    """Return the part of an operation that reads or makes pairs.

    Raises:
      Turned: a group's query axis is the second one.
    """
    node.refuse_kinds(but=[1] if node.type in (*SHAPED, "Reshape") else [])
    if any(isinstance(kind, Table) and len(kind.axes) > 2 for kind in node.kinds):
        raise node.unsupported("three axes of its input grow with time")
    if node.type in PRODUCTS:
        return _product(node, groups)
    if node.type in ("Softmax", "LogSoftmax"):
        return _softmax(node, groups)
    if node.type in REDUCTIONS:
        return _reduction(node, groups)
    if node.type == "Transpose":
        return _transpose(node)
    if node.type == "Reshape":
        return _reshape(node)
    if node.type == "MatrixBandPart":
        return _band_part(node)
    if node.type in SUMS:
        return _running(node, groups)
    if node.type in ("Slice", "StridedSlice"):
        return _sliced(node)
    if node.type in SHAPED or node.type in PLAIN or node.type in ELEMENTWISE:
        return _elementwise(node, groups)
    raise node.unsupported("there is no rule for it on pairs of times")


def _delay(node: Node, kind: Stream, is_query: bool) -> tuple[int, ...]:
    """Return the delay that aligns an input's row i with time i."""
    if (kind.offset or 0) < 0:
        raise node.unsupported("its first times were dropped")
    if kind.is_merged and (kind.offset or not is_query or node.type not in PRODUCTS):
        raise node.unsupported("time was merged with another axis")
    return (kind.offset or 0,)


class _Reads:
    """The inputs of a part, as they are read along the query's and the key's times."""

    def __init__(self, node: Node):
        self._node = node
        self.delays: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, TableRead] = {}
        self.keys: set[int] = set()

    def add(self, index: int, query: int | None, key: int | None) -> None:
        """Note the axis of an input that has the query's times, and the one that has keys."""
        kind, node = self._node.kinds[index], self._node
        if isinstance(kind, Pairs) or (query is None and key is None):
            return
        if index in node.static_inputs:
            self.tables[index] = TableRead(query, key)
        elif isinstance(kind, Stream):
            self.delays[index] = _delay(node, kind, key is None)
            if key is not None:
                self.keys.add(index)

    def part(self, kinds: list[Kind], run, group: str) -> Part:
        """Return the part of these reads."""
        return Part(
            kinds, run, self.delays, tables=self.tables, keys=frozenset(self.keys), group=group
        )


def _merged_group(node: Node, groups: Groups, query: int, key: int, axes: Sequence) -> str:
    """Return the group of a node's pairs, all of which must have the same orientation.

    Args:
      node: reads pairs, or makes the first ones of a group.
      groups: of the graph.
      query: the query axis in the coordinates of `axes`.
      key: the key axis.
      axes: for every input that has pairs, its index and its query axis.
    """
    names = []
    for index, axis in axes:
        kind = node.kinds[index]
        if axis != query:
            raise _turn(node, groups, kind.group)
        names.append(kind.group)
    for name in names[1:]:
        groups.join(names[0], name)
    return names[0] if names else node.op.name


def _turn(node: Node, groups: Groups, group: str) -> Exception:
    if group in groups.turned:
        return node.unsupported("it mixes queries with keys")
    return Turned(group)


def _elementwise(node: Node, groups: Groups) -> Part:
    rank = node.op.outputs[0].shape.rank
    moving = node.moving(0)
    if len(moving) != 2:
        raise node.unsupported("it does not keep both times")
    if len(node.op.inputs) > 1 and node.type not in (*SHAPED, *PLAIN):
        shifts = [rank - tensor.shape.rank for tensor in node.op.inputs]
    else:
        shifts = [None] * len(node.op.inputs)
    aligned: dict[int, list[int]] = {}
    for index, kind in enumerate(node.kinds):
        growing = _axes(kind)
        if not growing:
            continue
        if len(growing) == 2:  # both axes keep their order
            aligned[index] = [moving[sorted(growing).index(axis)] for axis in growing]
        elif shifts[index] is None:
            aligned[index] = [_aligned(node, index, growing[0], moving)]
        else:
            aligned[index] = [growing[0] + shifts[index]]
    first = next((i for i, kind in enumerate(node.kinds) if isinstance(kind, Pairs)), None)
    if first is None:
        query, key = groups.axes(node.op.name, *moving)
    else:
        query, key = aligned[first]
    oriented = [(i, axes[0]) for i, axes in aligned.items() if isinstance(node.kinds[i], Pairs)]
    group = _merged_group(node, groups, query, key, oriented)
    reads = _Reads(node)
    for index, axes in aligned.items():
        own = dict(zip(axes, _axes(node.kinds[index]), strict=True))
        reads.add(index, own.get(query), own.get(key))
    before = node.kinds[first] if first is not None else None
    made = Pairs(query, key, group, masks=_masks(node, first))
    if before is not None:
        made = dataclasses.replace(
            made, outer=before.outer, inner=before.inner, is_softmax=before.is_softmax
        )
        if (made.outer, made.inner) != (1, 1) and len(aligned) > 1:
            raise node.unsupported("the query's time was merged with another axis")
    kinds: list[Kind] = [
        _checked(node, i, made.moved(*_same_order(node, i, made))) for i in range(node.num_outputs)
    ]
    return reads.part(kinds, _shaped(node, made), group)


def _checked(node: Node, output: int, made: Pairs) -> Pairs:
    """Return the kind of an output, whose axes must grow by an entry per time.

    Raises:
      UnsupportedNetworkError: they do not, like scores of relative positions before their shift.
    """
    growth = node.lengths[1] - node.lengths[0]
    tensors = [op.outputs[output] for op in (node.op, node.longer)]
    for axis, entries in ((made.query, made.outer * made.inner), (made.key, 1)):
        if tensors[1].shape[axis] - tensors[0].shape[axis] != growth * entries:
            raise node.unsupported("its axes do not grow by one entry per time")
    return made


def _same_order(node: Node, output: int, like: Pairs) -> tuple[int, int]:
    first, second = node.moving(output)
    return (first, second) if like.query < like.key else (second, first)


def _axes(kind: Kind) -> list[int]:
    """Return the axes of a tensor that grow, the query's first for pairs."""
    if isinstance(kind, Pairs):
        return [kind.query, kind.key]
    if isinstance(kind, Table):
        return list(kind.axes)
    return [kind.axis] if isinstance(kind, Stream) else []


def _aligned(node: Node, index: int, axis: int, moving: list[int]) -> int:
    """Return the output axis of an input's time where the output has one more axis that grows."""
    if node.type in ("BroadcastTo", "Tile"):
        return axis + node.op.outputs[0].shape.rank - node.op.inputs[index].shape.rank
    raise node.unsupported("it makes pairs of times in a way that has no rule")


def _shaped(node: Node, made: Pairs):
    """Return the `run` of an operation whose output has the sizes of `made`."""
    if node.type not in SHAPED:
        return lambda inputs, call: run_op(node.op, [delays[0] for delays in inputs])
    shape = node.op.outputs[0].shape.as_list()
    if node.type == "Tile":
        for axis, size in enumerate(node.op.inputs[0].shape):
            if size not in (1, shape[axis]):
                raise node.unsupported("it repeats an axis of several entries")

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = list(shape)
        sizes[made.query], sizes[made.key] = call.rows, call.keys(made.group).count
        return [tf.broadcast_to(inputs[0][0], sizes)]

    return run


def _masks(node: Node, first: int | None) -> tuple[Mask, ...]:
    """Return the masks that hide pairs of an operation's output."""
    if first is None:
        return ()
    before: tuple[Mask, ...] = node.kinds[first].masks
    if node.type in KEEPS_HIDDEN:
        return before
    name, kinds = node.op.name, node.kinds
    if node.type in ("Add", "AddV2", "Sub") and first == 0 and isinstance(kinds[1], Table):
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


def _labels(node: Node) -> tuple[list[str], str]:
    """Return a product's axes as letters, of every input and of the output."""
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

    def written(text: str, count: int) -> str:
        return text.replace("...", named[len(named) - count :])

    given = [written(text, count) for text, count in zip(letters, counts, strict=True)]
    return given, written(target, max(counts))


def _product(node: Node, groups: Groups) -> Part:
    sources, target = _labels(node)
    growing = [
        [letters[axis] for axis in _axes(kind)]
        for letters, kind in zip(sources, node.kinds, strict=True)
    ]
    both = [i for i, kind in enumerate(node.kinds) if isinstance(kind, Pairs)]
    if both:
        query, key = growing[both[0]]
        oriented = [(i, growing[i][0]) for i in both]
        group = _merged_group(node, groups, query, key, oriented)
    else:
        query, key = _letters(node, groups, growing, target)
        group = node.op.name
    if any(letter not in (query, key) for letters in growing for letter in letters):
        raise node.unsupported("three axes of its output grow with time")
    if query not in target:
        raise _turn(node, groups, group)
    merged = [
        (kind.outer, kind.inner)
        for kind, letters in zip(node.kinds, growing, strict=True)
        if query in letters and isinstance(kind, Stream | Pairs)
    ]
    if len(set(merged)) > 1:
        raise node.unsupported("the query's time was merged with another axis")
    outer, inner = merged[0] if merged else (1, 1)
    reads = _Reads(node)
    for index, letters in enumerate(growing):
        at = {letter: axis for letter, axis in zip(letters, _axes(node.kinds[index]), strict=True)}
        reads.add(index, at.get(query), at.get(key))
    if key in target:
        made = Pairs(target.index(query), target.index(key), group, outer, inner)
        kind: Kind = _checked(node, 0, made)
    else:
        by = "" if outer * inner == 1 else node.layer
        kind = node.grown(0, Stream(0, 0, ENDLESS, outer, inner, merged_by=by))
        _note_weights(node, groups, growing, group)
    return reads.part([kind], lambda inputs, call: run_op(node.op, [x[0] for x in inputs]), group)


def _letters(node: Node, groups: Groups, growing: list, target: str) -> tuple[str, str]:
    """Return the letters of query and key for a product without pairs among its inputs."""
    every = dict.fromkeys(letter for letters in growing for letter in letters)
    kept = sorted((letter for letter in every if letter in target), key=target.index)
    if len(every) != 2 or not kept:
        raise node.unsupported("three axes of its output grow with time")
    if len(kept) == 2:
        query, key = groups.axes(node.op.name, *kept)
    else:
        groups.axes(node.op.name, 0, 1)
        query, key = kept[0], next(letter for letter in every if letter != kept[0])
    return str(query), str(key)


def _note_weights(node: Node, groups: Groups, growing: list, group: str) -> None:
    """Note the pairs that values are multiplied with, to be checked for later times."""
    for index, kind in enumerate(node.kinds):
        if len(growing[index]) == 2:
            tensor = node.op.inputs[index].name
            query, key = _axes(kind)
            if not isinstance(kind, Pairs) and growing[index][0] not in _labels(node)[1]:
                query, key = key, query
            groups.weights.append(Weights(tensor, query, key, node.layer))
            if not (isinstance(kind, Pairs) and kind.is_softmax):
                groups.unbounded.add(group)


def _softmax(node: Node, groups: Groups) -> Part:
    kind = node.kinds[0]
    if isinstance(kind, Table):
        raise node.unsupported("it reads a table of pairs")
    last = node.op.inputs[0].shape.rank - 1
    if kind.query == last:
        raise _turn(node, groups, kind.group)
    if kind.key != last:
        return Part([_plain(kind)], _replayed(node), group=kind.group)
    groups.softmaxes.append((kind.group, kind.masks))
    made = dataclasses.replace(_plain(kind), is_softmax=node.type == "Softmax")

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        scores, keys = inputs[0][0], call.keys(kind.group)
        if keys.is_window:  # rows before the first time are zeros that no mask of the network hides
            scores = tf.where(keys.times >= 0, scores, tf.constant(scores.dtype.min, scores.dtype))
        return run_op(node.op, [scores])

    return Part([made], run, group=kind.group)


def _replayed(node: Node):
    return lambda inputs, call: run_op(node.op, [delays[0] for delays in inputs])


def _reduction(node: Node, groups: Groups) -> Part:
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported("its input is no tensor of pairs")
    rank = node.op.inputs[0].shape.rank
    axes = {int(axis) % rank for axis in np.ravel(node.static(1))}
    if kind.query in axes and kind.key not in axes:
        raise _turn(node, groups, kind.group)
    if kind.query in axes:
        return Part(
            [Refused(f"{node.layer} reads all of the sequence at once ({node.type})")], None
        )
    if kind.key not in axes:
        made = kind.moved(*_same_order(node, 0, kind))
        return Part([_plain(made)], _replayed(node), group=kind.group)
    groups.unbounded.add(kind.group)
    if node.type == "Mean":
        raise node.refused("averages over all times (Mean)")
    by = "" if kind.outer * kind.inner == 1 else node.layer
    stream = node.grown(0, Stream(0, 0, ENDLESS, kind.outer, kind.inner, merged_by=by))
    return Part([stream], _replayed(node), group=kind.group)


def _transpose(node: Node) -> Part:
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported("its input is no tensor of pairs")
    order = [int(axis) for axis in node.static(1)]
    made = kind.moved(order.index(kind.query), order.index(kind.key))
    return Part([made], _replayed(node), group=kind.group)


def _plain(kind: Pairs) -> Pairs:
    """Return pairs of the same axes whose values hide nothing."""
    return dataclasses.replace(kind, masks=(), is_softmax=False)


def _reshape(node: Node) -> Part:
    """Return the part of a reshape, which may merge the query's axis with others and split it."""
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported("its input is no tensor of pairs")
    query, key = _same_order(node, 0, kind)
    before, after = node.op.inputs[0].shape.as_list(), node.op.outputs[0].shape.as_list()
    parts = _around(before, kind.query, kind.key), _around(after, query, key)
    (outer, left), (inner, right) = (
        divmod(parts[0][i] * size, parts[1][i]) for i, size in ((0, kind.outer), (1, kind.inner))
    )
    if left or right or parts[0][2] != parts[1][2]:
        raise node.unsupported("it merges the keys' axis with another one")
    made = dataclasses.replace(kind, query=query, key=key, outer=outer, inner=inner)

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        sizes = list(after)
        sizes[query], sizes[key] = outer * call.rows * inner, call.keys(kind.group).count
        return [tf.reshape(inputs[0][0], sizes)]

    return Part([_checked(node, 0, made)], run, group=kind.group)


def _around(shape: list[int], query: int, key: int) -> tuple[int, int, int]:
    """Return the sizes before and after the query's axis up to the keys', and of the rest."""
    first, last = math.prod(shape[: min(query, key)]), math.prod(shape[max(query, key) + 1 :])
    between = math.prod(shape[min(query, key) + 1 : max(query, key)])
    return (first, between, last) if query < key else (between, last, first)


def _band_part(node: Node) -> Part:
    kind, rank = node.kinds[0], node.op.inputs[0].shape.rank
    is_last = isinstance(kind, Pairs) and {kind.query, kind.key} == {rank - 2, rank - 1}
    if not is_last or kind.outer * kind.inner != 1:
        raise node.unsupported("its last two axes are not those of time")
    below, above = int(node.static(1)), int(node.static(2))

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        distances = call.keys(kind.group).distances  # row minus column, if rows are queries
        down = distances if kind.query < kind.key else -tf.transpose(distances)
        kept = tf.ones_like(down, tf.bool)
        kept &= True if below < 0 else down <= below
        kept &= True if above < 0 else -down <= above
        return [tf.where(kept, inputs[0][0], tf.zeros([], inputs[0][0].dtype))]

    return Part([_plain(kind)], run, group=kind.group)


def _running(node: Node, groups: Groups) -> Part:
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported("its input is no tensor of pairs")
    axis = int(node.static(1)) % node.op.inputs[0].shape.rank
    if axis == kind.query:
        raise _turn(node, groups, kind.group)
    if axis == kind.key:
        groups.unbounded.add(kind.group)
    return Part([_plain(kind)], _replayed(node), group=kind.group)


def _sliced(node: Node) -> Part:
    """Return the part of a slice along other axes than the two of time."""
    kind = node.kinds[0]
    if not isinstance(kind, Pairs):
        raise node.unsupported("its input is no tensor of pairs")
    if len(node.moving(0)) != 2:
        raise node.unsupported("it reads some of the pairs")
    made = kind.moved(*_same_order(node, 0, kind))
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
    """Raise UnsupportedNetworkError unless a slice keeps all entries of an axis."""
    moving = node.moving(0)
    sizes = [node.op.inputs[0].shape[axis], *(node.op.outputs[0].shape[i] for i in moving)]
    entry = axis if node.type == "Slice" else entry_of(node, axis)
    if entry is None:
        return
    if len(set(sizes)) > 1 or (node.type == "StridedSlice" and node.entry(3, entry) != 1):
        raise node.unsupported("it reads some of the pairs")
