"""The machine: one compiled loop that implements operations, independent of any network.

An instruction is a row of integers: the operation, the word offsets of its result and arguments (a
negative number is the complement of an offset into the constants), and its sizes. Every batch row
has a separate workspace. Each instruction is run for all rows before the next one, so that a
product reads its weights once for several rows. Sums of a row do not depend on the other rows.

Several threads, the members of a team, run the same program. Each runs an instruction for its own
rows; a product with many weights is divided instead: each member computes some of the outputs of
all rows, so that the weights are read once, by all cores. Or two members run different instructions
of a step, for all rows (`sides.py`).

A step with branches, such as that of a network of several rates of time, has a list of instructions
for each branch; the position at the beginning of a step says which one is run.
"""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from onepass.machine import operations
from onepass.machine.assembly import (
    BARRIER,
    DIVIDED,
    EARLY,
    FULL,
    LIMITED,
    PANEL,
    TELLS,
    WAITS,
    WIDTH,
    Assembly,
    Fusion,
    Instruction,
    Op,
    Place,
    drop_unused,
)
from onepass.machine.compiler import compiled, entry
from onepass.machine.kernels import (
    APART,
    barrier,
    double_at,
    field,
    observe,
    observe_double,
    publish,
    set_double,
    set_field,
    wait_for,
)
from onepass.machine.lowering import Lowering
from onepass.machine.values import Any_Value, Buffer, Unlowerable, Value, contiguous

_PRODUCT, _MAP, _MAP_DOUBLES, _CONVERT, _COPY, _GATHER = map(int, list(Op)[:6])
_READ, _WRITE, _ROWS, _REDUCE, _ARGMAX, _CUMULATE = map(int, list(Op)[6:12])
_SOFTMAX, _DOT, _INPUT, _OUTPUT, _PAST, _AHEAD = map(int, list(Op)[12:])

# Places in the first member's counters: the largest number of yields, and 1 if the team ends.
PATIENCE, ENDS = 1, 2
PROGRESS, _STEP = 64, 1 << 24  # byte of a member's progress, and that progress in a step


@compiled
def _one(p: int, o: int, a: int, b: int, c: int) -> None:
    op = field(p, 0)
    if op == _READ:
        operations.read(p, o, a, b)
    elif op == _GATHER:
        operations.gather(p, o, a, b)
    elif op == _ROWS:
        operations.read_rows(p, o, a, b)
    elif op == _REDUCE:
        operations.reduce(p, o, a)
    elif op == _ARGMAX:
        operations.argmax(p, o, a)
    elif op == _CUMULATE:
        operations.cumulate(p, o, a)
    elif op == _SOFTMAX:
        operations.softmax(p, o, a)
    elif op == _DOT:
        operations.products(p, o, a, b)


@compiled
def _each(
    p: int,
    o: int,
    a: int,
    b: int,
    c: int,
    step: int,
    a_step: int,
    b_step: int,
    c_step: int,
    rows: int,
) -> None:
    """Run an instruction for all rows; what reads its own numbers once for all is much faster."""
    op = field(p, 0)
    if op == _COPY:
        operations.copy_axes(p, o, a, step, a_step, rows)
    elif op == _WRITE:
        operations.write(p, o, a, b, step, a_step, b_step, rows)
    elif op == _CONVERT:
        operations.convert(p, o, a, step, a_step, rows)
    else:
        for _ in range(rows):
            _one(p, o, a, b, c)
            o, a, b, c = o + step, a + a_step, b + b_step, c + c_step


@compiled
def _exchange(p: int, o: int, a: int, given: int, drawn: int) -> None:
    """Read an argument from the numbers `given` to a row in a step, or add to those `drawn`."""
    at, count, wide = 8 * field(p, 9), field(p, 10), field(p, 8)
    given, drawn = given + at, drawn + at
    for i in range(count):
        if field(p, 0) == _OUTPUT:
            set_double(drawn + 8 * i, operations.number_at(a, i, wide))
        else:
            operations.set_number(o, i, wide, double_at(given + 8 * i))


