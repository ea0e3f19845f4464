"""A student in machine code: products of several time steps, gates, and recursions.

A matrix [inputs, outputs] is stored as panels [inputs, vectors * LANES], which are read
sequentially. In a gate's panels, each filter vector is followed by its gate vector. All kernels
compute `ROWS` rows, which are consecutive time steps, and read float32 rows by address; strides,
from one row to the next, are in bytes. The gate or residual connection after a product is applied
to the sums before they are stored. The terms of every output are always added in the same order, so
a row does not depend on the other rows of its group.

Narrow kernels multiply pairs of bfloat16 numbers, consecutive inputs of a row and of a panel, and
add both products to a float32 sum in one instruction (AVX512-BF16). An odd number of inputs is
padded with a zero.

The recursions are Levinson's, and the one from residual to wave; TensorFlow's loop takes half of
the time that a student spends outside its flows.
"""

import math
from collections.abc import Iterator
from typing import Any

import llvmlite.binding
import numpy as np
import tensorflow as tf
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import ArrayLike, DTypeLike

from distill.residual import Prediction
from onepass.machine.compiler import compiled, entry
from onepass.machine.kernels import (
    FLOAT,
    FLOAT_BYTES,
    HAS_32_REGISTERS,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    WORDS,
    clip,
    emit_for_numba,
    integer,
    load_vector,
    multiply_add,
    number,
    panel_widths,
    pointer_at,
    spread,
    whole,
)

IS_AVAILABLE = LANES == 16 and bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16"))
WORD = ir.IntType(32)
PAIR_BYTES = 4
_TRUNCATED = 16  # bits of a float32 number that bfloat16 does not have


class _BFloat(ir.Type):
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


@emit_for_numba(types.void, [types.int64, types.int64])
def _narrow_vector(builder: ir.IRBuilder, target: ir.Value, source: ir.Value) -> None:
    kind = ir.FunctionType(_HALVES, [VECTOR])
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    made = builder.call(function, [load_vector(builder, source)])
    builder.store(made, pointer_at(builder, target, _HALVES), align=2)


@emit_for_numba(types.void, [types.int64, types.int64])
def _narrow_number(builder: ir.IRBuilder, target: ir.Value, source: ir.Value) -> None:
    bits = builder.load(pointer_at(builder, source, WORD), align=FLOAT_BYTES)
    odd = builder.and_(builder.lshr(bits, ir.Constant(WORD, _TRUNCATED)), ir.Constant(WORD, 1))
    rounded = builder.add(builder.add(bits, ir.Constant(WORD, 0x7FFF)), odd)
    short = ir.IntType(16)
    made = builder.trunc(builder.lshr(rounded, ir.Constant(WORD, _TRUNCATED)), short)
    builder.store(made, pointer_at(builder, target, short), align=2)


@emit_for_numba(types.void, [types.int64])
def _store_zero(builder: ir.IRBuilder, target: ir.Value) -> None:
    short = ir.IntType(16)
    builder.store(ir.Constant(short, 0), pointer_at(builder, target, short), align=2)


@compiled
def narrow_rows(target: int, source: int, stride: int, inputs: int, rows: int) -> int:
    """Store float32 rows, `stride` bytes apart, as bfloat16 pairs; return the next address."""
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


# Factors of `pack_gates` for filters and gates: 2^x is easier to compute than e^x.
FILTER_UNIT, GATE_UNIT = 2 / math.log(2), -1 / math.log(2)
_FILTER_LIMIT = 10 * FILTER_UNIT  # tanh(10) rounds to 1
_GATE_LIMIT = 86.0  # 2^-86 + 1 rounds to 1, and 2^86 does not overflow


def _series(degree: int) -> list[float]:
    """Return coefficients of (2^r - 1) / r, highest first, off by 8e-9 (degree 5) or 1.1e-5 (3)."""
    fit = np.polynomial.Chebyshev.interpolate(
        lambda r: np.expm1(r * math.log(2)) / r, degree, domain=[-0.5, 0.5]
    )
    return fit.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()


