"""Bits per level of an image: 8, or up to 16 from scanners and microscopes."""

import math

import numpy as np

EIGHT = 8
DEPTHS = (8, 10, 12, 14, 16)  # of cameras and scanners; files hold 8 or 16


def depth_of(highest: int) -> int:
    """Return the smallest depth in bits, of `DEPTHS`, that has a level."""
    return next(bits for bits in DEPTHS if highest < 2**bits)


def dtype_of(bits: int) -> type[np.unsignedinteger]:
    """Return the type of levels of a depth in bits: uint8, or uint16 beyond 8."""
    return np.uint8 if bits <= EIGHT else np.uint16


def rescaled(levels: np.ndarray, from_bits: int, bits: int) -> np.ndarray:
    """Return whole numbers at another depth, the brightest as the brightest, halves rounded up."""
    if from_bits == bits:
        return levels.astype(dtype_of(bits))
    most, highest = 2**from_bits - 1, 2**bits - 1
    return ((2 * levels.astype(np.int64) * highest + most) // (2 * most)).astype(dtype_of(bits))


def min_log_scale_of(bits: int) -> float:
    """Return a smallest log-scale that spans as many levels as the default, -7, does at 8 bits."""
    return -7.0 - (bits - EIGHT) * math.log(2.0)
