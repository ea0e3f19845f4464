"""Compiled `onepass.likelihoods.noise.bits`: the same integers in a fifth of the time."""

from collections.abc import Sequence

import numpy as np

from onepass.foundation.errors import must_be
from onepass.likelihoods.noise import FOLD_LANE, KEY_PARITY
from onepass.machine.kernels import compiled, entry

_LANE, _PARITY = np.uint32(FOLD_LANE), np.uint32(KEY_PARITY)


def words(seed: int, rows: Sequence[int] | np.ndarray, start: int, length: int) -> np.ndarray:
    """Return two random words per row index of the seed and position, uint32 [rows, length, 2]."""
    if not 0 <= seed < 2**64:
        raise ValueError(must_be("seed", "in [0, 2^64)", seed))
    key = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    made = np.empty([len(rows), length, 2], np.uint32)
    _fill(key, np.array(rows, np.uint32), np.uint32(start), made)
    return made


@entry
def _fill(key: np.ndarray, rows: np.ndarray, start: np.uint32, made: np.ndarray) -> None:
    for row in range(len(rows)):
        first, second = _cipher(key[0], key[1], rows[row], _LANE)
        for i in range(made.shape[1]):
            pair = _cipher(first, second, start + np.uint32(i), np.uint32(0))
            made[row, i, 0], made[row, i, 1] = pair


@compiled
def _cipher(
    key0: np.uint32, key1: np.uint32, left: np.uint32, right: np.uint32
) -> tuple[np.uint32, np.uint32]:
    key2 = key0 ^ key1 ^ _PARITY
    left, right = np.uint32(left + key0), np.uint32(right + key1)
    left, right = _odd_rounds(left, right)
    left, right = np.uint32(left + key1), np.uint32(right + key2 + np.uint32(1))
    left, right = _even_rounds(left, right)
    left, right = np.uint32(left + key2), np.uint32(right + key0 + np.uint32(2))
    left, right = _odd_rounds(left, right)
    left, right = np.uint32(left + key0), np.uint32(right + key1 + np.uint32(3))
    left, right = _even_rounds(left, right)
    left, right = np.uint32(left + key1), np.uint32(right + key2 + np.uint32(4))
    left, right = _odd_rounds(left, right)
    return np.uint32(left + key2), np.uint32(right + key0 + np.uint32(5))


@compiled
def _odd_rounds(left: np.uint32, right: np.uint32) -> tuple[np.uint32, np.uint32]:
    left, right = _round(left, right, 13)
    left, right = _round(left, right, 15)
    left, right = _round(left, right, 26)
    return _round(left, right, 6)


@compiled
def _even_rounds(left: np.uint32, right: np.uint32) -> tuple[np.uint32, np.uint32]:
    left, right = _round(left, right, 17)
    left, right = _round(left, right, 29)
    left, right = _round(left, right, 16)
    return _round(left, right, 24)


@compiled
def _round(left: np.uint32, right: np.uint32, count: int) -> tuple[np.uint32, np.uint32]:
    left = np.uint32(left + right)
    turned = np.uint32(right << np.uint32(count)) | (right >> np.uint32(32 - count))
    return left, np.uint32(turned ^ left)