@compiled
def _place(word: int, constants: int, workspace: int) -> int:
    return constants + 4 * ~word if word < 0 else workspace + 4 * word


@compiled
def _count_filled(position: int, base: int, step: int, rows: int) -> np.int64:
    filled = np.int64(0)
    for row in range(rows):  # vectors here would be loaded again at every instruction of `run`
        filled = max(filled, np.int64(observe_double(base + row * step + 4 * position)) + 1)
    return filled


@compiled
def _columns(vectors: int, member: int, members: int) -> tuple[int, int]:
    panels = vectors // PANEL
    first, last = panels * member // members * PANEL, panels * (member + 1) // members * PANEL
    return first, (vectors if member == members - 1 else last) - first


@compiled
def _past(
    p: int, o: int, a: int, b: int, c: int, base: int, step: int, c_step: int, rows: int
) -> None:
    at, sums, end = base + 4 * field(p, 5), base + 4 * field(p, 6), base + 4 * field(p, 7)
    if rows > 1 and field(p, 10) < operations.SHARED:
        operations.past_of_rows(p, o, a, b, c, sums, at, end, step, rows)
    if not field(p, EARLY):
        known = operations.read_past(p, o, c, sums, at, end, step, rows)
        o, a, c = o + known * step, a + known * step, c + known * c_step
        at, sums, end = at + known * step, sums + known * step, end + known * step
        rows -= known
    for _ in range(rows):
        now, made = np.int64(double_at(at)), np.int64(double_at(end))
        made = operations.past(p, o, a, b, c, sums, now, made, np.int64(0), field(p, 9))
        set_double(end, np.float64(made))
        o, a, c = o + step, a + step, c + c_step
        at, sums, end = at + step, sums + step, end + step


@compiled
def _divided_past(
    p: int,
    ends: np.ndarray,
    o: int,
    a: int,
    b: int,
    c: int,
    base: int,
    step: int,
    c_step: int,
    member: int,
    first: int,
    rows: int,
    members: int,
) -> None:
    """Run a member's part of a product with past rows, whose `end` it keeps in `ends` [all rows].

    Only the member that a row belongs to writes `end` to the workspace, where later calls read it.
    """
    at, sums, end = base + 4 * field(p, 5), base + 4 * field(p, 6), base + 4 * field(p, 7)
    start, count = _columns(field(p, 9), member, members)
    for row in range(len(ends)):
        ends[row] = operations.past(
            p, o, a, b, c, sums, np.int64(double_at(at)), ends[row], start, count
        )
        if first <= row < first + rows:
            set_double(end, np.float64(ends[row]))
        o, a, c = o + step, a + step, c + c_step
        at, sums, end = at + step, sums + step, end + step


