"""Vector kernels for one core, written in LLVM IR and called from Numba.

Numba vectorises plain loops but spills a matrix product's partial sums to memory in every
iteration; here they stay in registers. All kernels take addresses of float32 rows, padded to whole
vectors of `LANES` channels. The terms of every output are summed in the same order for any number
of rows, so a row has the same bits in any batch.

A matrix [inputs, outputs] is stored as panels of 4, 2 or 1 vectors of outputs, each panel [inputs,
vectors * LANES], so that every product reads its weights sequentially.
"""

import contextlib
import functools
import inspect
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import DTypeLike

from onepass.machine.llvm import (
    FLOAT,
    FLOAT_BYTES,
    INT,
    LANES,
    VECTOR_BYTES,
    clip,
    emit_for_numba,
    expm1,
    integer,
    load_vector,
    multiply_add,
    number,
    pointer_at,
    power_and_rest,
    spread,
    store_vector,
)

_PANEL_VECTORS = (4, 2, 1)  # widths of a panel, widest first
# Numbers of rows that share one read of the weights; sums and weights must fit in registers.
HAS_32_REGISTERS = LANES == 16 or platform.machine() in ("aarch64", "arm64")
_ROWS = (4, 2, 1) if HAS_32_REGISTERS else (2, 1)

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
compiled = numba.njit(**_OPTIONS)


def entry(function: Callable[..., Any]) -> Any:
    """Compile a function with Numba; the code is cached on disk if its folder is writable."""
    try:
        made: Any = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return compiled(function)
    # Numba checks only the file of `function`, and would use stale code of functions that it calls.
    made._cache._cache_file._source_stamp = _stamp(function)
    for name in ("load_overload", "save_overload"):  # the disk may be full or read-only
        setattr(made._cache, name, functools.partial(_unless_refused, getattr(made._cache, name)))
    return made


def _stamp(function: Callable[..., Any]) -> tuple:
    """Return modification times and sizes of all source files of the compiled code."""
    folders = {Path(__file__).parent, Path(inspect.getfile(function)).parent}
    files = sorted(file for folder in folders for file in folder.glob("*.py"))
    return tuple((str(file), file.stat().st_mtime, file.stat().st_size) for file in files)


def _unless_refused(function: Callable[..., Any], *arguments: Any) -> Any:
    with contextlib.suppress(OSError):
        return function(*arguments)


