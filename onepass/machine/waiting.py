"""Counters through which threads of compiled code wait for each other."""

import os

import numba
from llvmlite import ir
from numba import types

from onepass.machine.kernels import compiled
from onepass.machine.llvm import INT, emit_for_numba, pointer_at

# Number of reads of a counter, which take about half a microsecond, before the core is yielded.
# With more reads, threads that share a core would wait for each other to be interrupted.
_PATIENCE = 2000
APART = 128  # bytes between counters; processors fetch cache lines in pairs
_let_others_run = (
    types.ExternalFunction("sched_yield", types.int32())
    if os.name == "posix"
    else numba.njit(lambda: 0)
)


@emit_for_numba(types.void, types.int64, types.int64)
def publish(builder: ir.IRBuilder, counter: ir.Value, value: ir.Value) -> None:
    """Set the int64 at `counter`; a reader of the value also sees all earlier writes."""
    builder.store_atomic(value, pointer_at(builder, counter, INT), "release", 8)


@emit_for_numba(types.int64, types.int64)
def observe(builder: ir.IRBuilder, counter: ir.Value) -> ir.Value:
    """Return the int64 at `counter`."""
    return builder.load_atomic(pointer_at(builder, counter, INT), "acquire", 8)


@compiled
def wait_for(counter: int, value: int) -> int:
    """Wait until the int64 at `counter` is at least `value`; return how often the core was yielded.

    On an idle machine, a yield takes a fraction of a microsecond.
    """
    tries = 0
    while observe(counter) < value:
        tries += 1
        if tries > _PATIENCE:
            _let_others_run()
    return max(0, tries - _PATIENCE)


@compiled
def barrier(counters: int, member: int, members: int, count: int) -> int:
    """Wait until all members are at barrier `count`, from 1 on; return how often the core yielded.

    They see each other's earlier writes. `counters` is the address of one counter per member,
    `APART` bytes apart, zeros at first.
    """
    publish(counters + member * APART, count)
    yields = 0
    for other in range(members):
        if other != member:
            yields += wait_for(counters + other * APART, count)
    return yields