def _power_and_rest(builder: ir.IRBuilder, x: ir.Value, degree: int) -> tuple[ir.Value, ir.Value]:
    """Return 2^n and 2^r - 1 for x = n + r, |r| <= 1/2, |x| < 126."""
    to_whole = number(1.5 * 2.0**23)  # adding it leaves no bits for a fraction
    shifted = builder.fadd(x, to_whole)
    r = builder.fsub(x, builder.fsub(shifted, to_whole))
    highest, *others = _series(degree)
    series = number(highest)
    for coefficient in others:
        series = multiply_add(builder, series, r, number(coefficient))
    # n is in the lowest bits; the exponent of 1.0 is added to it.
    exponent = builder.shl(builder.bitcast(shifted, WORDS), whole(23))
    power = builder.bitcast(builder.add(exponent, whole(0x3F800000)), VECTOR)
    return power, builder.fmul(series, r)


def unit(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, narrow: bool) -> ir.Value:
    """Return tanh(a') sigmoid(b') for a = FILTER_UNIT a' and b = GATE_UNIT b'.

    It is e / ((e + 2) f), with e = exp(2 a') - 1 = 2^a - 1 and f = 1 + exp(-b') = 1 + 2^b. If
    `narrow`, it is less exact, but its error is below the rounding of bfloat16.
    """
    degree = 3 if narrow else 5
    power, rest = _power_and_rest(builder, clip(builder, a, _FILTER_LIMIT), degree)
    e = multiply_add(builder, power, rest, builder.fsub(power, number(1.0)))
    power, rest = _power_and_rest(builder, clip(builder, b, _GATE_LIMIT), degree)
    f = multiply_add(builder, power, rest, builder.fadd(power, number(1.0)))
    under = builder.fmul(builder.fadd(e, number(2.0)), f)
    if narrow:
        return builder.fmul(e, reciprocal(builder, under))
    return builder.fdiv(e, under)


