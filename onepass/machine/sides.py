"""Divide a step between two threads that run different instructions.

A step's instructions wait for each other's results. Those on the longest chain of results, the
lead, are one thread's; another one's are those that the chain does not wait for soon, such as
products that add to a sum which is read at the end of the step. It also multiplies past rows for
the next time step, as soon as they are complete. A thread waits for the other's progress only
before an instruction that reads its results or overwrites what it reads.

The instructions are assigned in order of the longest chain that follows them, each to the thread
that completes it first (Topcuoglu et al. 2002, "HEFT"). Those that take less time than two threads
need to exchange a result stay with what they read.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from onepass.machine.assembly import (
    DIVIDED,
    EARLY,
    LIMITED,
    PRODUCTS,
    TELLS,
    WAITS,
    Instruction,
    Op,
    Program,
    announce_products,
)
from onepass.machine.formulas import CODES
from onepass.machine.kernels import LANES
from onepass.machine.values import Buffer

_EXCHANGE = 150.0  # cost of waiting for a result of the other thread; 1 is a vector of weights read
_WORTHWHILE = 0.8  # of the time of one thread, which two must not exceed
_SIMPLE = CODES["Relu6"]  # functions up to this one take a few operations


@dataclasses.dataclass(eq=False)
class _Node:
    """An instruction of a step, or the part of one that is run early, for the next time step."""

    row: int
    each: Instruction
    is_early: bool = False
    before: set["_Node"] = dataclasses.field(default_factory=set)
    chain: float = 0.0  # cost of the longest chain from here to the end of the step
    side: int = 0
    number: int = 0  # in the order of its side, from 1 on
    end: float = 0.0

    @property
    def cost(self) -> float:
        """Estimated time, in vectors of weights that are read meanwhile."""
        numbers = self.each.numbers
        if self.each.op is Op.PRODUCT:
            return 10.0 + numbers[0] * numbers[1] * numbers[2]
        if self.each.op in PRODUCTS:
            worked = 1.5 * numbers[0] * numbers[1] / numbers[2]
            return 10.0 + (worked if self.is_early else 2.0 * numbers[1])
        if self.each.op is Op.MAP:
            per_vector = 2.0 if numbers[0] <= _SIMPLE else 15.0
            return 20.0 + per_vector * numbers[1] * -(-numbers[2] // LANES)
        if self.each.op is Op.DOT:
            return 20.0 + float(np.prod(numbers[:4])) / LANES
        return 20.0 + (0 if self.each.out is None else self.each.out.buffer.size / LANES)

    def reads(self) -> set[Buffer]:
        """Return the buffers that are read."""
        places = self.each.reads
        return {place.buffer for place in (places[:2] + places[3:] if self.is_early else places)}

    def writes(self) -> set[Buffer]:
        """Return the buffers that are written."""
        each = self.each
        made = {each.out.buffer} if each.out is not None and not self.is_early else set()
        if each.op is Op.PAST:
            made |= {place.buffer for place in each.reads[4:6]}
        return made | ({each.reads[3].buffer} if each.op is Op.AHEAD else set())


def divide_step(program: Program) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the instructions of two threads, as in `Program.rows`; None if that is no faster."""
    if program.rows[:, LIMITED].any():  # a thread could read the position when it has changed
        return None
    nodes = _nodes(program.instructions)
    _connect(nodes, program)
    for node in reversed(nodes):
        node.chain += node.cost
        for other in node.before:
            other.chain = max(other.chain, node.chain)
    for node in nodes:
        if node.is_early:  # as soon as it can, since it delays nothing in this step
            node.chain = min(other.chain for other in node.before) - 0.5
    order = sorted(nodes, key=lambda node: -node.chain)
    ends, busy, sides = [0.0, 0.0], [0.0, 0.0], ([], [])  # type: ignore[var-annotated]
    for node in order:
        starts = [
            max(
                ends[side],
                *(other.end + _EXCHANGE * (other.side != side) for other in node.before),
                0.0,
            )
            for side in (0, 1)
        ]
        if node.cost < _EXCHANGE and not node.is_early:
            node.side = max(node.before, key=lambda other: other.end).side if node.before else 0
        else:
            node.side = int(busy[1] < busy[0] if node.is_early else starts[1] < starts[0])
        node.end = ends[node.side] = starts[node.side] + node.cost
        busy[node.side] += node.cost
        sides[node.side].append(node)
        node.number = len(sides[node.side])
    alone = sum(node.cost for node in nodes)
    if max(ends) > _WORTHWHILE * alone:
        return None
    lead, aside = (_rows(program, side) for side in sides)
    for rows, others in ((lead, aside), (aside, lead)):
        rows[~np.isin(rows[:, TELLS], others[:, WAITS]), TELLS] = 0
    return lead, aside


def _nodes(instructions: Sequence[Instruction]) -> list[_Node]:
    """Return the nodes of a step in an order in which one thread could run them."""
    written: dict[Buffer, int] = {}  # index of the last instruction that writes a buffer
    for index, each in enumerate(instructions):
        if each.out is not None:
            written[each.out.buffer] = index
    early = defaultdict(list)
    for index, each in enumerate(instructions):
        if each.op is Op.PAST:
            ring, position = each.reads[0].buffer, each.reads[3].buffer
            at = max(index, written.get(ring, 0))
            if ring in written and at < written.get(position, 0):
                early[at].append(_Node(index, each, is_early=True))
    nodes = []
    for index, each in enumerate(instructions):
        nodes += [_Node(index, each), *early[index]]
    return nodes


def _connect(nodes: Sequence[_Node], program: Program) -> None:
    """Let every node follow those whose results it reads, or whose memory it overwrites."""
    extents = program.extents
    near: dict[Buffer, list[Buffer]] = {buffer: [buffer] for buffer in extents}
    placed = sorted(extents, key=lambda buffer: extents[buffer])
    for index, buffer in enumerate(placed):
        for other in placed[index + 1 :]:
            if extents[other][0] >= extents[buffer][1]:
                break
            near[buffer].append(other)
            near[other].append(buffer)
    writer: dict[Buffer, _Node] = {}
    readers: dict[Buffer, list[_Node]] = defaultdict(list)
    for node in nodes:
        for buffer in node.reads() & near.keys():
            if buffer in writer:
                node.before.add(writer[buffer])
        for buffer in node.writes() & near.keys():
            for other in near[buffer]:
                node.before.update(readers[other])
                if other in writer:
                    node.before.add(writer[other])
        for buffer in node.writes() & near.keys():
            writer[buffer], readers[buffer] = node, []
        for buffer in node.reads() & near.keys():
            readers[buffer].append(node)
        node.before.discard(node)


def _rows(program: Program, side: Sequence[_Node]) -> np.ndarray:
    rows = program.rows[[node.row for node in side]]
    rows[np.isin(rows[:, 0], PRODUCTS), DIVIDED] = 0
    waited = 0
    for row, node in zip(rows, side, strict=True):
        latest = max((x.number for x in node.before if x.side != node.side), default=0)
        if latest > waited:
            row[WAITS] = waited = latest
        row[TELLS], row[EARLY] = node.number, node.is_early
    announce_products(rows)
    return rows
