"""Binary splits of a distribution over levels: odds and their tolerances.

A level in [0, 2^depth) is coded as `depth` bits, highest bit first. Each bit splits an interval of
levels into two halves; its odds (`odds`) compare the probabilities of the halves. On a different
processor, a network's outputs are equal only up to a tolerance; `margin` bounds how much outputs
within the tolerance can change the odds.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from onepass.compression import components, mixture_odds
from onepass.compression.components import compiled
from onepass.compression.odds import FLOOR, ROUNDING, reach_of, warp_odds

# A logit that is so far below the largest one, in nats, is a mask: its level is never drawn.
FORBIDDEN = 5e3


class Split(NamedTuple):
    """Odds of bits that split intervals into halves, each float64 [elements]."""

    t: np.ndarray
    margin: np.ndarray  # largest difference between t here and on a different processor


class Mixture(NamedTuple):
    """Mixtures over levels, with parameters float64 [elements, components]."""

    levels: int
    log_weights: np.ndarray
    means: np.ndarray  # in levels, like the scales
    log_scales: np.ndarray
    tolerances: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # of the three; None: no margins
    normal: bool = False

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half).

        `low`, int64 [elements], is the first level of each interval; each half has `half` levels,
        and `whole` levels, a power of two, have a code.
        """
        t, margin = np.empty(len(low)), np.full(len(low), ROUNDING)
        arrays = (self.log_weights, self.means, self.log_scales)
        sizes = (half, whole, self.levels, self.normal)
        if self.tolerances is None:
            mixture_odds.split(arrays, low, sizes, t)
        else:
            bounded: Any = mixture_odds.split_bounded
            bounded(arrays, self.tolerances, low, sizes, t, margin)
        return Split(t, margin)

    def condition_on_levels(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log weights given levels [elements], and their tolerances.

        The components must be logistic. The log weights are determined up to a constant per
        element. The tolerances are zeros if the mixtures have none.
        """
        zeros = np.zeros_like(self.means)
        weight_off, *offs = self.tolerances or (zeros, zeros, zeros)
        weights, tolerance = self.log_weights.copy(), weight_off.copy()
        absorb: Any = components.absorb
        absorb(self.means, self.log_scales, *offs, levels, self.levels, weights, tolerance)
        return weights, tolerance


class Categorical(NamedTuple):
    """Softmaxes over levels: logits float64 [elements, levels], and their tolerances."""

    logits: np.ndarray
    tolerance: np.ndarray

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self.logits.shape[1]

    def forbids(self, levels: np.ndarray) -> np.ndarray:
        """Return whether the levels [elements] have the probability zero, bool [elements]."""
        chosen = np.take_along_axis(self.logits, levels[:, None], 1)[:, 0]
        return chosen < self.logits.max(1) - FORBIDDEN

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """See `Mixture.split`."""
        t, margin = np.empty(len(low)), np.empty(len(low))
        _split_categorical(self.logits, self.tolerance, low, half, whole, t, margin)
        return Split(t, margin)


@compiled
def _split_categorical(
    logits: np.ndarray,
    tolerance: np.ndarray,
    low: np.ndarray,
    half: int,
    whole: int,
    t: np.ndarray,
    margin: np.ndarray,
) -> None:
    levels = logits.shape[1]
    for i in range(len(low)):
        largest = logits[i].max()
        total, all_rise, all_fall = 0.0, 0.0, 0.0
        masses, rise, fall = np.zeros(2), np.zeros(2), np.zeros(2)
        for level in range(levels):
            mass, off = math.exp(logits[i, level] - largest), tolerance[i, level]
            # Upper bounds of exp(off) - 1 and 1 - exp(-off).
            up = off + off * off if off < 1.0 else math.expm1(off) * 1.0001
            down = min(off, 1.0)
            grown = mass * up
            if mass == 0.0:  # a mask, whose tolerance may be large
                grown = math.exp(min(logits[i, level] + off - largest, 700.0))
            total += mass
            all_rise += grown
            all_fall += mass * down
            side = (level - low[i]) // half
            if 0 <= side < 2:
                masses[side] += mass
                rise[side] += grown
                fall[side] += mass * down
        share = FLOOR * half / whole
        masses += share * total
        rise += share * all_rise
        fall = masses - fall - share * all_fall
        u = math.log(masses[1] / masses[0])
        least = math.log(fall[1] / (masses[0] + rise[0])) if fall[1] > 0.0 else -math.inf
        most = math.log((masses[1] + rise[1]) / fall[0]) if fall[0] > 0.0 else math.inf
        t[i], margin[i] = warp_odds(u), reach_of(u, least, most) + ROUNDING
