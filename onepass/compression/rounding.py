"""Rounding of odds to a few values, so that processors with nearly equal odds agree on them.

Each bit's odds t (`splits`) are rounded to a grid with a given step. If t is within its margin of
the border between two values, a different processor may round it to the other value, and everything
decoded afterwards would be noise. Elements are therefore coded in groups, each with one of many
choices of how its grids are shifted. Among the choices for which none of the group's odds are
within their margin of a border, the encoder takes the one with the shortest code and stores its
number. On any processor whose outputs are within the tolerance, the odds are then certain to round
to the same values. A few choices have steps four times as large, for groups that no other choice
fits; the last choice gives every bit the probability 1/2, which needs no agreement.
"""

import functools
import math
from typing import Any

import numba
import numpy as np

from onepass.compression.components import compiled, parallel
from onepass.compression.odds import REACH

PRECISION = 24  # bits of an integer probability
# Steps of t, in units of 1/1024. Coarse steps cost bits; with fine steps few shifts fit a group.
STEPS = np.array([
    64, 96, 128, 160, 204, 256, 324, 408, 512, 648, 816, 1024, 1290, 1625, 2048, 3072
])  # fmt: skip
COARSER = 6  # offset in STEPS to a step that is about four times as large
# Penalty in bits for odds too close to a border when a step is chosen: more than the log2(e) that
# choices take for each, because good choices compensate for coarse steps.
NEAR_BITS = 6.0
MOST_CHOICE_BITS = 12
SHIFTS = 64  # number of offsets of a grid, as fractions of its step
_BINS = 2 * math.ceil(REACH * 1024 / STEPS[0]) + 3
_SMALLEST = 2.0**-7  # least value of 1 - |t| / REACH: no bit is rarer than 2^-21


class Grids:
    """The probabilities that odds are rounded to, for each step, shift and bin.

    Attributes:
      probabilities: probability of the bit 1, a multiple of 2^-24, float64 [steps, shifts, bins].
      costs: the code lengths of a 0 and of a 1 in bits, float32 [steps, shifts, bins, 2].
    """

    def __init__(self) -> None:
        step = STEPS[:, None, None] / 1024.0
        shift = (np.arange(SHIFTS) / SHIFTS)[None, :, None]
        centre = np.arange(_BINS) - _BINS // 2 + shift
        # Only products, sums and a quotient, which have the same bits on every processor.
        low = np.maximum((centre - 0.5) * step, -REACH)
        high = np.minimum((centre + 0.5) * step, REACH)
        middle = np.clip(0.5 * (low + high), -REACH, REACH)
        small = np.maximum(1.0 - np.abs(middle) / REACH, _SMALLEST)
        odds = small * small * small
        rare = np.rint(odds / (1.0 + odds) * 2.0**PRECISION)
        ones = np.where(middle < 0.0, rare, 2.0**PRECISION - rare)
        self.probabilities = ones / 2.0**PRECISION
        costs = np.stack([1.0 - self.probabilities, self.probabilities], -1)
        self.costs = -np.log2(costs).astype(np.float32)


@functools.cache
def grids() -> Grids:
    """Return the grids, which are the same for all files."""
    return Grids()


@compiled
def _shift(choice: int, index: int) -> np.int64:
    """Return the grid's shift for the bit at `index` in its group, in 64ths of a step."""
    word = np.uint32(choice + 1) * np.uint32(2654435761) ^ np.uint32(index + 1) * np.uint32(40503)
    word = (word ^ word >> np.uint32(15)) * np.uint32(2246822519)
    return np.int64((word ^ word >> np.uint32(13)) & np.uint32(SHIFTS - 1))


@compiled
def _bin(t: float, step: float, shift: float) -> tuple[int, float]:
    """Return t's bin, and the distance to its nearest border in (-REACH, REACH), or infinity."""
    position = t / step - shift
    bin_ = math.floor(position + 0.5)
    distance = math.inf
    for border in (bin_ - 0.5, bin_ + 0.5):
        at = (border + shift) * step
        if -REACH < at < REACH:
            distance = min(distance, abs(t - at))
    return int(bin_), distance


