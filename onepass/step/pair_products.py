"""Rule for products that create pairs of time steps (scores), or consume them (weights)."""

from collections.abc import Sequence

from onepass.step.groups import Groups, Weights
from onepass.step.pair_kinds import Reads, check_growth, growing_axes, merged_group, turn
from onepass.step.rowwise import replay_operation
from onepass.step.streams import ENDLESS, Kind, Node, Pairs, Part, Stream


def product(node: Node, groups: Groups) -> Part:
    """Return how a step runs a matrix product or einsum over both query and key axes."""
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
    reads = Reads(node)
    for index, letters in enumerate(growing):
        at = {
            letter: axis
            for letter, axis in zip(letters, growing_axes(node.kinds[index]), strict=True)
        }
        reads.add(index, at.get(query), at.get(key))
    if key in target:
        made = Pairs(target.index(query), target.index(key), group, outer, inner)
        kind: Kind = check_growth(node, 0, made)
    else:
        by = "" if outer * inner == 1 else node.layer
        kind = node.derive_kind(0, Stream(0, 0, ENDLESS, outer, inner, merged_by=by))
        _note_weights(node, groups, growing, group)
    return reads.part([kind], replay_operation(node), group)


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
    """Return the letters of the query and key axes of a product whose inputs are not `Pairs`."""
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
