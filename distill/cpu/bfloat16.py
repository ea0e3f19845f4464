"""Products of bfloat16 pairs with float32 sums, on processors that have instructions for them.

One instruction multiplies two pairs of numbers in each lane and adds both products to a float32 sum
(AVX512-BF16), twice the multiplications of float32. A row's inputs, and a panel's weights, are
stored as pairs of consecutive inputs; an odd number of inputs is padded with a zero.
"""

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from onepass.machine.kernels import compiled
from onepass.machine.llvm import (
    FLOAT_BYTES,
    LANES,
    VECTOR,
    WORDS,
    emit_for_numba,
    load_vector,
    pointer_at,
    whole,
)

IS_AVAILABLE = LANES == 16 and bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16"))
WORD = ir.IntType(32)
PAIR_BYTES = 4
_TRUNCATED = 16  # bits of a float32 number that bfloat16 does not have


class _BFloat(ir.Type):
    """LLVM's type `bfloat`, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)
_HALVES = ir.VectorType(_BFloat(), LANES)


def add_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
    """Return total + a[0] b[0] + a[1] b[1] in each lane, for pairs `a` and `b` in 32-bit words."""
    kind = ir.FunctionType(VECTOR, [VECTOR, _PAIRS, _PAIRS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [total, builder.bitcast(a, _PAIRS), builder.bitcast(b, _PAIRS)])


def reciprocal(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return 1 / x with a relative error below 2^-14."""
    mask = ir.IntType(LANES)
    kind = ir.FunctionType(VECTOR, [VECTOR, VECTOR, mask])
    name = "llvm.x86.avx512.rcp14.ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [x, x, ir.Constant(mask, -1)])


def spread_pair(builder: ir.IRBuilder, pair: ir.Value) -> ir.Value:
    """Return a vector with `pair` in every lane."""
    undefined = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(undefined, pair, ir.Constant(WORD, 0))
    return builder.shuffle_vector(first, undefined, whole(0))


@emit_for_numba(types.void, types.int64, types.int64)
def _narrow_vector(builder: ir.IRBuilder, target: ir.Value, source: ir.Value) -> None:
    kind = ir.FunctionType(_HALVES, [VECTOR])
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    made = builder.call(function, [load_vector(builder, source)])
    builder.store(made, pointer_at(builder, target, _HALVES), align=2)


@emit_for_numba(types.void, types.int64, types.int64)
def _narrow_number(builder: ir.IRBuilder, target: ir.Value, source: ir.Value) -> None:
    """Store one float32 number as a bfloat16 number, rounded to the nearest, ties to even."""
    bits = builder.load(pointer_at(builder, source, WORD), align=FLOAT_BYTES)
    odd = builder.and_(builder.lshr(bits, ir.Constant(WORD, _TRUNCATED)), ir.Constant(WORD, 1))
    rounded = builder.add(builder.add(bits, ir.Constant(WORD, 0x7FFF)), odd)
    short = ir.IntType(16)
    made = builder.trunc(builder.lshr(rounded, ir.Constant(WORD, _TRUNCATED)), short)
    builder.store(made, pointer_at(builder, target, short), align=2)


@emit_for_numba(types.void, types.int64)
def _store_zero(builder: ir.IRBuilder, target: ir.Value) -> None:
    short = ir.IntType(16)
    builder.store(ir.Constant(short, 0), pointer_at(builder, target, short), align=2)


@compiled
def narrow_rows(target: int, source: int, stride: int, inputs: int, rows: int) -> int:
    """Store rows of float32 numbers as rows of bfloat16 pairs, and return the address after them.

    An odd last number is paired with zero; `stride` is in bytes.
    """
    whole_vectors = inputs // LANES
    for row in range(rows):
        at = source + row * stride
        for vector in range(whole_vectors):
            _narrow_vector(target + vector * LANES * 2, at + vector * LANES * FLOAT_BYTES)
        for i in range(whole_vectors * LANES, inputs):
            _narrow_number(target + i * 2, at + i * FLOAT_BYTES)
        if inputs % 2:
            _store_zero(target + inputs * 2)
        target += (inputs + 1) // 2 * PAIR_BYTES
    return target


def as_pairs(panel: np.ndarray) -> np.ndarray:
    """Return a panel [inputs, ...], an even number, as bfloat16 pairs in words [pairs, ...]."""
    bits = np.ascontiguousarray(panel, np.float32).view(np.uint32)
    shift = np.uint32(_TRUNCATED)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> shift) & np.uint32(1))) >> shift
    return (rounded[0::2] | (rounded[1::2] << shift)).view(np.float32)


def even(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix [inputs, outputs] padded with a zero row to an even number of inputs."""
    return np.pad(matrix, [(0, len(matrix) % 2), (0, 0)])
