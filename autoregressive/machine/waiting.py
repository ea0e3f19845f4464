"""Counters by which two threads wait for each other, for compiled code."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import types

from autoregressive.machine.kernels import compiled, intrinsic, pointer_at

_INT = ir.IntType(64)

# Looks at a counter, about half a microsecond in all, before the core is offered to others: with
# more patience, threads that share a core wait for each other to be interrupted.
_PATIENCE = 2000
_let_others_run = (
    types.ExternalFunction("sched_yield", types.int32())
    if os.name == "posix"
    else numba.njit(lambda: 0)
)


@intrinsic
def publish(
    typing_context: Any, counter: types.Type, value: types.Type
) -> tuple[Any, Callable[..., Any]]:
    """Set the int64 at `counter`; a reader of the value also sees all earlier writes."""

    def emit(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        pointer = pointer_at(builder, arguments[0], _INT)
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def _observe(typing_context: Any, counter: types.Type) -> tuple[Any, Callable[..., Any]]:
    def emit(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.load_atomic(pointer_at(builder, arguments[0], _INT), "acquire", 8)

    return types.int64(types.int64), emit


@compiled
def wait_for(counter: int, value: int) -> None:
    """Wait until the int64 at `counter` is at least `value`."""
    tries = 0
    while _observe(counter) < value:
        tries += 1
        if tries > _PATIENCE:
            _let_others_run()
