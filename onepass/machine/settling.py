"""The end of a step: output its results, and store the new states for the next step."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from onepass.machine.assembly import Assembly, Instruction, Op, Place, drop_unused
from onepass.machine.fusion import Fusion
from onepass.machine.lowering import Lowering
from onepass.machine.values import Any_Value, Buffer, Value, contiguous


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
        for write in chain:
            write.stays = True
        if not chain and not _same(old, new):
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


def _same(old: Value, new: Any_Value) -> bool:
    return isinstance(new, Value) and new.buffer is old.buffer and new.start == 0 and new.contiguous


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
    instructions = Fusion(assembly, instructions, counters).run()
    _limit(instructions, lowering.counter in counters)
    ends = {id(each) for each in last}
    body = [each for each in instructions if id(each) not in ends]
    late: list[Instruction] = []
    for write in [each for each in body if each.op is Op.WRITE]:
        if write.out is None:
            continue
        base, made = write.reads[2].buffer, write.out.buffer
        index = body.index(write)
        after = [*body[index + 1 :], *late, *last]
        is_read_later = any(_reads(each, base) for each in after)
        is_state = base in kept and write.stays
        if is_state and not is_read_later:
            _replace([*body, *late, *last], made, base)
        elif is_state and not any(_reads(each, made, True) for each in [*after, *body]):
            _replace([*body, *late, *last], made, base)
            body.remove(write)
            late.append(write)
        else:
            out = Value(made, 0, (made.size,), (1,), _dtype(states))
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


def _dtype(states: Sequence[tuple[Value, Any_Value]]) -> np.dtype:
    return states[0][0].dtype


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
