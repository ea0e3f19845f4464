"""Divide a step between two threads that run different instructions.

A step's instructions wait for each other's results. Those on the longest chain of results, the
lead, are one thread's; another one's are those that the chain does not wait for soon, such as
products that add to a sum which is read at the end of the step. It also multiplies past rows and
arguments for the next time step, as soon as they are complete. A large product may be halved
between the two. A thread waits for the other's progress only before an instruction that reads its
results or overwrites what it reads.

Each thread runs, of the instructions whose results it has, the one that the longest chain follows.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from onepass.machine.assembly import (
    DIVIDED,
    EARLY,
    KIND,
    LIMITED,
    OPERANDS,
    PANEL,
    PRODUCTS,
    SCALE,
    TELLS,
    WAITS,
    Instruction,
    Op,
    Program,
    announce_products,
)
from onepass.machine.formulas import CODES
from onepass.machine.kernels import LANES, words_of_vector
from onepass.machine.values import Buffer

# Times are in nanoseconds of a core that makes three thousand million steps a second.
_EXCHANGE = 200.0  # until one thread can read what the other has written
_FETCH = 60.0  # to read it
_NEAR, _FAR = 0.7, 2.0  # to multiply a vector of weights that are in the core's own cache, or not
_OWN_CACHE = 1 << 20  # weights of both threads' own caches
_BETWEEN = 20.0  # to begin an instruction
_BARRIER = 1000.0  # until both threads have begun the same step
_WORTH_HALVING = 4 * _EXCHANGE
_WORTHWHILE = 0.8  # of the time of one thread, which two must not exceed
_SIMPLE = CODES["Relu6"]  # functions up to this one take a few operations


@dataclasses.dataclass(eq=False)
class _Node:
    """An instruction of a step, or a part of one."""

    row: int
    each: Instruction
    cost: float
    part: int = 0  # of a product for several steps: 1 computes it, for the next one; 2 reads it
    panels: tuple[int, int] | None = None  # half of a product: its first panel, and that after it
    before: set["_Node"] = dataclasses.field(default_factory=set)
    chain: float = 0.0  # time of the longest chain from here to the end of the step
    side: int = 0
    number: int = 0  # in the order of its side, from 1 on
    end: float = 0.0  # time at which it ends

    def reads(self) -> set[Buffer]:
        """Return the buffers that are read."""
        places = self.each.reads
        if self.part == 1 and self.each.op is Op.PAST:
            places = places[:2] + places[3:]
        return {place.buffer for place in places}

    def writes(self) -> set[Buffer]:
        """Return the buffers that are written."""
        each = self.each
        made = {each.out.buffer} if each.out is not None and self.part != 1 else set()
        if each.op is Op.PAST:
            made |= {place.buffer for place in each.reads[4:6]}
        return made | ({each.reads[3].buffer} if each.op is Op.AHEAD else set())


def _cost_of(each: Instruction, part: int, per_vector: float) -> float:
    numbers = each.numbers
    if each.op is Op.PRODUCT:
        return _BETWEEN + per_vector * numbers[0] * numbers[1] * numbers[2]
    if each.op in PRODUCTS:
        steps = numbers[2]
        worked = (0.5 + per_vector / steps) * numbers[0] * numbers[1]
        return _BETWEEN + (worked if part == 1 else 2.0 * numbers[1])
    if each.op is Op.MAP:
        of_vector = 1.0 if numbers[0] <= _SIMPLE else 15.0
        return _BETWEEN + of_vector * numbers[1] * -(-numbers[2] // LANES)
    if each.op is Op.DOT:
        return _BETWEEN + float(np.prod(numbers[:4])) / LANES
    if each.op in (Op.READ, Op.WRITE):
        return 1.5 * _BETWEEN + numbers[1] * numbers[2] / LANES
    return 1.5 * _BETWEEN + (0 if each.out is None else each.out.buffer.size / LANES)


def divide_step(program: Program) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the instructions of two threads, as in `Program.rows`; None if that is no faster."""
    if program.rows[:, LIMITED].any():  # a thread could read the position when it has changed
        return None
    found = []
    for halves in (False, True):
        nodes = _nodes(program)
        _connect(nodes, program)
        alone = sum(node.cost for node in nodes)
        if halves:
            nodes = _halve(nodes)
        found.append((_schedule(nodes), nodes))
    taken, nodes = min(found, key=lambda one: one[0])
    if taken + _BARRIER > _WORTHWHILE * alone:
        return None
    sides = [sorted((x for x in nodes if x.side == side), key=lambda x: x.end) for side in (0, 1)]
    for side in sides:
        for number, node in enumerate(side, 1):
            node.number = number
    lead, aside = (_rows(program, side) for side in sides)
    for rows, others in ((lead, aside), (aside, lead)):
        rows[~np.isin(rows[:, TELLS], others[:, WAITS]), TELLS] = 0
    return lead, aside