@compiled
def _trial(
    t: np.ndarray, margin: np.ndarray, bit: np.ndarray, step: float, which: int, costs: np.ndarray
) -> tuple[float, float]:
    """Return the code length in bits and the number of odds near a border, mean of 4 choices."""
    bits, near = 0.0, 0.0
    for i in range(len(t)):
        for choice in range(4):
            shift = _shift(choice, i)
            bin_, distance = _bin(t[i], step, shift / SHIFTS)
            bits += costs[which, shift, bin_ + costs.shape[2] // 2, bit[i]]
            near += distance <= margin[i]
    return bits / 4, near / 4


@compiled
def _shifts_near_border(t: float, margin: float, step: float) -> np.uint64:
    """Return the shifts at which t is too close to a border, as a bit mask."""
    word = np.uint64(0)
    for shift in range(SHIFTS):
        if _bin(t, step, shift / SHIFTS)[1] <= margin:
            word |= np.uint64(1) << np.uint64(shift)
    return word


@compiled
def _near_any(t: float, margin: float, step: float) -> bool:
    """Return whether t is close to a border at any shift: a multiple of a 64th of the step."""
    position = t / step * SHIFTS
    return abs(position - math.floor(position + 0.5)) * step <= (margin * SHIFTS)


@compiled
def _fits(choice: int, indices: np.ndarray, refused: np.ndarray, count: int) -> bool:
    """Return whether no odds at `indices` in a group refuse the shift that a choice gives them."""
    for r in range(count):
        if refused[r] >> np.uint64(_shift(choice, indices[r])) & np.uint64(1):
            return False
    return True


@parallel
def _search(
    t: np.ndarray,
    margin: np.ndarray,
    bit: np.ndarray,
    steps: np.ndarray,
    group: int,
    counts: tuple[int, int, int],
    costs: np.ndarray,
    chosen: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Write the best choice of each group to `chosen`, and its code length in bits to `totals`."""
    sizes, middle = _step_sizes(), costs.shape[2] // 2
    for g in numba.prange(len(chosen)):
        first, count = g * group, min(group, len(t) - g * group)
        best, found = float(count), counts[2] - 1
        indices, refused = np.empty(count, np.int64), np.empty(count, np.uint64)
        position, which = np.empty(count), np.empty(count, np.int64)
        for coarse in range(2):
            risky = 0
            for j in range(count):
                odds, off = t[first + j], margin[first + j]
                which[j] = min(steps[first + j] + COARSER * coarse, len(sizes) - 1)
                step = sizes[which[j]]
                position[j] = odds / step + 0.5
                if _near_any(odds, off, step):
                    indices[risky], refused[risky] = j, _shifts_near_border(odds, off, step)
                    risky += 1
            start, end = (counts[0], counts[0] + counts[1]) if coarse else (0, counts[0])
            for choice in range(start, end):
                if not _fits(choice, indices, refused, risky):
                    continue
                bits = 0.0
                for j in range(count):
                    shift = _shift(choice, j)
                    bin_ = math.floor(position[j] - shift / SHIFTS) + middle
                    bits += costs[which[j], shift, bin_, bit[first + j]]
                if bits < best:
                    best, found = bits, choice
            if found < counts[2] - 1:
                break
        chosen[g], totals[g] = found, best


@numba.njit(inline="always")
def _step_sizes() -> np.ndarray:
    return STEPS / 1024.0


@compiled
def _round_each(
    t: np.ndarray,
    steps: np.ndarray,
    choices: np.ndarray,
    indices: np.ndarray,
    counts: tuple[int, int, int],
    probabilities: np.ndarray,
    ones: np.ndarray,
) -> None:
    """Write the rounded probability that the bit is 1, for each t [elements], to `ones`."""
    sizes = _step_sizes()
    for i in range(len(t)):
        choice = choices[i]
        if choice == counts[2] - 1:
            ones[i] = 0.5
            continue
        which = min(steps[i] + (COARSER if choice >= counts[0] else 0), len(sizes) - 1)
        shift = _shift(choice, indices[i])
        bin_, _ = _bin(t[i], sizes[which], shift / SHIFTS)
        ones[i] = probabilities[which, shift, bin_ + probabilities.shape[2] // 2]


def counts_of(choice_bits: int) -> tuple[int, int, int]:
    """Return the numbers of choices with the original steps, with coarser steps, and in total."""
    whole = 1 << choice_bits
    coarse = whole // 8
    return whole - coarse - 1, coarse, whole


def round_probabilities(
    t: np.ndarray, steps: np.ndarray, choices: np.ndarray, indices: np.ndarray, choice_bits: int
) -> np.ndarray:
    """Return the rounded probability that each bit is 1, a multiple of 2^-24, [bits]."""
    ones = np.empty(len(t))
    counts = counts_of(choice_bits)
    _round_each(t, steps, choices, indices, counts, grids().probabilities, ones)
    return ones


def best_step(t: np.ndarray, margin: np.ndarray, bit: np.ndarray) -> int:
    """Return the index in STEPS of least code length plus NEAR_BITS for each odds near a border."""
    if not len(t):
        return 0
    found = []
    for which, step in enumerate(STEPS / 1024.0):
        bits, near = _trial(t, margin, bit, step, which, grids().costs)
        found.append(bits + NEAR_BITS * near)
    return int(np.argmin(found))


def choose(
    t: np.ndarray, margin: np.ndarray, bit: np.ndarray, steps: np.ndarray, group: int, bits: int
) -> tuple[np.ndarray, float]:
    """Return the best choice for every group, int64 [groups], and the total code length in bits.

    Odds, margins, bits and steps are [elements, depth]; a group has `group` elements, and a choice
    is stored in `bits` bits.
    """
    chosen = np.zeros(-(-len(t) // group), np.int64)
    totals, bits_each = np.zeros(len(chosen)), group * t.shape[1]
    search: Any = _search
    t, margin, bit, steps = (each.ravel() for each in (t, margin, bit, steps))
    search(t, margin, bit, steps, bits_each, counts_of(bits), grids().costs, chosen, totals)
    return chosen, totals.sum() + bits * len(chosen)
