"""Constant weights as products and lookups read them, with fewer bytes where that is asked for.

A network reads every weight of its products once per step, so that a large one takes the time to
read them from memory. `WEIGHTS` names the types. bfloat16 numbers are rounded to nearest. int8
numbers are whole multiples, of at most 127, of a scale that the weights of one output share, or
those of one row of a table: the error of a weight is at most half the scale. Kernels widen bfloat16
to float32 in registers. Inputs of int8 products are rounded to whole multiples, of 12 to 16 bits,
of a scale for each row; the sums are whole numbers, which no order of terms changes.
"""

import numpy as np
import tensorflow as tf

from onepass.machine.kernels import (
    FLOAT32,
    INT8,
    LANES,
    pad_channels,
    panel_widths,
    words_of_row,
    words_of_vector,
)

WEIGHTS = ("float32", "bfloat16", "int8")  # programs say them by their index
WORTH_NARROWING = 1 << 12  # weights; fewer are read as quickly as they are widened
_BFLOAT16 = np.dtype(tf.bfloat16.as_numpy_dtype)
_LARGEST = 127
_SMALLEST_SCALE = np.finfo(np.float32).tiny  # below it float32 has too few bits


def kind_of(array: np.ndarray, kind: int) -> int:
    """Return the kind in which an array is stored.

    Small ones stay float32, as do those with infinite numbers or NaN, and whole numbers, such as
    those of masks, which are no weights.
    """
    is_small = kind == FLOAT32 or array.size < WORTH_NARROWING
    if is_small or not np.isfinite(array).all() or (array == np.rint(array)).all():
        return FLOAT32
    return kind


def scales_of(matrix: np.ndarray) -> np.ndarray:
    """Return the scale of every column of a matrix [inputs, outputs] as int8; 0 for zeros."""
    largest = np.abs(matrix).max(0).astype(np.float32)
    scales = np.maximum(largest / np.float32(_LARGEST), _SMALLEST_SCALE)
    return np.where(largest > 0, scales, np.float32(0))


def multiples_of(matrix: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return a matrix [inputs, outputs] as whole multiples of its columns' scales, int8."""
    exact = matrix / np.where(scales > 0, scales, np.float32(1))
    return np.rint(exact).clip(-_LARGEST, _LARGEST).astype(np.int8)


def pack_matrix(matrix: np.ndarray, kind: int) -> np.ndarray:
    """Return the panels of a matrix [inputs, outputs] as words; an int8 one begins with scales."""
    inputs, outputs = matrix.shape
    vectors = pad_channels(outputs) // LANES
    words = np.zeros(vectors * words_of_vector(kind, inputs), np.float32)
    first = at = 0
    for width in panel_widths(vectors):
        columns = matrix[:, first : first + width * LANES]
        count = columns.shape[1]
        size = width * words_of_vector(kind, inputs)
        panel = words[at : at + size]
        if kind == INT8:
            scales = panel[:count] = scales_of(columns)
            numbers = panel[width * LANES :].view(np.int8).reshape([-1, width * LANES, 2])
            multiples = multiples_of(columns, scales)
            numbers[:, :count, 0] = multiples[::2]
            numbers[: inputs // 2, :count, 1] = multiples[1::2]
        else:
            dtype = np.float32 if kind == FLOAT32 else _BFLOAT16
            panel.view(dtype).reshape([inputs, -1])[:, :count] = columns
        first, at = first + width * LANES, at + size
    return words


def pack_rows(table: np.ndarray, kind: int) -> np.ndarray:
    """Return the rows of a table [rows, channels] as words; an int8 one begins with its scale."""
    rows, channels = table.shape
    words = np.zeros([rows, words_of_row(kind, channels)], np.float32)
    if kind == INT8:
        words[:, 0] = scales = scales_of(table.T)
        words.view(np.int8)[:, 4 : 4 + channels] = multiples_of(table.T, scales).T
    else:
        words.view(_BFLOAT16)[:, :channels] = table
    return words.ravel()