def _schedule(nodes: Sequence[_Node]) -> float:
    """Assign each node to a side and a time; return when the last one ends."""
    _measure_chains(nodes)
    longest = max(node.chain for node in nodes)
    following: dict[_Node, list[_Node]] = defaultdict(list)
    missing = {node: len(node.before) for node in nodes}  # nodes before it without a time
    for node in nodes:
        for other in node.before:
            following[other].append(node)
    clocks = [0.0, 0.0]
    ready = {node: (0.0, 0.0) for node in nodes if not node.before}  # for either side
    while ready:
        side = int(clocks[1] < clocks[0])
        now = clocks[side]
        chosen = _next(ready, side, now, longest)
        if chosen is None:
            later = [times[side] for times in ready.values() if times[side] > now]
            clocks[side] = min(later, default=clocks[1 - side] + 1.0)
            continue
        del ready[chosen]
        fetches = any(other.side != side for other in chosen.before)
        chosen.side, chosen.end = side, now + chosen.cost + _FETCH * fetches
        clocks[side] = chosen.end
        for other in following[chosen]:
            missing[other] -= 1
            if not missing[other]:
                ready[other] = _ready(other, 0), _ready(other, 1)
    return max(clocks)


def _measure_chains(nodes: Sequence[_Node]) -> None:
    for node in nodes:
        node.chain = 0.0
    for node in reversed(nodes):
        node.chain += node.cost
        for other in node.before:
            other.chain = max(other.chain, node.chain)


def _ready(node: _Node, side: int) -> float:
    return max((other.end + _EXCHANGE * (other.side != side) for other in node.before), default=0.0)


def _next(
    ready: dict[_Node, tuple[float, float]], side: int, now: float, longest: float
) -> _Node | None:
    """Return the node that a side runs next; None if it waits.

    Of those that can start, it is the one with the longest chain. A small one on the longest chain
    stays on its side; and none delays another one on the longest chain.
    """

    def is_urgent(node: _Node, at: float) -> bool:
        return at + 1.2 * node.chain > longest - 2.0 * _EXCHANGE  # estimates may be too low

    for node in sorted(ready, key=lambda node: -node.chain):
        times = ready[node]
        is_elsewhere = times[1 - side] < times[side]
        stays = is_elsewhere and node.cost < _EXCHANGE and is_urgent(node, times[side])
        if times[side] > now or stays:
            continue
        end = now + node.cost
        if not any(
            now < of[side] < min(end, of[1 - side]) and is_urgent(other, end)
            for other, of in ready.items()
        ):
            return node
    return None


def _nodes(program: Program) -> list[_Node]:
    """Return the nodes of a step in an order in which one thread could run them."""
    instructions = program.instructions
    written: dict[Buffer, int] = {}  # index of the last instruction that writes a buffer
    for index, each in enumerate(instructions):
        if each.out is not None:
            written[each.out.buffer] = index
    weights = sum(each.reads[1].buffer.size for each in instructions if each.op in PRODUCTS)
    per_vector = _FAR if weights > _OWN_CACHE else _NEAR
    early = defaultdict(list)
    for index, each in enumerate(instructions):
        at = index
        if each.op is Op.PAST:
            ring, position = each.reads[0].buffer, each.reads[3].buffer
            at = max(index, written.get(ring, 0))
            if ring not in written or at >= written.get(position, 0):
                continue
        elif each.op is not Op.AHEAD:
            continue
        early[at].append(_Node(index, each, _cost_of(each, 1, per_vector), 1))
    nodes = []
    for index, each in enumerate(instructions):
        part = 2 * (each.op is Op.AHEAD)
        nodes += [_Node(index, each, _cost_of(each, part, per_vector), part), *early[index]]
    return nodes


def _halve(nodes: Sequence[_Node]) -> list[_Node]:
    """Return the nodes with large products in two halves of the outputs each."""
    halves: dict[_Node, tuple[_Node, ...]] = {}
    for node in nodes:
        panels = node.each.numbers[1] // PANEL if node.each.op is Op.PRODUCT else 0
        if panels < 2 or node.cost < _WORTH_HALVING:
            halves[node] = (node,)
            continue
        middle = panels // 2
        halves[node] = tuple(
            dataclasses.replace(node, cost=node.cost / 2, panels=each, before=set(node.before))
            for each in ((0, middle), (middle, panels))
        )
    made = [half for node in nodes for half in halves[node]]
    for node in made:
        node.before = {half for other in node.before for half in halves[other]}
    return made


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
    for row, node in zip(rows, side, strict=True):
        if node.panels is not None:
            _narrow(row, node.panels)
    waited = 0
    for row, node in zip(rows, side, strict=True):
        latest = max((x.number for x in node.before if x.side != node.side), default=0)
        if latest > waited:
            row[WAITS] = waited = latest
        row[TELLS], row[EARLY] = node.number, node.part
    announce_products(rows)
    return rows


def _narrow(row: np.ndarray, panels: tuple[int, int]) -> None:
    """Let a product compute some panels of its outputs only; the last one includes the rest."""
    inputs, vectors = row[1 + OPERANDS : 3 + OPERANDS]
    first, last = panels[0] * PANEL, panels[1] * PANEL
    is_last = panels[1] == vectors // PANEL
    skipped = first * LANES
    row[2 + OPERANDS] = (vectors if is_last else last) - first
    row[1] += skipped
    row[3] -= first * words_of_vector(row[KIND], inputs)  # constants have complements of offsets
    row[4] += skipped if row[4] >= 0 else -skipped
    if row[SCALE]:
        row[5] += skipped
