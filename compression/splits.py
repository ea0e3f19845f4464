"""Binary splits of a distribution over levels: odds and their tolerances.

A level of [0, 2^depth) is coded as `depth` bits, the highest first. Every bit splits an interval of
levels in two halves, and its odds are the probabilities of the halves. A network's outputs
are equal on another processor only up to a tolerance; `margin` bounds the effect on the odds
by the derivative with respect to every output.

Odds are represented by a number t that distinguishes likely from unlikely bits, but hardly
distinguishes degrees of very unlikely ones:

    t = sign(u) 3 (1 - exp(-|u| / 3)),        u = log(upper half / lower half)
"""

import math
from typing import NamedTuple

import numba
import numpy as np

REACH = 3.0  # |t| is less than this
FLOOR = 1e-5  # share of a distribution that is spread over all levels, so that each has a code
CURVATURE = 1.01  # factor on a margin for what its first derivatives neglect
ROUNDING = 1e-9  # error of float64 arithmetic, in t
LARGEST_LOG_ODDS = 14.0

compiled = numba.njit(nogil=True, error_model="numpy", cache=True)
parallel = numba.njit(nogil=True, error_model="numpy", cache=True, parallel=True)


class Split(NamedTuple):
    """Odds of bits that split intervals in two, float64 [elements] each.

    Attributes:
      t: the odds of the upper half.
      margin: largest difference of t from another processor's.
    """

    t: np.ndarray
    margin: np.ndarray


class Mixture(NamedTuple):
    """Mixtures over levels, float64 [elements, components], means and scales in levels.

    Attributes:
      levels: number of levels.
      log_weights, means, log_scales: parameters of the components.
      tolerances: largest errors of log_weights, means and log_scales, with their shapes; zeros if
        margins are not needed.
      normal: whether components are normal rather than logistic.
    """

    levels: int
    log_weights: np.ndarray
    means: np.ndarray
    log_scales: np.ndarray
    tolerances: tuple[np.ndarray, np.ndarray, np.ndarray]
    normal: bool = False

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half).

        Args:
          low: int64 [elements].
          half: levels in each half.
          whole: the number of levels that have a code, a power of two.
        """
        t, margin = np.empty(len(low)), np.empty(len(low))
        arrays = (self.log_weights, self.means, self.log_scales, *self.tolerances)
        _split_mixture(*arrays, low, (half, whole, self.levels, self.normal), t, margin)
        return Split(t, margin)

    def given(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log_weights given the levels [elements], and their tolerance.

        They are those of logistic components, up to a constant for each element.
        """
        weights, tolerance = self.log_weights.copy(), self.tolerances[0].copy()
        arrays = (self.means, self.log_scales, *self.tolerances[1:])
        _absorb(*arrays, levels, self.levels, weights, tolerance)
        return weights, tolerance


class Categorical(NamedTuple):
    """Softmaxes over levels: logits float64 [elements, levels], and their tolerance."""

    logits: np.ndarray
    tolerance: np.ndarray

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self.logits.shape[1]

    def split(self, low: np.ndarray, half: int, whole: int) -> Split:
        """Return the odds of the bits that split [low, low + 2 half); see `Mixture.split`."""
        t, margin = np.empty(len(low)), np.empty(len(low))
        _split_categorical(self.logits, self.tolerance, low, half, whole, t, margin)
        return Split(t, margin)


