"""Functions for compiled code that operate on numbers at memory addresses."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from onepass.machine.kernels import compiled
from onepass.machine.llvm import (
    FLOAT,
    FLOAT_BYTES,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    emit_for_numba,
    integer,
    load_vector,
    multiply_add,
    number,
    pointer_at,
    spread,
    store_vector,
)

_DOUBLE, _WORD = ir.DoubleType(), ir.IntType(32)


@contextlib.contextmanager
def _each_offset(builder: ir.IRBuilder, vectors: ir.Value) -> Iterator[ir.Value]:
    with cgutils.for_range(builder, vectors) as loop:
        yield builder.mul(loop.index, integer(VECTOR_BYTES))


def _loader(kind: ir.Type, result: types.Type) -> Any:
    @emit_for_numba(result, types.int64)
    def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(pointer_at(builder, address, kind), align=FLOAT_BYTES)

    return load


def _storer(kind: ir.Type, argument: types.Type) -> Any:
    @emit_for_numba(types.void, types.int64, argument)
    def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        builder.store(value, pointer_at(builder, address, kind), align=FLOAT_BYTES)

    return store


float_at, set_float = _loader(FLOAT, types.float32), _storer(FLOAT, types.float32)
double_at, set_double = _loader(_DOUBLE, types.float64), _storer(_DOUBLE, types.float64)
word_at = _loader(_WORD, types.int32)


@emit_for_numba(types.void, types.int64)
def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address that will be read soon."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, locality, data = (ir.Constant(_WORD, number) for number in (0, 2, 1))
    builder.call(function, [builder.inttoptr(address, byte), read, locality, data])


@emit_for_numba(types.void, types.int64, types.float32, types.int64, types.int64)
def add_scaled(
    builder: ir.IRBuilder, y: ir.Value, scale: ir.Value, x: ir.Value, vectors: ir.Value
) -> None:
    """Add `scale` times the vectors at x to the vectors at y."""
    repeated = spread(builder, scale)
    with _each_offset(builder, vectors) as offset:
        target = builder.add(y, offset)
        loaded = load_vector(builder, builder.add(x, offset))
        total = multiply_add(builder, repeated, loaded, load_vector(builder, target))
        store_vector(builder, total, target)


def _reduction(combine: Callable[..., ir.Value], start: float) -> Any:
    """Return a reduction of vectors to a float; a sum of lanes if `start` is 0, else a maximum."""

    @emit_for_numba(types.float32, types.int64, types.int64, types.int64)
    def reduce(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, vectors: ir.Value) -> ir.Value:
        total = cgutils.alloca_once_value(builder, number(start))
        _combine_into(builder, total, combine, (a, b), vectors)
        lanes = builder.load(total)
        parts = [builder.extract_element(lanes, ir.Constant(_WORD, lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                _join_values(builder, start, *pair)
                for pair in zip(parts[:half], parts[half:], strict=True)
            ]
        return parts[0]

    return reduce


def _combine_into(
    builder: ir.IRBuilder,
    total: ir.Value,
    combine: Callable[..., ir.Value],
    operands: tuple[ir.Value, ir.Value],
    vectors: ir.Value,
) -> None:
    with _each_offset(builder, vectors) as offset:
        loaded = [load_vector(builder, builder.add(at, offset)) for at in operands]
        builder.store(combine(builder, builder.load(total), *loaded), total)


def _join_values(builder: ir.IRBuilder, start: float, a: ir.Value, b: ir.Value) -> ir.Value:
    if start == 0.0:
        return builder.fadd(a, b)
    return builder.select(builder.fcmp_unordered(">", a, b), a, b)


def _largest(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered(">", a, total), a, total)


def _product_added(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return multiply_add(builder, a, b, total)


_dot_vectors = _reduction(_product_added, 0.0)
_sum_vectors = _reduction(lambda builder, total, a, b: builder.fadd(total, a), 0.0)
_max_vectors = _reduction(_largest, float("-inf"))


@compiled
def dot(a: int, b: int, count: int) -> float:
    """Return the dot product of `count` floats at a and at b."""
    vectors = count // LANES
    total = _dot_vectors(a, b, vectors)
    for i in range(vectors * LANES, count):
        total += float_at(a + 4 * i) * float_at(b + 4 * i)
    return total


@emit_for_numba(types.void, *[types.int64] * 6)
def dots(
    builder: ir.IRBuilder,
    y: ir.Value,
    x: ir.Value,
    w: ir.Value,
    w_step: ir.Value,
    vectors: ir.Value,
    count: ir.Value,
) -> None:
    """Set `count` floats at y to the dot products of x with the rows at w, w + w_step, ..."""
    kind = ir.FunctionType(FLOAT, [FLOAT, VECTOR])
    name = f"llvm.vector.reduce.fadd.v{LANES}f32"
    reduce = cgutils.get_or_insert_function(builder.module, kind, name)
    with cgutils.for_range(builder, count) as column:
        total = cgutils.alloca_once_value(builder, number(0.0))
        builder.store(number(0.0), total)
        row = builder.add(w, builder.mul(column.index, w_step))
        _combine_into(builder, total, _product_added, (x, row), vectors)
        zero = ir.Constant(FLOAT, -0.0)
        made = builder.call(reduce, [zero, builder.load(total)], fastmath=("reassoc",))
        at = builder.add(y, builder.mul(column.index, integer(FLOAT_BYTES)))
        builder.store(made, pointer_at(builder, at, FLOAT), align=FLOAT_BYTES)


@compiled
def sum_of(a: int, count: int) -> float:
    """Return the sum of `count` floats at a."""
    vectors = count // LANES
    total = _sum_vectors(a, a, vectors)
    for i in range(vectors * LANES, count):
        total += float_at(a + 4 * i)
    return total


@compiled
def max_of(a: int, count: int) -> float:
    """Return the largest of `count` floats at a."""
    vectors = count // LANES
    total = _max_vectors(a, a, vectors)
    for i in range(vectors * LANES, count):
        value = float_at(a + 4 * i)
        if not value <= total:
            total = value
    return total
