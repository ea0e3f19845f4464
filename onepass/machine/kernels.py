"""Vector kernels for one core, written in LLVM IR and called from Numba.

Numba vectorises plain loops but spills a matrix product's partial sums to memory in every
iteration; here they stay in registers. All kernels take addresses of float32 rows, padded to whole
vectors of `LANES` channels. The terms of every output are summed in the same order for any number
of rows, so a row has the same bits in any batch.

A matrix [inputs, outputs] is stored as panels of 4, 2 or 1 vectors of outputs, each panel [inputs,
vectors * LANES], so that every product reads its weights sequentially. Panels are float32, bfloat16
or int8. The last begin with a float32 scale for each output (`weights.py`) and have pairs of inputs
side by side, [inputs / 2, vectors * LANES, 2]; they are multiplied by inputs that are rounded to
whole multiples, of 16 bits, of a scale for each row, so that sums are whole numbers.
"""

import contextlib
import functools
import itertools
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from onepass.machine.compiler import compiled


def _lanes() -> int:
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx") else 4


LANES = _lanes()  # number of float32 values in a vector register
INT = ir.IntType(64)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
HALVES = ir.VectorType(ir.IntType(16), 2 * LANES)
_DOUBLE, _WORD = ir.DoubleType(), ir.IntType(32)
FLOAT_BYTES, VECTOR_BYTES = 4, 4 * LANES
FLOAT32, BFLOAT16, INT8 = range(3)  # kinds of weights
_WEIGHT_BYTES = (4, 2, 2)  # of an output's weight, or of a pair of them
# Bytes until weights are prefetched, and the rows from which on float32 ones are: for fewer, the
# loads of weights are all that a core can do.
_SOON, _ASKING_ROWS, _LINE = 4096, 4, 64
_SOON_LINES = 16  # of the weights of the next product


