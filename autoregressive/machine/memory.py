"""Numbers at addresses, for compiled code."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from autoregressive.machine.kernels import (
    FLOAT,
    FLOAT_BYTES,
    LANES,
    VECTOR,
    compiled,
    integer,
    intrinsic,
    multiply_add,
    number,
    pointer_at,
    spread,
)

_DOUBLE, _WORD = ir.DoubleType(), ir.IntType(32)


def _loader(kind: ir.Type, result: types.Type) -> Any:
    @intrinsic
    def load(typing_context: Any, address: types.Type) -> tuple[Any, Callable[..., Any]]:
        def emit(
            context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            return builder.load(pointer_at(builder, arguments[0], kind), align=FLOAT_BYTES)

        return result(types.int64), emit

    return load


def _storer(kind: ir.Type, argument: types.Type) -> Any:
    @intrinsic
    def store(
        typing_context: Any, address: types.Type, value: types.Type
    ) -> tuple[Any, Callable[..., Any]]:
        def emit(
            context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            pointer = pointer_at(builder, arguments[0], kind)
            builder.store(arguments[1], pointer, align=FLOAT_BYTES)
            return context.get_dummy_value()

        return types.void(types.int64, argument), emit

    return store


float_at, set_float = _loader(FLOAT, types.float32), _storer(FLOAT, types.float32)
double_at, set_double = _loader(_DOUBLE, types.float64), _storer(_DOUBLE, types.float64)
word_at = _loader(_WORD, types.int32)


@intrinsic
def prefetch(typing_context: Any, address: types.Type) -> tuple[Any, Callable[..., Any]]:
    """Ask for the cache line at an address, which will be read soon."""

    def emit(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, locality, data = (ir.Constant(_WORD, number) for number in (0, 2, 1))
        pointer = builder.inttoptr(arguments[0], byte)
        builder.call(function, [pointer, read, locality, data])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def add_scaled(
    typing_context: Any, y: types.Type, scale: types.Type, x: types.Type, vectors: types.Type
) -> tuple[Any, Callable[..., Any]]:
    """Add `scale` times the vectors at x to those at y."""

    def emit(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        y, scale, x, vectors = arguments
        repeated = spread(builder, scale)
        with cgutils.for_range(builder, vectors) as loop:
            offset = builder.mul(loop.index, integer(FLOAT_BYTES * LANES))
            target = pointer_at(builder, builder.add(y, offset), VECTOR)
            source = pointer_at(builder, builder.add(x, offset), VECTOR)
            loaded = builder.load(source, align=FLOAT_BYTES)
            total = builder.load(target, align=FLOAT_BYTES)
            total = multiply_add(builder, repeated, loaded, total)
            builder.store(total, target, align=FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64, types.int64), emit


def _reduction(combine: Callable[..., ir.Value], start: float) -> Any:
    """Return a function of a and b and a number of vectors: combine over all, lane by lane."""

    @intrinsic
    def reduce(
        typing_context: Any, a: types.Type, b: types.Type, vectors: types.Type
    ) -> tuple[Any, Callable[..., Any]]:
        def emit(
            context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            a, b, vectors = arguments
            total = cgutils.alloca_once_value(builder, number(start))
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, integer(FLOAT_BYTES * LANES))
                loaded = [
                    builder.load(
                        pointer_at(builder, builder.add(at, offset), VECTOR), align=FLOAT_BYTES
                    )
                    for at in (a, b)
                ]
                builder.store(combine(builder, builder.load(total), *loaded), total)
            lanes = builder.load(total)
            parts = [
                builder.extract_element(lanes, ir.Constant(_WORD, lane)) for lane in range(LANES)
            ]
            while len(parts) > 1:
                half = len(parts) // 2
                parts = [
                    _joined(builder, start, *pair)
                    for pair in zip(parts[:half], parts[half:], strict=True)
                ]
            return parts[0]

        return types.float32(types.int64, types.int64, types.int64), emit

    return reduce


def _joined(builder: ir.IRBuilder, start: float, a: ir.Value, b: ir.Value) -> ir.Value:
    if start == 0.0:
        return builder.fadd(a, b)
    return builder.select(builder.fcmp_unordered(">", a, b), a, b)


def _largest(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered(">", a, total), a, total)


_dot_vectors = _reduction(lambda builder, total, a, b: multiply_add(builder, a, b, total), 0.0)
_sum_vectors = _reduction(lambda builder, total, a, b: builder.fadd(total, a), 0.0)
_max_vectors = _reduction(_largest, float("-inf"))


@compiled
def dot(a: int, b: int, count: int) -> float:
    """Return the sum of products of floats."""
    vectors = count // LANES
    total = _dot_vectors(a, b, vectors)
    for i in range(vectors * LANES, count):
        total += float_at(a + 4 * i) * float_at(b + 4 * i)
    return total


@intrinsic
def dots(
    typing_context: Any,
    y: types.Type,
    x: types.Type,
    w: types.Type,
    w_step: types.Type,
    vectors: types.Type,
    count: types.Type,
) -> tuple[Any, Callable[..., Any]]:
    """Set `count` floats at y to the products of the vectors at x and at w, w + w_step, ..."""

    def emit(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        y, x, w, w_step, vectors, count = arguments
        kind = ir.FunctionType(FLOAT, [FLOAT, VECTOR])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        with cgutils.for_range(builder, count) as column:
            total = cgutils.alloca_once_value(builder, number(0.0))
            builder.store(number(0.0), total)
            row = builder.add(w, builder.mul(column.index, w_step))
            with cgutils.for_range(builder, vectors) as loop:
                offset = builder.mul(loop.index, integer(FLOAT_BYTES * LANES))
                loaded = [
                    builder.load(
                        pointer_at(builder, builder.add(at, offset), VECTOR), align=FLOAT_BYTES
                    )
                    for at in (x, row)
                ]
                first, second = loaded
                made = multiply_add(builder, first, second, builder.load(total))
                builder.store(made, total)
            zero = ir.Constant(FLOAT, -0.0)
            made = builder.call(reduce, [zero, builder.load(total)], fastmath=("reassoc",))
            at = builder.add(y, builder.mul(column.index, integer(FLOAT_BYTES)))
            builder.store(made, pointer_at(builder, at, FLOAT), align=FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), emit


@compiled
def sum_of(a: int, count: int) -> float:
    """Return the sum of floats."""
    vectors = count // LANES
    total = _sum_vectors(a, a, vectors)
    for i in range(vectors * LANES, count):
        total += float_at(a + 4 * i)
    return total


@compiled
def max_of(a: int, count: int) -> float:
    """Return the largest of floats."""
    vectors = count // LANES
    total = _max_vectors(a, a, vectors)
    for i in range(vectors * LANES, count):
        value = float_at(a + 4 * i)
        if not value <= total:
            total = value
    return total
