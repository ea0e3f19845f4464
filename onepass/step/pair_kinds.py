"""Helpers for the rules for pairs of time steps: axes, groups and reads."""

import dataclasses
from collections.abc import Sequence

from onepass.step.groups import Groups, Turned
from onepass.step.streams import (
    Kind,
    Node,
    Pairs,
    Part,
    Run,
    Stream,
    Table,
    TableRead,
)

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


class Reads:
    """A record of how an operation's inputs are read along the query and key axes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.delays: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, TableRead] = {}
        self.keys: set[int] = set()

    def add(self, index: int, query: int | None, key: int | None) -> None:
        """Record which axis of an input is the query axis and which is the key axis."""
        kind, node = self._node.kinds[index], self._node
        if isinstance(kind, Pairs) or (query is None and key is None):
            return
        if index in node.static_inputs:
            self.tables[index] = TableRead(query, key)
        elif isinstance(kind, Stream):
            self.delays[index] = _delay(node, kind, key is None)
            if key is not None:
                self.keys.add(index)

    def part(self, kinds: list[Kind], run: Run, group: str) -> Part:
        """Return the `Part` of an operation with these reads."""
        return Part(
            kinds, run, self.delays, tables=self.tables, keys=frozenset(self.keys), group=group
        )


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


def same_order(node: Node, output: int, like: Pairs) -> tuple[int, int]:
    """Return the query and key axes of an output that has them in the same order as its input."""
    axes = node.moving(output)
    if len(axes) != 2:
        raise node.unsupported_error("it does not keep both time axes")
    first, second = axes
    return (first, second) if like.query < like.key else (second, first)


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