def pad_channels(channels: int) -> int:
    """Return a number of channels, rounded up to whole vectors."""
    return -(-channels // LANES) * LANES


def aligned_zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an array of zeros that is aligned to a cache line of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def pack_matrix(matrix: np.ndarray) -> np.ndarray:
    """Return the panels of `matrix` [inputs, outputs] in sequence, padded with zeros."""
    inputs, outputs = matrix.shape
    wide = np.zeros([inputs, pad_channels(outputs)], np.float32)
    wide[:, :outputs] = matrix
    panels, start = [], 0
    for width in panel_widths(wide.shape[1] // LANES):
        panels.append(wide[:, start : start + width * LANES].ravel())
        start += width * LANES
    return np.concatenate(panels)


def panel_widths(vectors: int, widths: tuple[int, ...] = _PANEL_VECTORS) -> list[int]:
    """Return the widths, widest first, of the panels for `vectors` vectors of outputs."""
    chosen = []
    for width in widths:
        chosen += [width] * (vectors // width)
        vectors %= width
    return chosen


def _each_vector(
    builder: ir.IRBuilder, count: ir.Value
) -> AbstractContextManager[tuple[ir.Value, ir.Value]]:
    return cgutils.for_range_slice(
        builder, integer(0), builder.mul(count, integer(VECTOR_BYTES)), integer(VECTOR_BYTES), INT
    )


def _emit_panel(
    builder: ir.IRBuilder, rows: int, panels: int, vectors: int, arguments: Sequence[ir.Value]
) -> None:
    """Emit code that adds rows of x times adjacent panels to rows of y, with sums in registers."""
    y, y_stride, w, x, x_stride, inputs = arguments
    panel_bytes = builder.mul(inputs, integer(vectors * VECTOR_BYTES))
    panel_at = [builder.add(w, builder.mul(panel_bytes, integer(p))) for p in range(panels)]
    y_at = [
        [
            builder.add(
                builder.add(y, builder.mul(y_stride, integer(row))), integer(v * VECTOR_BYTES)
            )
            for v in range(panels * vectors)
        ]
        for row in range(rows)
    ]
    x_at = [builder.add(x, builder.mul(x_stride, integer(row))) for row in range(rows)]
    # LLVM promotes these stack slots to registers.
    sums = [
        [cgutils.alloca_once_value(builder, load_vector(builder, at)) for at in row] for row in y_at
    ]
    with cgutils.for_range(builder, inputs) as loop:
        row_bytes = builder.mul(loop.index, integer(vectors * VECTOR_BYTES))
        weights = [
            load_vector(builder, builder.add(builder.add(at, row_bytes), integer(v * VECTOR_BYTES)))
            for at in panel_at
            for v in range(vectors)
        ]
        x_bytes = builder.mul(loop.index, integer(FLOAT_BYTES))
        for at, row_sums in zip(x_at, sums, strict=True):
            scalar = builder.load(pointer_at(builder, builder.add(at, x_bytes), FLOAT))
            repeated = spread(builder, scalar)
            for slot, weight in zip(row_sums, weights, strict=True):
                total = multiply_add(builder, repeated, weight, builder.load(slot))
                builder.store(total, slot)
    for row_at, row_sums in zip(y_at, sums, strict=True):
        for at, slot in zip(row_at, row_sums, strict=True):
            store_vector(builder, builder.load(slot), at)


@emit_for_numba(types.void, *[types.int64] * 8)
def _add_panel(
    builder: ir.IRBuilder,
    y: ir.Value,
    y_stride: ir.Value,
    w: ir.Value,
    x: ir.Value,
    x_stride: ir.Value,
    inputs: ir.Value,
    rows: ir.Value,
    vectors: ir.Value,
) -> None:
    """Add x [rows, inputs] times the panel of `vectors` at w (8: two panels of 4) to y."""
    shapes = [(1, 2, 4)] + [(row, 1, width) for row in _ROWS for width in _PANEL_VECTORS]
    for shape in shapes:
        same_rows = builder.icmp_signed("==", rows, integer(shape[0]))
        same_width = builder.icmp_signed("==", vectors, integer(shape[1] * shape[2]))
        with builder.if_then(builder.and_(same_rows, same_width)):
            _emit_panel(builder, *shape, (y, y_stride, w, x, x_stride, inputs))


@compiled
def multiply(
    y: int, y_stride: int, w: int, x: int, x_stride: int, rows: int, inputs: int, vectors: int
) -> None:
    """Add x [rows, inputs] times a packed matrix to y [rows, vectors * LANES]; strides in bytes."""
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
            _add_panel(
                y + row * y_stride, y_stride, w, x + row * x_stride, x_stride, inputs, group, width
            )
            row += group
        y += width * VECTOR_BYTES
        w += width * VECTOR_BYTES * inputs
        done += width


def _vector_kernel(formula: Callable[..., ir.Value]) -> Any:
    """Return a kernel(y, a, b, c, d, vectors) that sets y to a formula of the vectors at a to d."""

    @emit_for_numba(types.void, *[types.int64] * 6)
    def kernel(
        builder: ir.IRBuilder,
        y: ir.Value,
        a: ir.Value,
        b: ir.Value,
        c: ir.Value,
        d: ir.Value,
        vectors: ir.Value,
    ) -> None:
        with _each_vector(builder, vectors) as (offset, _):

            def load(index: int) -> ir.Value:
                return load_vector(builder, builder.add((a, b, c, d)[index], offset))

            store_vector(builder, formula(builder, load), builder.add(y, offset))

    return kernel


def _emit_gate(builder: ir.IRBuilder, load: Callable[[int], ir.Value]) -> ir.Value:
    """Emit tanh(a) sigmoid(b) = e / ((e + 2) (f + 2)), e = exp(2 a) - 1, f = exp(-b) - 1."""
    a = builder.fadd(load(0), load(2))
    b = builder.fadd(load(1), load(3))
    e = expm1(builder, clip(builder, builder.fadd(a, a), 20.0))  # tanh(10) rounds to 1
    f = expm1(builder, clip(builder, builder.fneg(b), 60.0))
    two = number(2.0)
    return builder.fdiv(e, builder.fmul(builder.fadd(e, two), builder.fadd(f, two)))


def _emit_relu(builder: ir.IRBuilder, load: Callable[[int], ir.Value]) -> ir.Value:
    zero = number(0.0)
    x = load(0)
    return builder.select(builder.fcmp_unordered(">", x, zero), x, zero)


def _exponential(builder: ir.IRBuilder, load: Callable[[int], ir.Value]) -> ir.Value:
    power, rest = power_and_rest(builder, clip(builder, load(0), 87.0))
    return multiply_add(builder, power, rest, power)


_gate_kernel = _vector_kernel(_emit_gate)
_exponential_kernel = _vector_kernel(_exponential)
_rectify_kernel = _vector_kernel(_emit_relu)
_copy_kernel = _vector_kernel(lambda builder, load: load(0))
_clear_kernel = _vector_kernel(lambda builder, load: number(0.0))
_add_kernel = _vector_kernel(lambda builder, load: builder.fadd(load(0), load(1)))
_half_power_kernel = _vector_kernel(
    lambda builder, load: multiply_add(builder, load(0), number(np.sqrt(0.5)), load(1))
)


@compiled
def gate(z: int, sums: int, condition: int, vectors: int) -> None:
    """Set z = tanh(a) sigmoid(b), where (a, b) are the halves of sums + condition."""
    half = vectors * VECTOR_BYTES
    _gate_kernel(z, sums, sums + half, condition, condition + half, vectors)


@compiled
def exponential(y: int, vectors: int) -> None:
    """Set y = exp(y), limited to [exp(-87), exp(87)]."""
    _exponential_kernel(y, y, 0, 0, 0, vectors)


@compiled
def rectify(y: int, vectors: int) -> None:
    """Set y = max(y, 0)."""
    _rectify_kernel(y, y, 0, 0, 0, vectors)


@compiled
def copy(y: int, x: int, vectors: int) -> None:
    """Set y = x."""
    _copy_kernel(y, x, 0, 0, 0, vectors)


@compiled
def clear(y: int, vectors: int) -> None:
    """Set y = 0."""
    _clear_kernel(y, 0, 0, 0, 0, vectors)


@compiled
def add(y: int, x: int, vectors: int) -> None:
    """Set y = y + x."""
    _add_kernel(y, y, x, 0, 0, vectors)


@compiled
def add_halved_power(y: int, x: int, b: int, vectors: int) -> None:
    """Set y = x sqrt(1/2) + b."""
    _half_power_kernel(y, x, b, 0, 0, vectors)