ROWS = 6  # the sums of so many rows of a panel leave registers free for the operands
PANEL_VECTORS = (4, 2, 1) if HAS_32_REGISTERS else (2, 1)  # widths of a panel, widest first
GATE_VECTORS = tuple(width // 2 for width in PANEL_VECTORS if width > 1)  # filters


def pack_outputs(matrix: np.ndarray, narrow: bool = False) -> np.ndarray:
    """Return the panels of `matrix` [inputs, outputs] one after another, padded with zeros."""
    return _pack_panels([_vectors(matrix)], PANEL_VECTORS, narrow)


def pack_gates(matrix: np.ndarray, narrow: bool = False) -> np.ndarray:
    """Return the panels of `matrix` [inputs, 2 * units], filters then gates, for `gate_rows`."""
    filters, gates = np.split(np.asarray(matrix, np.float64), 2, -1)
    parts = [_vectors(filters * FILTER_UNIT), _vectors(gates * GATE_UNIT)]
    return _pack_panels(parts, GATE_VECTORS, narrow)


def _vectors(matrix: np.ndarray) -> np.ndarray:
    matrix = np.asarray(matrix, np.float32)
    wide = np.pad(matrix, [(0, 0), (0, -matrix.shape[1] % LANES)])
    return wide.reshape(len(wide), wide.shape[1] // LANES, LANES)


def _pack_panels(parts: list[np.ndarray], widths: tuple[int, ...], narrow: bool) -> np.ndarray:
    panels, start = [], 0
    for width in panel_widths(parts[0].shape[1], widths):
        panel = np.concatenate([part[:, start : start + width] for part in parts], 1)
        panels += [(as_pairs(panel) if narrow else panel).ravel()]
        start += width
    return np.concatenate(panels)


# --- pieces of LLVM code ---------------------------------------------------------------------


def _element(
    builder: ir.IRBuilder, pointer: ir.Value, index: ir.Value, kind: ir.Type = VECTOR
) -> ir.Value:
    return builder.load(builder.gep(pointer, [index], source_etype=kind), align=FLOAT_BYTES)


def _row_pointers(
    builder: ir.IRBuilder, address: ir.Value, stride: ir.Value, kind: ir.Type = VECTOR
) -> list[ir.Value]:
    return [
        pointer_at(builder, builder.add(address, builder.mul(stride, integer(row))), kind)
        for row in range(ROWS)
    ]


def _offset_pointers(builder: ir.IRBuilder, base: ir.Value, offsets: ir.Value) -> list[ir.Value]:
    offsets = pointer_at(builder, offsets, integer(0).type)
    each = (_element(builder, offsets, integer(row), integer(0).type) for row in range(ROWS))
    return [pointer_at(builder, builder.add(base, offset)) for offset in each]


def _add_products(
    builder: ir.IRBuilder,
    sums: list[list[ir.Value]],
    weights: ir.Value,
    x: ir.Value,
    x_stride: ir.Value,
    inputs: ir.Value,
    narrow: bool,
) -> None:
    vectors = len(sums[0])
    kind, element = (WORDS, WORD) if narrow else (VECTOR, FLOAT)
    spread_input, add = (spread_pair, add_pairs) if narrow else (spread, multiply_add)
    weights = pointer_at(builder, weights, kind)
    x_rows = _row_pointers(builder, x, x_stride, element)
    with cgutils.for_range(builder, inputs) as loop:
        first = builder.mul(loop.index, integer(vectors))
        panel = [
            _element(builder, weights, builder.add(first, integer(v)), kind) for v in range(vectors)
        ]
        for x_row, row_sums in zip(x_rows, sums, strict=True):
            lanes = spread_input(builder, _element(builder, x_row, loop.index, element))
            for slot, weight in zip(row_sums, panel, strict=True):
                builder.store(add(builder, lanes, weight, builder.load(slot)), slot)


def _store_rows(
    builder: ir.IRBuilder, y: ir.Value, y_stride: ir.Value, rows: list[list[ir.Value]]
) -> None:
    for pointer, row in zip(_row_pointers(builder, y, y_stride), rows, strict=True):
        for v, value in enumerate(row):
            at = builder.gep(pointer, [integer(v)], source_etype=VECTOR)
            builder.store(value, at, align=FLOAT_BYTES)


def _at_least(builder: ir.IRBuilder, x: ir.Value, low: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", x, low), low, x)


# --- kernels ---------------------------------------------------------------------------------


def _each_width(builder: ir.IRBuilder, widths: tuple[int, ...], width: ir.Value) -> Iterator[int]:
    """Yield each of `widths` inside a branch that runs if the width equals `width`."""
    for candidate in widths:
        with builder.if_then(builder.icmp_signed("==", width, integer(candidate))):
            yield candidate


def _slots(builder: ir.IRBuilder, rows: list[list[ir.Value]]) -> list[list[ir.Value]]:
    # LLVM turns these stack slots into registers.
    return [[cgutils.alloca_once_value(builder, value) for value in row] for row in rows]


def _values(builder: ir.IRBuilder, slots: list[list[ir.Value]]) -> list[list[ir.Value]]:
    return [[builder.load(slot) for slot in row] for row in slots]


def _gate_kernel(narrow: bool) -> Any:
    @emit_for_numba(types.void, [types.int64] * 13)
    def gate_panel(
        builder: ir.IRBuilder,
        z: ir.Value,
        stride: ir.Value,
        weights: ir.Value,
        base: ir.Value,
        offsets: ir.Value,
        x: ir.Value,
        x_stride: ir.Value,
        lag: ir.Value,
        taps: ir.Value,
        inputs: ir.Value,
        c: ir.Value,
        c_inputs: ir.Value,
        width: ir.Value,
    ) -> None:
        for units in _each_width(builder, GATE_VECTORS, width):
            bases = _offset_pointers(builder, base, offsets)
            first = [
                [_element(builder, row, integer(v)) for v in range(2 * units)] for row in bases
            ]
            sums = _slots(builder, first)
            tap_bytes = builder.mul(inputs, integer(2 * units * VECTOR_BYTES))
            with cgutils.for_range(builder, taps) as loop:
                lags = builder.sub(builder.sub(taps, integer(1)), loop.index)
                tap = builder.sub(x, builder.mul(lag, lags))
                panel = builder.add(weights, builder.mul(tap_bytes, loop.index))
                _add_products(builder, sums, panel, tap, x_stride, inputs, narrow)
            panel = builder.add(weights, builder.mul(tap_bytes, taps))
            c_stride = builder.mul(c_inputs, integer(FLOAT_BYTES))
            _add_products(builder, sums, panel, c, c_stride, c_inputs, narrow)
            made = [
                [unit(builder, row[v], row[units + v], narrow) for v in range(units)]
                for row in _values(builder, sums)
            ]
            _store_rows(builder, z, stride, made)

    return gate_panel


def _product_kernel(narrow: bool) -> Any:
    @emit_for_numba(types.void, [*[types.int64] * 9, types.float32, types.int64])
    def product_panel(
        builder: ir.IRBuilder,
        y: ir.Value,
        stride: ir.Value,
        weights: ir.Value,
        bias: ir.Value,
        base: ir.Value,
        base_stride: ir.Value,
        x: ir.Value,
        x_stride: ir.Value,
        inputs: ir.Value,
        floor: ir.Value,
        width: ir.Value,
    ) -> None:
        for vectors in _each_width(builder, PANEL_VECTORS, width):
            biases = pointer_at(builder, bias)
            first = [
                [
                    multiply_add(
                        builder,
                        _element(builder, row, integer(v)),
                        number(math.sqrt(0.5)),
                        _element(builder, biases, integer(v)),
                    )
                    for v in range(vectors)
                ]
                for row in _row_pointers(builder, base, base_stride)
            ]
            sums = _slots(builder, first)
            _add_products(builder, sums, weights, x, x_stride, inputs, narrow)
            low = spread(builder, floor)
            made = [
                [_at_least(builder, value, low) for value in row] for row in _values(builder, sums)
            ]
            _store_rows(builder, y, stride, made)

    return product_panel


_gate_panel, _product_panel = _gate_kernel(False), _product_kernel(False)
# Without the instructions the narrow ones are never run.
_narrow_gate_panel = _gate_kernel(IS_AVAILABLE)
_narrow_product_panel = _product_kernel(IS_AVAILABLE)


@compiled
def gate_rows(
    units: int,
    weights: int,
    base: int,
    offsets: int,
    x: int,
    x_stride: int,
    lag: int,
    taps: int,
    inputs: int,
    c: int,
    c_inputs: int,
    vectors: int,
    pairs: np.ndarray | None,
) -> None:
    """Store units [ROWS, vectors * LANES] = tanh(a) sigmoid(b), for sums a, b over all taps and c.

    The sums of row i start from the numbers at base + offsets[i], in the order of `pack_gates`:
    biases, or the results of `product_rows` for a condition that several rows share. Tap j reads
    the rows at x - (taps - 1 - j) lag.

    Args:
      weights: address of the result of `pack_gates` for the inputs of all taps and the condition.
      base: address of the initial values of the sums.
      offsets: address of int64 [ROWS], offsets in bytes from `base`.
      x_stride: number of bytes from a row of x to the next.
      lag: number of bytes from a tap back to the preceding tap.
      c: address of the condition [ROWS, c_inputs].
      pairs: memory for the inputs as bfloat16 pairs; None: float32 products.
    """
    if pairs is not None:
        newest = at = pairs.ctypes.data
        for older in range(taps - 1, -1, -1):
            newest, at = at, narrow_rows(at, x - older * lag, x_stride, inputs, ROWS)
        narrow_rows(at, c, c_inputs * FLOAT_BYTES, c_inputs, ROWS)
        inputs, c_inputs = (inputs + 1) // 2, (c_inputs + 1) // 2
        x, x_stride, lag, c = newest, inputs * FLOAT_BYTES, at - newest, at
    done, stride = 0, vectors * VECTOR_BYTES
    while done < vectors:
        width = _widest(GATE_VECTORS, vectors - done)
        if pairs is not None:
            _narrow_gate_panel(
                units, stride, weights, base, offsets,
                x, x_stride, lag, taps, inputs, c, c_inputs, width,
            )  # fmt: skip
        else:
            _gate_panel(
                units, stride, weights, base, offsets,
                x, x_stride, lag, taps, inputs, c, c_inputs, width,
            )  # fmt: skip
        units += width * VECTOR_BYTES
        base += 2 * width * VECTOR_BYTES
        weights += 2 * width * VECTOR_BYTES * (taps * inputs + c_inputs)
        done += width


@compiled
def product_rows(
    y: int,
    weights: int,
    bias: int,
    base: int,
    base_stride: int,
    x: int,
    x_stride: int,
    inputs: int,
    floor: float,
    vectors: int,
    pairs: np.ndarray | None,
) -> None:
    """Store y [ROWS, vectors * LANES] = max(x W + base sqrt(1/2) + bias, floor).

    Args:
      weights: address of the result of `pack_outputs` for W [inputs, vectors * LANES].
      base_stride: number of bytes from a row of the base to the next; 0: all rows are the same.
      x_stride: number of bytes from a row of x to the next.
      floor: lower bound of the output; -inf: no limit.
    """
    if pairs is not None:
        narrow_rows(pairs.ctypes.data, x, x_stride, inputs, ROWS)
        inputs = (inputs + 1) // 2
        x, x_stride = pairs.ctypes.data, inputs * FLOAT_BYTES
    done, stride = 0, vectors * VECTOR_BYTES
    while done < vectors:
        width = _widest(PANEL_VECTORS, vectors - done)
        if pairs is not None:
            _narrow_product_panel(
                y, stride, weights, bias, base, base_stride, x, x_stride, inputs, floor, width
            )
        else:
            _product_panel(
                y, stride, weights, bias, base, base_stride, x, x_stride, inputs, floor, width
            )
        y += width * VECTOR_BYTES
        bias += width * VECTOR_BYTES
        base += width * VECTOR_BYTES
        weights += width * VECTOR_BYTES * inputs
        done += width


@compiled
def _widest(widths: tuple[int, ...], most: int) -> int:
    for width in widths:
        if width <= most:
            return width
    return 1


_FRAMES = 32  # solved together, in vectors; their arrays fit into a core's first-level cache
_SUMS = 4  # TensorFlow adds the terms of a step in this many sums, in turn


def as_compiled(array: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Return the array as contiguous and writeable, with the given type."""
    # Numba treats a read-only array as a different type, and would compile everything again.
    return np.require(np.asarray(array), dtype, ["C_CONTIGUOUS", "WRITEABLE"])


def levinson(correlation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what `wavenet.linear_prediction.levinson` does for float64, without gradients."""
    found = tf.numpy_function(solve_rows, [correlation], [tf.float64, tf.float64], stateful=False)
    found[0].set_shape([*correlation.shape[:-1], correlation.shape[-1] - 1])
    found[1].set_shape(correlation.shape[:-1])
    return found[0], found[1]


def solve_rows(correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `levinson` for an array float64 [..., K + 1]."""
    rows = np.ascontiguousarray(correlation).reshape(-1, correlation.shape[-1])
    coefficients, error = np.zeros([len(rows), rows.shape[1] - 1]), np.zeros(len(rows))
    _solve(rows, coefficients, error)
    shape = correlation.shape[:-1]
    return coefficients.reshape([*shape, -1]), error.reshape(shape)


@entry
def _solve(correlation: np.ndarray, coefficients: np.ndarray, error: np.ndarray) -> None:
    order = coefficients.shape[1]
    lags, found = np.zeros((order + 1, _FRAMES)), np.zeros((order, _FRAMES))
    sums, reflection, left = np.zeros((_SUMS, _FRAMES)), np.zeros(_FRAMES), np.zeros(_FRAMES)
    for first in range(0, len(correlation), _FRAMES):
        count = min(_FRAMES, len(correlation) - first)
        lags[0] = 1.0  # unused frames get the correlation of white noise
        lags[1:] = 0.0
        for frame in range(count):
            for lag in range(order + 1):
                lags[lag, frame] = correlation[first + frame, lag]
        left[:] = lags[0]
        for i in range(order):
            sums[:] = 0.0
            for j in range(i):
                for frame in range(_FRAMES):
                    sums[j % _SUMS, frame] += found[j, frame] * lags[i - j, frame]
            for frame in range(_FRAMES):
                explained = sums[0, frame] + sums[1, frame] + sums[2, frame] + sums[3, frame]
                share = (lags[i + 1, frame] - explained) / left[frame]
                share = max(min(share, 0.9999), -0.9999)
                reflection[frame] = share
                left[frame] *= 1.0 - share * share
            for j in range((i + 1) // 2):
                for frame in range(_FRAMES):
                    one, other = found[j, frame], found[i - 1 - j, frame]
                    found[j, frame] = one - reflection[frame] * other
                    found[i - 1 - j, frame] = other - reflection[frame] * one
            found[i] = reflection
        for frame in range(count):
            for k in range(order):
                coefficients[first + frame, k] = found[k, frame]
            error[first + frame] = left[frame]


def wave(
    residual: np.ndarray, prediction: Prediction, tail: np.ndarray, row_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wave, float32 [batch, time], and its last K samples.

    They are equal for chunks of any size. The residual is in units of the gain; the prediction has
    coefficients and a gain per row of samples; `tail` are the K samples before, [batch, K].
    """
    coefficients = as_compiled(np.asarray(prediction.coefficients), np.float32)
    gain = np.exp(np.asarray(prediction.log_gain, np.float32))
    order, time = coefficients.shape[-1], residual.shape[1]
    sound = np.zeros([len(residual), order + time], np.float32)
    sound[:, :order] = tail
    _run(as_compiled(residual, np.float32), coefficients, gain, sound, row_samples)
    return sound[:, order:], sound[:, time:].copy()


@entry
def _run(
    residual: np.ndarray,
    coefficients: np.ndarray,
    gain: np.ndarray,
    sound: np.ndarray,
    row_samples: int,
) -> None:
    order = coefficients.shape[2]
    now = np.zeros(2 * order + row_samples, np.float32)
    for one in range(len(residual)):
        for start in range(0, residual.shape[1], row_samples):
            row, stop = start // row_samples, min(start + row_samples, residual.shape[1])
            now[:order] = sound[one, start : start + order]
            now[order : order + stop - start] = gain[one, row] * residual[one, start:stop]
            _filter(coefficients[one, row], now, order, stop - start)
            sound[one, order + start : order + stop] = now[order : order + stop - start]


@compiled
def _filter(coefficients: np.ndarray, now: np.ndarray, order: int, count: int) -> None:
    """Add the prediction to each of the `count` samples of `now` after the first `order` samples.

    A finished sample's contributions are added at once, with vector instructions; in a dot product
    per sample, each addition would wait for the one before it. Later values have no meaning.
    """
    for t in range(order):
        _add(now[order : order + t + 1], coefficients[order - t - 1 :], now[t])
    for t in range(order, order + count):
        _add(now[t + 1 : t + 1 + order], coefficients, now[t])


@compiled
def _add(target: np.ndarray, weights: np.ndarray, factor: float) -> None:
    for k in range(len(target)):
        target[k] += weights[k] * factor