@compiled
def _warped(upper, lower):
    """Return t, and its derivative with respect to u, for the masses of both halves."""
    u = math.log(upper / lower)
    u = min(max(u, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)
    shrunk = math.exp(-abs(u) / REACH)
    return math.copysign(REACH * (1.0 - shrunk), u), shrunk


@compiled
def _edge(z, normal):
    """Return the mass below z, the mass above, and the density, of a standard component."""
    if normal:
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return 0.5 * math.erfc(-z * math.sqrt(0.5)), 0.5 * math.erfc(z * math.sqrt(0.5)), density
    small = math.exp(-abs(z))
    large = 1.0 / (1.0 + small)
    small *= large
    if z < 0.0:
        return small, large, small * large
    return large, small, small * large


@compiled
def _at(edge, levels, mean, inverse, normal):
    """Return `_edge` below a level; for an edge at infinity z and its derivatives are 0."""
    if edge <= 0:
        return 0.0, 1.0, 0.0, 0.0
    if edge >= levels:
        return 1.0, 0.0, 0.0, 0.0
    z = (edge - 0.5 - mean) * inverse
    below, above, density = _edge(z, normal)
    return below, above, density, z


@compiled
def _between(lower, upper):
    """Return the mass between two edges without the cancellation of one minus nearly one."""
    if lower[3] > 0.0:
        return lower[1] - upper[1]
    return upper[0] - lower[0]


@compiled
def _split_mixture(
    log_weights, means, log_scales, weight_off, mean_off, scale_off, low, sizes, t, margin
):
    half, whole, levels, normal = sizes
    components = means.shape[1]
    moves = np.empty((components, 6))
    for i in range(len(low)):
        first, middle, last = low[i], low[i] + half, low[i] + 2 * half
        largest = log_weights[i, 0]
        for k in range(1, components):
            largest = max(largest, log_weights[i, k])
        total, upper, lower = 0.0, 0.0, 0.0
        for k in range(components):
            weight, inverse = math.exp(log_weights[i, k] - largest), math.exp(-log_scales[i, k])
            a = _at(first, levels, means[i, k], inverse, normal)
            b = _at(middle, levels, means[i, k], inverse, normal)
            c = _at(last, levels, means[i, k], inverse, normal)
            above, below = weight * _between(b, c), weight * _between(a, b)
            total, upper, lower = total + weight, upper + above, lower + below
            share = FLOOR * weight * half / whole
            moves[k, 0], moves[k, 1] = above + share, below + share
            moves[k, 2] = weight * inverse * (b[2] - c[2])
            moves[k, 3] = weight * inverse * (a[2] - b[2])
            moves[k, 4] = weight * (b[3] * b[2] - c[3] * c[2])
            moves[k, 5] = weight * (a[3] * a[2] - b[3] * b[2])
        spread = FLOOR * total * half / whole
        upper, lower, off = upper + spread, lower + spread, 0.0
        for k in range(components):
            off += abs(moves[k, 0] / upper - moves[k, 1] / lower) * weight_off[i, k]
            off += abs(moves[k, 2] / upper - moves[k, 3] / lower) * mean_off[i, k]
            off += abs(moves[k, 4] / upper - moves[k, 5] / lower) * scale_off[i, k]
        t[i], slope = _warped(upper, lower)
        margin[i] = CURVATURE * slope * off + ROUNDING


@compiled
def _split_categorical(logits, tolerance, low, half, whole, t, margin):
    levels = logits.shape[1]
    for i in range(len(low)):
        largest = logits[i].max()
        total, all_moves, masses, moves = 0.0, 0.0, np.zeros(2), np.zeros(2)
        for level in range(levels):
            mass = math.exp(logits[i, level] - largest)
            total += mass
            all_moves += mass * tolerance[i, level]
            side = (level - low[i]) // half
            if 0 <= side < 2:
                masses[side] += mass
                moves[side] += mass * tolerance[i, level]
        masses += FLOOR * total * half / whole
        moves += FLOOR * all_moves * half / whole
        t[i], slope = _warped(masses[1], masses[0])
        off = moves[0] / masses[0] + moves[1] / masses[1]
        margin[i] = CURVATURE * slope * off + ROUNDING


@compiled
def _log_below(z):
    """Return log sigmoid(z)."""
    return min(z, 0.0) - math.log1p(math.exp(-abs(z)))


@compiled
def _absorb(means, log_scales, mean_off, scale_off, chosen, levels, weights, tolerance):
    """Add the log-mass of the chosen levels to log-weights, and its error to the tolerance."""
    for i in range(len(chosen)):
        for k in range(means.shape[1]):
            inverse = math.exp(-log_scales[i, k])
            above = (chosen[i] + 0.5 - means[i, k]) * inverse
            below, width = above - inverse, inverse
            mass, by_mean, by_scale = 0.0, 0.0, 0.0
            if chosen[i] < levels - 1:
                mass += _log_below(above)
                by_mean -= inverse / (1.0 + math.exp(above))
                by_scale -= above / (1.0 + math.exp(above))
            if chosen[i] > 0:
                mass += _log_below(-below)
                by_mean += inverse / (1.0 + math.exp(-below))
                by_scale += below / (1.0 + math.exp(-below))
            if 0 < chosen[i] < levels - 1:
                mass += math.log(-math.expm1(-width))
                by_scale -= width / math.expm1(width)
            weights[i, k] += mass
            tolerance[i, k] += abs(by_mean) * mean_off[i, k] + abs(by_scale) * scale_off[i, k]