@entry
def run(
    program: np.ndarray,  # int32 [instructions, WIDTH]; limited counts are overwritten
    position: int,
    constants: np.ndarray,
    workspaces: np.ndarray,  # float32 [all rows, words], with the states, which are updated
    given: np.ndarray,  # arguments of every time step, float64 [all rows, time, channels]
    drawn: np.ndarray,  # is filled with the results, float64 [all rows, time, channels]
    begin: int,
    end: int,
    first: int,
    rows: int,
    counters: np.ndarray,  # zeros but for `PATIENCE`, int64 [members, APART / 8]
    member: int,
    spans: np.ndarray,
    clock: int,
) -> int:
    """Run time steps as one member of a team, and return the index after the last one.

    A team whose first member waits long in a step for others, which then have no core, ends early,
    after a step or more. Arrays are contiguous; `spans` and `clock` are those of `Program`.
    """
    step, count, zero = np.int64(workspaces.strides[0]), len(program), np.int64(0)
    start, fixed = np.int64(workspaces.ctypes.data), np.int64(constants.ctypes.data)
    code, base = np.int64(program.ctypes.data), start + first * step
    barriers, members = np.int64(counters.ctypes.data), len(counters)
    computed = np.full((count if members > 1 else 0, len(workspaces)), -1, np.int64)
    passed, was_divided, yields = np.int64(0), False, 0
    filled = np.int64(0)
    for time in range(begin, end):
        if members > 1:
            if member == 0:
                ends = time > begin and yields > counters[0, PATIENCE]
                publish(barriers + 8 * ENDS, np.int64(ends))
            passed, was_divided = passed + 1, False
            waited = barrier(barriers, member, members, passed)
            if observe(barriers + 8 * ENDS):
                return time
            yields = waited if time > begin else 0  # first, threads are put on their cores
        if position >= 0:
            filled = _count_filled(position, base, step, rows)
        progress, tells = np.int64(time - begin) * _STEP, zero
        low, high = zero, np.int64(count)
        if len(spans):
            phase = np.int64(double_at(base + 4 * clock)) % len(spans)
            low, high = spans[phase, 0], spans[phase, 1]
        for index in range(low, high):
            if tells:
                publish(barriers + member * APART + PROGRESS, progress + tells)
            p = code + 4 * WIDTH * index
            op = field(p, 0)
            divided = members > 1 and op in (_PRODUCT, _PAST, _AHEAD) and field(p, DIVIDED) > 0
            if members > 1 and (
                divided != was_divided or (divided and field(p, DIVIDED) == BARRIER)
            ):
                passed += 1
                yields += barrier(barriers, member, members, passed)
                was_divided = divided
            if not divided and not rows:
                continue
            if field(p, WAITS):
                there = progress + field(p, WAITS)
                yields += wait_for(barriers + (1 - member) * APART + PROGRESS, there)
            tells = field(p, TELLS)
            if field(p, LIMITED):  # to the rows filled so far
                set_field(p, field(p, LIMITED), min(field(p, FULL), filled))
            here = start if divided else base
            o, a = _place(field(p, 1), fixed, here), _place(field(p, 2), fixed, here)
            b, c = _place(field(p, 3), fixed, here), _place(field(p, 4), fixed, here)
            # Operands in the workspace differ between rows; constants are the same for all rows.
            a_step = step if field(p, 2) >= 0 else zero
            if op == _PRODUCT:
                addend = here + 4 * field(p, 5)
                if divided:
                    operations.ask(p, fixed, member, members)
                    left, width = _columns(field(p, 9), member, members)
                    operations.product(
                        p, o, a, b, c, addend, step, a_step, len(workspaces), left, width
                    )
                else:
                    operations.ask(p, fixed, zero, np.int64(1))
                    operations.product(p, o, a, b, c, addend, step, a_step, rows, zero, field(p, 9))
                continue
            b_step = step if field(p, 3) >= 0 else zero
            c_step = step if field(p, 4) >= 0 else zero
            if op in (_MAP, _MAP_DOUBLES):
                wide = np.int64(op == _MAP_DOUBLES)
                operations.map_rows(p, wide, o, a, b, c, step, a_step, b_step, c_step, rows)
                continue
            if op == _PAST:
                if divided:
                    _divided_past(
                        p, computed[index], o, a, b, c, here, step, c_step, member, first, rows,
                        members,
                    )  # fmt: skip
                else:
                    _past(p, o, a, b, c, here, step, c_step, rows)
                continue
            if op == _AHEAD:
                sums, addend = here + 4 * field(p, 5), here + 4 * field(p, 6)
                left, width = zero, field(p, 9)
                if divided:
                    left, width = _columns(width, member, members)
                for _ in range(len(workspaces) if divided else rows):
                    operations.ahead(
                        p, o, a, b, c, sums, addend, np.int64(time - begin), np.int64(end - time),
                        left, width,
                    )  # fmt: skip
                    o, a, c = o + step, a + step, c + c_step
                    sums, addend = sums + step, addend + step
                continue
            if op in (_INPUT, _OUTPUT):
                # An argument may be read for two blocks of steps, at the first one's first step.
                block = field(p, 11) if op == _INPUT else zero
                if block and (time - begin) % block:
                    continue
                steps = min(2 * block, np.int64(end - time)) if block else np.int64(1)
                for row in range(first, first + rows):
                    source = given.ctypes.data + (row * given.shape[1] + time) * given.strides[1]
                    target = drawn.ctypes.data + (row * drawn.shape[1] + time) * drawn.strides[1]
                    for i in range(steps):
                        at = np.int64(source) + i * given.strides[1]
                        _exchange(p, o + 4 * field(p, 10) * i, a, at, np.int64(target))
                    o, a = o + step, a + a_step
                continue
            _each(p, o, a, b, c, step, a_step, b_step, c_step, rows)
        if tells:
            publish(barriers + member * APART + PROGRESS, progress + tells)
    return end


