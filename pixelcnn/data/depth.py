"""Conversion between depths, in bits per level: 8, or up to 16 from scanners and microscopes."""

import math

import numpy as np

EIGHT = 8
DEPTHS = (8, 10, 12, 14, 16)  # depths of cameras and scanners; files store 8 or 16 bits


def depth_of(highest: int) -> int:
    """Return the smallest depth in bits, out of `DEPTHS`, that can represent level `highest`."""
    return next(bits for bits in DEPTHS if highest < 2**bits)


def dtype_of(bits: int) -> type[np.unsignedinteger]:
    """Return the dtype of levels with a number of bits: uint8 up to 8 bits, else uint16."""
    return np.uint8 if bits <= EIGHT else np.uint16


def rescale_levels(levels: np.ndarray, from_bits: int, bits: int) -> np.ndarray:
    """Scale levels to a depth of `bits`, such that the highest levels correspond; round half up."""
    if from_bits == bits:
        return levels.astype(dtype_of(bits))
    most, highest = 2**from_bits - 1, 2**bits - 1
    return ((2 * levels.astype(np.int64) * highest + most) // (2 * most)).astype(dtype_of(bits))


def min_log_scale_of(bits: int) -> float:
    """Return the lower bound of log-scales that corresponds, in levels, to -7 at 8 bits."""
    return -7.0 - (bits - EIGHT) * math.log(2.0)