def emit_for_numba(
    result: types.Type, arguments: Sequence[types.Type]
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator by which Numba can call a function of an LLVM builder and values."""

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)  # Numba reads the argument names
        def infer_type(typing_context: Any, *given: types.Type) -> tuple[Any, Callable[..., Any]]:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                made = emit(builder, *values)
                return context.get_dummy_value() if made is None else made

            return result(*arguments), generate

        return intrinsic(infer_type)

    return decorate


def integer(value: int) -> ir.Value:
    """Return a 64-bit integer constant."""
    return ir.Constant(INT, value)


def number(value: float) -> ir.Value:
    """Return a vector of floats with this constant in every lane."""
    return ir.Constant(VECTOR, [value] * LANES)


def whole(value: int) -> ir.Value:
    """Return a vector of 32-bit integers with this constant in every lane."""
    return ir.Constant(WORDS, [value] * LANES)


def pointer_at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type = VECTOR) -> ir.Value:
    """Return a pointer to a value of type `kind` at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def load_vector(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Emit a load of the vector at an address."""
    return builder.load(pointer_at(builder, address, VECTOR), align=FLOAT_BYTES)


def store_vector(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    """Emit a store of a vector to an address."""
    builder.store(value, pointer_at(builder, address, VECTOR), align=FLOAT_BYTES)


def spread(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """Return a vector with `scalar` in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, whole(0))


def multiply_add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a b + c."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [a, b, c])


def clip(builder: ir.IRBuilder, x: ir.Value, limit: float) -> ir.Value:
    """Return x limited to [-limit, limit]."""
    low, high = number(-limit), number(limit)
    x = builder.select(builder.fcmp_unordered("<", x, high), x, high)
    return builder.select(builder.fcmp_unordered(">", x, low), x, low)


def power_and_rest(builder: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return 2^n and exp(r) - 1, where x = n log 2 + r and |r| <= log(2) / 2, for |x| < 87."""
    to_whole = number(1.5 * 2.0**23)  # adding this rounds to an integer
    n = multiply_add(builder, x, number(1 / np.log(2)), to_whole)
    n = builder.fsub(n, to_whole)
    high = 355 / 512  # log 2 is split in two; n times this part is exact
    r = multiply_add(builder, n, number(-high), x)
    r = multiply_add(builder, n, number(high - np.log(2)), r)
    series = number(1 / 5040)  # Taylor; the next term is below 6e-9
    for factorial in (720, 120, 24, 6, 2, 1):
        series = multiply_add(builder, series, r, number(1 / factorial))
    exponent = builder.add(builder.fptosi(n, WORDS), whole(127))
    power = builder.bitcast(builder.shl(exponent, whole(23)), VECTOR)
    return power, builder.fmul(series, r)


def expm1(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return exp(x) - 1, accurate to about 1 ulp for |x| < 87."""
    power, rest = power_and_rest(builder, x)
    return multiply_add(builder, power, rest, builder.fsub(power, number(1.0)))


_PANEL_VECTORS = (4, 2, 1)  # widths of a panel, widest first
# Numbers of rows that share one read of the weights; sums and weights must fit in registers.
HAS_32_REGISTERS = LANES == 16 or platform.machine() in ("aarch64", "arm64")
_ROWS = (4, 2, 1) if HAS_32_REGISTERS else (2, 1)


def pad_channels(channels: int) -> int:
    """Return a number of channels, rounded up to whole vectors."""
    return -(-channels // LANES) * LANES


def aligned_zeros(shape: int | Sequence[int]) -> np.ndarray:
    """Return zeros, float32, that are aligned to a cache line of 64 bytes."""
    size = 4 * int(np.prod(shape))
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def words_of_vector(kind: int, inputs: int) -> int:
    """Return the number of words that a panel takes for each of its vectors of outputs."""
    if kind == FLOAT32:
        return LANES * inputs
    if kind == BFLOAT16:
        return LANES // 2 * inputs
    return LANES // 2 * ((inputs + 1) // 2) + LANES


def words_of_row(kind: int, channels: int) -> int:
    """Return the number of words of a row of a table, which is not float32."""
    return (channels + 1) // 2 if kind == BFLOAT16 else 1 + (channels + 3) // 4


vector_words, row_words = compiled(words_of_vector), compiled(words_of_row)


def panel_widths(vectors: int, widths: tuple[int, ...] = _PANEL_VECTORS) -> list[int]:
    """Return the widths, widest first, of the panels for `vectors` vectors of outputs."""
    chosen = []
    for width in widths:
        chosen += [width] * (vectors // width)
        vectors %= width
    return chosen


@contextlib.contextmanager
def _each_offset(builder: ir.IRBuilder, vectors: ir.Value) -> Iterator[ir.Value]:
    with cgutils.for_range(builder, vectors) as loop:
        yield builder.mul(loop.index, integer(VECTOR_BYTES))


def _load_weights(builder: ir.IRBuilder, kind: int, address: ir.Value) -> ir.Value:
    """Emit a load of a vector of weights, widened to float32."""
    if kind == FLOAT32:
        return load_vector(builder, address)
    if kind == INT8:
        pairs = ir.VectorType(ir.IntType(8), 2 * LANES)
        loaded = builder.load(pointer_at(builder, address, pairs), align=1)
        return builder.sext(loaded, HALVES)
    halves = ir.VectorType(ir.IntType(16), LANES)
    loaded = builder.load(pointer_at(builder, address, halves), align=2)
    return builder.bitcast(builder.shl(builder.zext(loaded, WORDS), whole(16)), VECTOR)


def _add_pairs(
    builder: ir.IRBuilder, repeated: ir.Value, weights: ir.Value, total: ir.Value
) -> ir.Value:
    """Return total plus the sums of two products of 16 bits, which processors do at once."""
    wide = ir.VectorType(ir.IntType(32), 2 * LANES)
    products = builder.mul(builder.sext(repeated, wide), builder.sext(weights, wide))
    even, odd = (
        builder.shuffle_vector(
            products,
            ir.Constant(wide, ir.Undefined),
            ir.Constant(WORDS, [2 * lane + part for lane in range(LANES)]),
        )
        for part in (0, 1)
    )
    return builder.add(total, builder.add(even, odd))


def _emit_panel(
    builder: ir.IRBuilder,
    kind: int,
    rows: int,
    panels: int,
    vectors: int,
    arguments: Sequence[ir.Value],
) -> None:
    """Emit code that sets rows of y to rows of x times adjacent panels, with sums in registers.

    The sums begin with rows of b, or with zeros if its address is 0, plus `factor` times rows of c,
    unless its address is 0. Either may be the rows of y.
    """
    y, y_stride, w, x, x_stride, inputs, x_scales, b, b_stride, factor, c, c_stride = arguments
    vector_bytes = LANES * _WEIGHT_BYTES[kind]
    scales_bytes = vectors * VECTOR_BYTES * (kind == INT8)
    panel_bytes = builder.add(
        builder.mul(inputs, integer(vectors * vector_bytes)), integer(scales_bytes)
    )
    panel_at = [builder.add(w, builder.mul(panel_bytes, integer(p))) for p in range(panels)]
    y_at, b_at, c_at = (
        [
            builder.add(
                builder.add(start, builder.mul(stride, integer(row))), integer(v * VECTOR_BYTES)
            )
            for row in range(rows)
            for v in range(panels * vectors)
        ]
        for start, stride in ((y, y_stride), (b, b_stride), (c, c_stride))
    )
    x_at = [builder.add(x, builder.mul(x_stride, integer(row))) for row in range(rows)]
    # LLVM promotes these stack slots to registers.
    made = [cgutils.alloca_once_value(builder, number(0.0)) for _ in y_at]
    if kind == INT8:
        sums = [cgutils.alloca_once_value(builder, whole(0)) for _ in y_at]
    else:
        sums = made
        _emit_beginnings(builder, made, (b, b_at), (factor, c, c_at))
    with cgutils.for_range(builder, inputs) as loop:
        row_bytes = builder.add(
            builder.mul(loop.index, integer(vectors * vector_bytes)), integer(scales_bytes)
        )
        weights = [
            _load_weights(
                builder, kind, builder.add(builder.add(at, row_bytes), integer(v * vector_bytes))
            )
            for at in panel_at
            for v in range(vectors)
        ]
        if kind != FLOAT32 or rows >= _ASKING_ROWS:
            for at, line in itertools.product(panel_at, range(0, vectors * vector_bytes, _LINE)):
                soon = builder.add(builder.add(at, row_bytes), integer(_SOON + line))
                _emit_prefetch(builder, pointer_at(builder, soon, ir.IntType(8)))
        x_bytes = builder.mul(loop.index, integer(FLOAT_BYTES))
        for row, at in enumerate(x_at):
            scalar = builder.load(pointer_at(builder, builder.add(at, x_bytes), FLOAT))
            repeated = spread(builder, scalar)
            if kind == INT8:  # a pair
                repeated = builder.bitcast(repeated, HALVES)
            add = _add_pairs if kind == INT8 else multiply_add
            row_sums = sums[row * len(weights) :][: len(weights)]
            for slot, weight in zip(row_sums, weights, strict=True):
                builder.store(add(builder, repeated, weight, builder.load(slot)), slot)
    if kind == INT8:
        _emit_beginnings(builder, made, (b, b_at), (factor, c, c_at))
        scales = [
            load_vector(builder, builder.add(at, integer(v * VECTOR_BYTES)))
            for at in panel_at
            for v in range(vectors)
        ]
        for index, (slot, total) in enumerate(zip(made, sums, strict=True)):
            row, column = divmod(index, len(scales))
            scale_at = builder.add(x_scales, integer(row * FLOAT_BYTES))
            scale = spread(builder, builder.load(pointer_at(builder, scale_at, FLOAT)))
            exact = builder.fmul(builder.sitofp(builder.load(total), VECTOR), scale)
            exact = multiply_add(builder, scales[column], exact, builder.load(slot))
            builder.store(exact, slot)
    for slot, at in zip(made, y_at, strict=True):
        store_vector(builder, builder.load(slot), at)


def _emit_beginnings(
    builder: ir.IRBuilder,
    sums: Sequence[ir.Value],
    first: tuple[ir.Value, Sequence[ir.Value]],
    scaled: tuple[ir.Value, ir.Value, Sequence[ir.Value]],
) -> None:
    """Set sums to the vectors of `first`, and add those of `scaled` times its factor.

    Of both, the address of the first vector, which is 0 for none, and the vectors' addresses.
    """
    (b, b_at), (factor, c, c_at) = first, scaled
    with builder.if_then(builder.icmp_signed("!=", b, integer(0))):
        for slot, at in zip(sums, b_at, strict=True):
            builder.store(load_vector(builder, at), slot)
    with builder.if_then(builder.icmp_signed("!=", c, integer(0))):
        repeated = spread(builder, factor)
        for slot, at in zip(sums, c_at, strict=True):
            total = multiply_add(builder, repeated, load_vector(builder, at), builder.load(slot))
            builder.store(total, slot)


def _vector_kernel(formula: Callable[..., ir.Value]) -> Any:
    """Return a kernel(y, x, vectors) that sets y to a formula of the vectors at y and x."""

    @emit_for_numba(types.void, [types.int64] * 3)
    def kernel(builder: ir.IRBuilder, y: ir.Value, x: ir.Value, vectors: ir.Value) -> None:
        with _each_offset(builder, vectors) as offset:

            def load(index: int) -> ir.Value:
                return load_vector(builder, builder.add((y, x)[index], offset))

            store_vector(builder, formula(builder, load), builder.add(y, offset))

    return kernel


def _exponential(builder: ir.IRBuilder, load: Callable[[int], ir.Value]) -> ir.Value:
    power, rest = power_and_rest(builder, clip(builder, load(1), 87.0))
    return multiply_add(builder, power, rest, power)


exponential = _vector_kernel(_exponential)  # y = exp(x), limited to [exp(-87), exp(87)]
copy = _vector_kernel(lambda builder, load: load(1))
add = _vector_kernel(lambda builder, load: builder.fadd(load(0), load(1)))


@emit_for_numba(types.void, [types.int64] * 3)
def copy_part(builder: ir.IRBuilder, y: ir.Value, x: ir.Value, count: ir.Value) -> None:
    """Set `count` floats at y, fewer than a vector, to those at x; a whole vector is read."""
    lanes = ir.Constant(WORDS, list(range(LANES)))
    undefined = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(undefined, builder.trunc(count, _WORD), ir.Constant(_WORD, 0))
    chosen = builder.icmp_signed("<", lanes, builder.shuffle_vector(first, undefined, whole(0)))
    pointer, masks = VECTOR.as_pointer(), ir.VectorType(ir.IntType(1), LANES)
    kind = ir.FunctionType(ir.VoidType(), [VECTOR, pointer, _WORD, masks])
    name = f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    align = ir.Constant(_WORD, FLOAT_BYTES)
    builder.call(function, [load_vector(builder, x), pointer_at(builder, y), align, chosen])


def _loader(kind: ir.Type, result: types.Type, align: int = FLOAT_BYTES) -> Any:
    @emit_for_numba(result, [types.int64])
    def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(pointer_at(builder, address, kind), align=align)

    return load


def _storer(kind: ir.Type, argument: types.Type, align: int = FLOAT_BYTES) -> Any:
    @emit_for_numba(types.void, [types.int64, argument])
    def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        builder.store(value, pointer_at(builder, address, kind), align=align)

    return store


byte_at = _loader(ir.IntType(8), types.int8, 1)
half_at = _loader(ir.IntType(16), types.uint16, 2)
set_half = _storer(ir.IntType(16), types.int16, 2)
float_at, set_float = _loader(FLOAT, types.float32), _storer(FLOAT, types.float32)
double_at, set_double = _loader(_DOUBLE, types.float64), _storer(_DOUBLE, types.float64)


@emit_for_numba(types.float32, [types.uint16])
def _float_of_half(builder: ir.IRBuilder, half: ir.Value) -> ir.Value:
    bits = builder.shl(builder.zext(half, _WORD), ir.Constant(_WORD, 16))
    return builder.bitcast(bits, FLOAT)


@compiled
def widen_row(kind: int, y: int, row: int, count: int) -> None:
    """Set `count` floats at y to those of a row of a table of a kind."""
    if kind == BFLOAT16:
        for i in range(count):
            set_float(y + 4 * i, _float_of_half(half_at(row + 2 * i)))
        return
    scale = float_at(row)
    for i in range(count):
        set_float(y + 4 * i, scale * np.float32(byte_at(row + 4 + i)))


@emit_for_numba(types.int64, [types.int64, types.int64])
def field(builder: ir.IRBuilder, at: ir.Value, column: ir.Value) -> ir.Value:
    """Return number `column` of the 32-bit integers at an address."""
    word = builder.add(at, builder.mul(column, integer(4)))
    return builder.sext(builder.load(pointer_at(builder, word, _WORD), align=4), INT)


@emit_for_numba(types.void, [types.int64, types.int64, types.int64])
def set_field(builder: ir.IRBuilder, at: ir.Value, column: ir.Value, value: ir.Value) -> None:
    """Set number `column` of the 32-bit integers at an address."""
    word = builder.add(at, builder.mul(column, integer(4)))
    builder.store(builder.trunc(value, _WORD), pointer_at(builder, word, _WORD), align=4)


def _emit_prefetch(builder: ir.IRBuilder, pointer: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, locality, data = (ir.Constant(_WORD, number) for number in (0, 2, 1))
    builder.call(function, [pointer, read, locality, data])


@emit_for_numba(types.void, [types.int64])
def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the `_SOON_LINES` cache lines from an address on, which will be read soon."""
    first = builder.inttoptr(address, ir.IntType(8).as_pointer())
    for line in range(_SOON_LINES):
        # Not a sum of integers, of which LLVM would make vectors.
        _emit_prefetch(builder, builder.gep(first, [integer(_LINE * line)]))


@emit_for_numba(types.void, [types.int64, types.float32, types.int64, types.int64])
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


@emit_for_numba(types.void, [types.int64, types.float32, *[types.int64] * 3])
def add_multiple(
    builder: ir.IRBuilder, y: ir.Value, scale: ir.Value, x: ir.Value, b: ir.Value, vectors: ir.Value
) -> None:
    """Set the vectors at y to `scale` times those at x plus those at b."""
    repeated = spread(builder, scale)
    with _each_offset(builder, vectors) as offset:
        factor, added = (load_vector(builder, builder.add(at, offset)) for at in (x, b))
        total = multiply_add(builder, repeated, factor, added)
        store_vector(builder, total, builder.add(y, offset))


def _reduction(combine: Callable[..., ir.Value], start: float) -> Any:
    """Return a reduction of vectors to a float; a sum of lanes if `start` is 0, else a maximum."""

    @emit_for_numba(types.float32, [types.int64, types.int64, types.int64])
    def reduce(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, vectors: ir.Value) -> ir.Value:
        total = cgutils.alloca_once_value(builder, number(start))
        _combine_into(builder, total, combine, (a, b), vectors)
        lanes = builder.load(total)
        parts = [builder.extract_element(lanes, ir.Constant(_WORD, lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                _join_values(builder, start, one, other)
                for one, other in zip(parts[:half], parts[half:], strict=True)
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
        a, b = (load_vector(builder, builder.add(at, offset)) for at in operands)
        builder.store(combine(builder, builder.load(total), a, b), total)


def _join_values(builder: ir.IRBuilder, start: float, a: ir.Value, b: ir.Value) -> ir.Value:
    if start == 0.0:
        return builder.fadd(a, b)
    return builder.select(builder.fcmp_unordered(">", a, b), a, b)


def _largest(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered(">", a, total), a, total)


def _magnitude(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    kind = ir.FunctionType(VECTOR, [VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.v{LANES}f32")
    return builder.call(function, [a])


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


@emit_for_numba(types.void, [types.int64] * 6)
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


_largest_magnitude = _reduction(
    lambda builder, total, a, b: _largest(builder, total, _magnitude(builder, a), a), float("-inf")
)
# 0, or NaN if a number is not finite, which maxima do not tell.
_unless_finite = _reduction(
    lambda builder, total, a, b: multiply_add(builder, a, number(0.0), total), 0.0
)
_NOTHING = np.float32(0.0)
_MOST = np.float32(2**31 - 1) / 127  # of a row's largest multiple, so that no sum overflows
_LEAST = np.float32(1e-30)  # a row of smaller numbers is zero


@emit_for_numba(types.void, [types.int64, types.int64, types.float32, types.int64])
def _round_vectors(
    builder: ir.IRBuilder, y: ir.Value, x: ir.Value, factor: ir.Value, vectors: ir.Value
) -> None:
    halves = ir.VectorType(ir.IntType(16), LANES)
    kind = ir.FunctionType(VECTOR, [VECTOR])
    to_whole = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{LANES}f32")
    repeated = spread(builder, factor)
    with cgutils.for_range(builder, vectors) as loop:
        at = builder.add(x, builder.mul(loop.index, integer(VECTOR_BYTES)))
        scaled = builder.fmul(load_vector(builder, at), repeated)
        made = builder.trunc(builder.fptosi(builder.call(to_whole, [scaled]), WORDS), halves)
        at = builder.add(y, builder.mul(loop.index, integer(VECTOR_BYTES // 2)))
        builder.store(made, pointer_at(builder, at, halves), align=2)


@compiled
def _round_row(y: int, x: int, inputs: int) -> np.floating:
    """Set 16-bit integers at y to `inputs` floats at x, divided by the scale that is returned."""
    vectors = inputs // LANES
    rest, largest, flaw = vectors * LANES, np.float32(0.0), np.float32(0.0)
    if vectors:
        largest, flaw = _largest_magnitude(x, x, vectors), _unless_finite(x, x, vectors)
    for i in range(rest, inputs):
        largest = max(largest, abs(float_at(x + 4 * i)))
        flaw += float_at(x + 4 * i) * np.float32(0.0)
    most = min(np.float32(32767.0), np.floor(_MOST / np.float32(inputs)))
    if largest < _LEAST or flaw != np.float32(0.0):
        return flaw  # the memory has zeros
    factor = np.float32(most / largest)
    _round_vectors(y, x, factor, vectors)
    for i in range(rest, inputs):
        set_half(y + 2 * i, np.int16(np.rint(float_at(x + 4 * i) * factor)))
    return np.float32(largest / most)


def _multiplication(kind: int) -> Any:
    """Return `multiply_kind` for weights of a kind; its inputs are pairs for int8."""
    terms = 2 if kind == INT8 else 1

    @emit_for_numba(types.void, [*[types.int64] * 11, types.float32, *[types.int64] * 2])
    def set_panel(
        builder: ir.IRBuilder,
        y: ir.Value,
        y_stride: ir.Value,
        w: ir.Value,
        x: ir.Value,
        x_stride: ir.Value,
        inputs: ir.Value,
        rows: ir.Value,
        vectors: ir.Value,
        x_scales: ir.Value,
        b: ir.Value,
        b_stride: ir.Value,
        factor: ir.Value,
        c: ir.Value,
        c_stride: ir.Value,
    ) -> None:
        shapes = [(1, 2, 4)] + [(row, 1, width) for row in _ROWS for width in _PANEL_VECTORS]
        places = y, y_stride, w, x, x_stride, inputs, x_scales, b, b_stride, factor, c, c_stride
        for num_rows, panels, width in shapes:
            same_rows = builder.icmp_signed("==", rows, integer(num_rows))
            same_width = builder.icmp_signed("==", vectors, integer(panels * width))
            with builder.if_then(builder.and_(same_rows, same_width)):
                _emit_panel(builder, kind, num_rows, panels, width, places)

    @compiled
    def multiply(
        y: int,
        y_stride: int,
        w: int,
        x: int,
        x_stride: int,
        rows: int,
        inputs: int,
        vectors: int,
        b: int,
        b_stride: int,
        factor: np.float32,
        c: int,
        c_stride: int,
        scales: int = 0,
    ) -> None:
        done = 0
        while done < vectors:
            left = vectors - done
            width = 4 if left >= 4 else (2 if left >= 2 else 1)
            if rows == 1 and left >= 8:
                width = 8  # a single row has too few sums to hide latency
            row = 0
            while row < rows:
                group = _ROWS[-1]
                for size in _ROWS:
                    if size <= rows - row:
                        group = size
                        break
                set_panel(
                    y + row * y_stride, y_stride, w, x + row * x_stride, x_stride, inputs, group,
                    width, scales + 4 * row, b + row * b_stride if b else b, b_stride, factor,
                    c + row * c_stride if c else c, c_stride,
                )  # fmt: skip
                row += group
            step = width * VECTOR_BYTES
            y, b, c = y + step, (b + step if b else b), (c + step if c else c)
            w += 4 * width * vector_words(kind, inputs * terms)
            done += width

    return multiply


_multiply_float32 = _multiplication(FLOAT32)
_multiply_bfloat16, _multiply_rounded = _multiplication(BFLOAT16), _multiplication(INT8)


@compiled
def _multiply_int8(
    y: int,
    y_stride: int,
    w: int,
    x: int,
    x_stride: int,
    rows: int,
    inputs: int,
    vectors: int,
    b: int,
    b_stride: int,
    factor: np.float32,
    c: int,
    c_stride: int,
) -> None:
    pairs = (inputs + 1) // 2
    words = np.zeros(rows * (pairs + 1), np.int32)  # the rows, rounded, and their scales
    at = np.int64(words.ctypes.data)
    scales = at + 4 * rows * pairs
    for row in range(rows):
        set_float(scales + 4 * row, _round_row(at + 4 * row * pairs, x + row * x_stride, inputs))
    _multiply_rounded(
        y, y_stride, w, at, 4 * pairs, rows, pairs, vectors, b, b_stride, factor, c, c_stride,
        scales,
    )  # fmt: skip
    words[0] = 0  # the memory is kept until here


@compiled
def multiply_kind(
    kind: int,
    y: int,
    y_stride: int,
    w: int,
    x: int,
    x_stride: int,
    rows: int,
    inputs: int,
    vectors: int,
    b: int,
    b_stride: int,
    factor: np.float32 = _NOTHING,
    c: int = 0,
    c_stride: int = 0,
) -> None:
    """Set y to x times a packed matrix of a kind, plus rows of b, plus `factor` times rows of c.

    x is [rows, inputs], y [rows, vectors * LANES]; strides are numbers of bytes between rows.
    Without rows of b or of c, the address is 0; both may be y.
    """
    if kind == FLOAT32:
        _multiply_float32(
            y, y_stride, w, x, x_stride, rows, inputs, vectors, b, b_stride, factor, c, c_stride
        )
    elif kind == BFLOAT16:
        _multiply_bfloat16(
            y, y_stride, w, x, x_stride, rows, inputs, vectors, b, b_stride, factor, c, c_stride
        )
    else:
        _multiply_int8(
            y, y_stride, w, x, x_stride, rows, inputs, vectors, b, b_stride, factor, c, c_stride
        )


# Number of reads of a counter, which take about half a microsecond, before the core is yielded.
# With more reads, threads that share a core would wait for each other to be interrupted.
_PATIENCE = 2000
APART = 128  # bytes between counters; processors fetch cache lines in pairs
_let_others_run = (
    types.ExternalFunction("sched_yield", types.int32())
    if os.name == "posix"
    else compiled(lambda: 0)
)


@emit_for_numba(types.void, [types.int64, types.int64])
def publish(builder: ir.IRBuilder, counter: ir.Value, value: ir.Value) -> None:
    """Set the int64 at `counter`; a reader of the value also sees all earlier writes."""
    builder.store_atomic(value, pointer_at(builder, counter, INT), "release", 8)


@emit_for_numba(types.int64, [types.int64])
def observe(builder: ir.IRBuilder, counter: ir.Value) -> ir.Value:
    """Return the int64 at `counter`."""
    return builder.load_atomic(pointer_at(builder, counter, INT), "acquire", 8)


@emit_for_numba(types.float64, [types.int64])
def observe_double(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the double at an address, of which LLVM makes no vector with others."""
    word = builder.load_atomic(pointer_at(builder, address, INT), "monotonic", 8)
    return builder.bitcast(word, _DOUBLE)


@compiled
def wait_for(counter: int, value: int) -> int:
    """Wait until the int64 at `counter` is at least `value`; return how often the core yielded."""
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