def compile_kernels() -> None:
    """Compile the machine for this process and its later forks, without using TensorFlow."""
    none, counters = np.zeros([1, 0, 0]), np.zeros([1, APART // 8], np.int64)
    words, program = np.zeros([1, 1], np.float32), np.zeros([0, WIDTH], np.int32)
    spans = np.zeros([0, 2], np.int64)
    run(program, -1, words[0], words, none, none, 0, 0, 0, 1, counters, 0, spans, -1)


def settle(
    lowering: Lowering, states: Sequence[tuple[Value, Any_Value]], results: Sequence[Any_Value]
) -> None:
    """Add instructions that output results and store states, in place where the old is not read."""
    assembly = lowering.assembly
    column = 0
    for each in results:
        value = lowering.materialise_value(lowering.value(each))
        assembly.add(Op.OUTPUT, None, [value], [value.wide, column, value.size], stays=True)
        column += value.size
    written = _writes_by_buffer(assembly)
    copies = []
    for old, new in states:
        chain = _chain(written, old, new)
        for last_write in chain:
            last_write.stays = True
        is_old = isinstance(new, Value) and new.buffer is old.buffer and new.start == 0
        if not chain and not (is_old and new.contiguous):  # type: ignore[union-attr]
            copies.append((old, new))
    moved = [(old, _aside(lowering, new, states)) for old, new in copies]
    first = len(assembly.instructions)
    for old, value in moved:
        lowering.copy_value(old, value, stays=True)
    last, assembly.instructions = assembly.instructions[first:], assembly.instructions[:first]
    _write_in_place(lowering, states, last)


def _writes_by_buffer(assembly: Assembly) -> dict[Buffer, Instruction]:
    return {
        each.out.buffer: each
        for each in assembly.instructions
        if each.op is Op.WRITE and each.out is not None
    }


def _chain(written: dict[Buffer, Instruction], old: Value, new: Any_Value) -> list[Instruction]:
    """Return the writes that turn the old state into the new one, last write first."""
    if not isinstance(new, Value) or new.start != 0 or not new.contiguous:
        return []
    chain, buffer = [], new.buffer
    while buffer is not old.buffer:
        if buffer not in written or buffer.size != old.buffer.size:
            return []
        chain.append(written[buffer])
        buffer = written[buffer].reads[2].buffer
    return chain


def _aside(lowering: Lowering, new: Any_Value, states: Sequence[tuple[Value, Any_Value]]) -> Value:
    value = lowering.value(new)
    if any(value.buffer is old.buffer for old, _ in states):
        return lowering.copy_value(contiguous(value.shape, value.dtype), value, fills=True)
    return value


def _write_in_place(
    lowering: Lowering, states: Sequence[tuple[Value, Any_Value]], last: list[Instruction]
) -> None:
    """Decide for every write whether it changes the old value or a copy of it."""
    assembly = lowering.assembly
    kept = {old.buffer for old, _ in states}
    instructions = drop_unused([*assembly.instructions, *last])
    counters = _counters(lowering, states)
    lowering.counters = counters & (counters if lowering.counters is None else lowering.counters)
    instructions = Fusion(assembly, instructions, counters).run()
    _limit(instructions, lowering.counter in counters)
    body = [each for each in instructions if each not in last]
    late: list[Instruction] = []
    for last_write in [each for each in body if each.op is Op.WRITE]:
        if last_write.out is None:
            continue
        base, made = last_write.reads[2].buffer, last_write.out.buffer
        index = body.index(last_write)
        after = [*body[index + 1 :], *late, *last]
        is_read_later = any(_reads(each, base) for each in after)
        is_state = base in kept and last_write.stays
        if is_state and not is_read_later:
            _replace([*body, *late, *last], made, base)
        elif is_state and not any(_reads(each, made, True) for each in [*after, *body]):
            _replace([*body, *late, *last], made, base)
            body.remove(last_write)
            late.append(last_write)
        else:
            out = Value(made, 0, (made.size,), (1,), states[0][0].dtype)
            source = dataclasses.replace(out, buffer=base)
            body[index:index] = _copy(lowering, out, source)
            if is_state:
                last.extend(_copy(lowering, source, out))
    assembly.instructions = [*body, *late, *last]


def _counters(lowering: Lowering, states: Sequence[tuple[Value, Any_Value]]) -> set[Buffer]:
    found = set()
    for old, new in states:
        if isinstance(new, Value) and old.wide and old.size == 1:
            slot = lowering.slot(new)
            if slot.place.buffer is old.buffer and (slot.add, slot.modulo) == (1, 0):
                found.add(old.buffer)
    return found


def require_equal_rings(
    lists: Sequence[Sequence[Instruction]], counters: Collection[Buffer] | None
) -> None:
    """Raise Unlowerable if a branch changes past rows that another has multiplied before."""
    pasts = [each for one in lists for each in one if each.op is Op.PAST] if len(lists) > 1 else []
    for each in pasts:
        ring, position, size = each.reads[0].buffer, each.reads[3].buffer, each.numbers[3]
        for one in lists:
            writes = [x for x in one if x.out is not None and x.out.buffer is ring]
            is_equal = len(writes) == 1 and writes[0].op is Op.WRITE
            is_equal = is_equal and writes[0].reads[1].buffer is position
            is_equal = is_equal and writes[0].numbers[5:] == (0, size, size - 1)
            if not is_equal or position not in (counters or ()):
                raise Unlowerable("branches that change the same rows in different ways")


def _limit(instructions: Sequence[Instruction], is_counted: bool) -> None:
    """Remove limits with which an instruction would read rows that another has skipped."""
    readers: dict[Buffer, list[Instruction]] = {}
    for each in instructions:
        for place in each.reads:
            readers.setdefault(place.buffer, []).append(each)
    changed = True
    while changed:
        changed = False
        for each in instructions:
            if each.limited is None:
                continue
            made = each.out.buffer if each.out is not None else None
            is_whole = each.op is Op.REDUCE or (each.op is Op.DOT and each.limited == 2)
            partly = all(
                reader.limited is not None and made in reader.partly
                for reader in readers.get(made, [])  # type: ignore[arg-type]
            )
            if not is_counted or not (is_whole or partly):
                each.limited, each.partly, changed = None, (), True


def _copy(lowering: Lowering, out: Value, source: Value) -> list[Instruction]:
    assembly = lowering.assembly
    before = assembly.instructions
    assembly.instructions = []
    lowering.copy_value(out, source, stays=True)
    made, assembly.instructions = assembly.instructions, before
    return made


def _reads(each: Instruction, buffer: Buffer, also_base: bool = False) -> bool:
    places = each.reads[:2] if each.op is Op.WRITE and not also_base else each.reads
    return any(place.buffer is buffer for place in places)


def _replace(instructions: Sequence[Instruction], old: Buffer, new: Buffer) -> None:
    for each in instructions:
        if each.out is not None and each.out.buffer is old:
            each.out = Place(new, each.out.start)
        each.reads = [
            Place(new, place.start) if place.buffer is old else place for place in each.reads
        ]
