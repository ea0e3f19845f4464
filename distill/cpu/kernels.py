"""Matrix products over several time steps at once, with the sums kept in registers.

All kernels compute `ROWS` rows, which are consecutive time steps, and read float32 rows by address;
strides, from one row to the next, are in bytes. The operation after the product, a gate or a
residual connection, is applied to the sums before they are stored. The terms of every output are
always added in the same order, so a row does not depend on the other rows of its group.

A matrix [inputs, outputs] is stored as panels [inputs, vectors * LANES], which are read
sequentially. In a gate's panels, each filter vector is followed by its gate vector.
Narrow kernels multiply pairs of bfloat16 numbers and sum in float32.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from distill.cpu import bfloat16
from distill.cpu.units import FILTER_UNIT, GATE_UNIT, unit
from onepass.machine.kernels import HAS_32_REGISTERS, compiled, panel_widths
from onepass.machine.llvm import (
    FLOAT,
    FLOAT_BYTES,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    WORDS,
    emit_for_numba,
    integer,
    multiply_add,
    number,
    pointer_at,
    spread,
)

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
        panels += [(bfloat16.as_pairs(panel) if narrow else panel).ravel()]
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
    """Add x [ROWS, inputs], of pairs if `narrow`, times the panel at `weights` to `sums`."""
    vectors = len(sums[0])
    kind, element = (WORDS, bfloat16.WORD) if narrow else (VECTOR, FLOAT)
    spread_input, add = (
        (bfloat16.spread_pair, bfloat16.add_pairs) if narrow else (spread, multiply_add)
    )
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
    @emit_for_numba(types.void, *[types.int64] * 13)
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
    @emit_for_numba(types.void, *[types.int64] * 9, types.float32, types.int64)
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
_narrow_gate_panel = _gate_kernel(bfloat16.IS_AVAILABLE)
_narrow_product_panel = _product_kernel(bfloat16.IS_AVAILABLE)


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
            newest, at = at, bfloat16.narrow_rows(at, x - older * lag, x_stride, inputs, ROWS)
        bfloat16.narrow_rows(at, c, c_inputs * FLOAT_BYTES, c_inputs, ROWS)
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
        bfloat16.narrow_rows(pairs.ctypes.data, x, x_stride, inputs, ROWS)
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
