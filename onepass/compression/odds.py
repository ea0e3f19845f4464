"""Odds of levels and their tolerances: binary splits of closed forms and of mixtures.

A level in [0, 2^depth) is coded as `depth` bits, highest bit first. Each bit splits an interval of
levels into two halves, whose probabilities its odds compare. A distribution names its form in the
attribute `form`; coding a level then takes the masses of only a few intervals. With u = log(U / L),
the masses of the upper and the lower half, the odds are

    t = sign(u) 3 (1 - exp(-|u| / 3))

which clearly distinguishes likely bits from unlikely ones, but hardly unlikely from very unlikely.
On a different processor, a network's outputs are equal only up to a tolerance; a margin bounds how
much outputs within it can change t: u changes by at most the sum of its first derivatives times the
tolerances, plus half its largest second derivative on a straight path within them. The second
derivative of the log of a mixture's mass lies between the average of those of its components' log
densities over the interval and that average plus the variance of their scores; shares on the path
are bounded by the initial ones. Where tolerances are too wide for a small bound, the masses are
also bounded by the extremes of the cumulative function.

With z = (x - mean) / scale, the score of a logistic in z is at most 1 in absolute value and changes
by at most 1/2 per unit of z; that of a normal is -z and changes by 1. The mean of |z| over an
interval is at most its distance from the mean plus the mean of |z| of the standard component: the
hazard rates increase, so |z| minus that distance is stochastically smaller.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from onepass.machine.compiler import compiled, entry

# An edge: the mass below it, the mass above it, the density at it, and its z.
Edge = tuple[float, float, float, float]

LOGISTIC_ROOT = 1.82  # at least the root mean square of z for a logistic, 1.8138
NORMAL_FOURTH = 1.317  # at least the fourth root of the mean of z^4 for a normal, which is 3
# Beyond these distances in z, a component's mass is below 1e-30.
LOGISTIC_FAR = 70.0
NORMAL_FAR = 12.0
ERROR = 2.0**-44  # relative error of float64 functions, sums and differences of masses
LARGEST_GROWTH = 0.5  # largest first-order change of a log mass with a bound of second order


@compiled
def edge_of(z: float, normal: bool) -> tuple[float, float, float]:
    """Return the mass below z, the mass above z and the density at z of a standard component."""
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
def at(edge: int, levels: int, mean: float, inverse: float, normal: bool) -> Edge:
    """Return the `Edge` below a level; beyond the levels, at infinity, density and z are 0."""
    if edge <= 0:
        return 0.0, 1.0, 0.0, 0.0
    if edge >= levels:
        return 1.0, 0.0, 0.0, 0.0
    z = (edge - 0.5 - mean) * inverse
    below, above, density = edge_of(z, normal)
    return below, above, density, z


@compiled
def between(lower: Edge, upper: Edge) -> float:
    """Return the mass between two edges, without cancellation in the upper tail."""
    if lower[3] > 0.0:
        return lower[1] - upper[1]
    return upper[0] - lower[0]


@compiled
def minuend_of(lower: Edge, upper: Edge) -> float:
    """Return the minuend of the difference in `between`; its rounding error is relative to this."""
    if lower[3] > 0.0:
        return lower[1]
    return upper[0] if lower[1] > 0.0 else 0.0  # both edges are at infinity


@compiled
def extremes(
    edge: int,
    levels: int,
    mean: float,
    inverse: float,
    mean_off: float,
    stretch: float,
    normal: bool,
) -> tuple[Edge, Edge]:
    """Return `at` for the least and largest z of an edge; `stretch` bounds the scale's change."""
    if edge <= 0 or edge >= levels:
        found = at(edge, levels, mean, inverse, normal)
        return found, found
    low, high = edge - 0.5 - mean - mean_off, edge - 0.5 - mean + mean_off
    low = low * inverse * (1.0 / stretch if low > 0.0 else stretch)
    high = high * inverse * (stretch if high > 0.0 else 1.0 / stretch)
    below, above, density = edge_of(low, normal)
    least = (below, above, density, low)
    below, above, density = edge_of(high, normal)
    return least, (below, above, density, high)


@compiled
def mass_range(
    least_lower: Edge, most_lower: Edge, least_upper: Edge, most_upper: Edge
) -> tuple[float, float]:
    """Return bounds of the mass between two edges, given each edge at its least and largest z."""
    least = between(most_lower, least_upper) - ERROR * minuend_of(most_lower, least_upper)
    most = between(least_lower, most_upper) + ERROR * minuend_of(least_lower, most_upper)
    return max(0.0, least), max(0.0, most)


@compiled
def distance_of(first: int, last: int, low: float, high: float, levels: int) -> float:
    """Return the distance between an interval and the mean, in z; 0 if the mean is inside."""
    if first > 0 and low > 0.0:
        return low
    if last < levels and high < 0.0:
        return -high
    return 0.0


@compiled
def path_bounds(
    distance: float, mean_off: float, scale_off: float, stretch: float, normal: bool
) -> tuple[float, float, float]:
    """Return bounds of the score along a path, for an interval at a given distance from the mean.

    Let S and S' be the first and second derivatives of the log density along a path within the
    tolerances. The bounds hold at every point of the path: of the root mean square of S over the
    interval, of the mean of the positive part of S', and of the mean of its negative part. The
    distance is in z, `mean_off` in scales, and `stretch` at least exp(scale_off).
    """
    mean_off = mean_off * stretch
    distance = distance * stretch + mean_off
    if normal:
        both = mean_off + scale_off * (distance + 1.0)
        score = scale_off + mean_off * (distance + 1.0)
        score += scale_off * (distance + NORMAL_FOURTH) ** 2
        return score, 2.0 * score * scale_off, both * both + 2.0 * score * scale_off
    score = mean_off + scale_off * (1.0 + distance + LOGISTIC_ROOT)
    return score, 2.0 * score * scale_off, 0.5 * score * score + 2.0 * score * scale_off


@compiled
def _log_below(z: float) -> float:
    return min(z, 0.0) - math.log1p(math.exp(-abs(z)))


@compiled
def stretch_of(scale_off: float) -> float:
    """Return an upper bound of exp(scale_off)."""
    return 1.0 / (1.0 - scale_off) if scale_off < LARGEST_GROWTH else math.exp(scale_off) * 1.0001


@entry
def absorb(
    means: np.ndarray,
    log_scales: np.ndarray,
    mean_off: np.ndarray,
    scale_off: np.ndarray,
    chosen: np.ndarray,
    levels: int,
    weights: np.ndarray,
    tolerance: np.ndarray,
) -> None:
    """Add log masses of chosen levels under logistic components to log weights, in place.

    Means and scales are in levels, float64 [elements, components], and so are the weights, whose
    errors in `tolerance` grow by those of the masses.
    """
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
            if mean_off[i, k] == 0.0 and scale_off[i, k] == 0.0:
                continue
            distance = distance_of(chosen[i], chosen[i] + 1, below, above, levels)
            stretch, off = stretch_of(scale_off[i, k]), mean_off[i, k] * inverse
            score, rise, fall = path_bounds(distance, off, scale_off[i, k], stretch, False)
            moved = abs(by_mean) * mean_off[i, k] + abs(by_scale) * scale_off[i, k]
            moved += 0.5 * max(score * score + rise, fall)
            tolerance[i, k] += min(moved, score)


REACH = 3.0  # |t| is less than this
FLOOR = 1e-5  # share of the mass that is spread evenly over all levels, so that each has a code
ROUNDING = 1e-9  # error of float64 arithmetic, in t
LARGEST_LOG_ODDS = 14.0


@compiled
def warp_odds(u: float) -> float:
    """Return the representation t of log odds u, which are clipped to +-LARGEST_LOG_ODDS."""
    u = min(max(u, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)
    return math.copysign(REACH * (1.0 - math.exp(-abs(u) / REACH)), u)


@compiled
def reach_of(u: float, least: float, most: float) -> float:
    """Return the largest change of t if the log odds u may lie between `least` and `most`."""
    t = warp_odds(u)
    return max(warp_odds(max(most, u)) - t, t - warp_odds(min(least, u)))


# A second-order part up to SMALL + SMALL_SHARE * (first-order part) needs no other bound.
SMALL = 2e-3
SMALL_SHARE = 0.1
COLUMNS = 13

# Log weights, means and log scales, or their tolerances, each float64 [elements, components].
Parameters = tuple[np.ndarray, np.ndarray, np.ndarray]
# Levels in a half, coded levels, all levels, and whether components are normal.
Sizes = tuple[int, int, int, bool]


@compiled
def _masses(
    i: int, arrays: Parameters, low: int, sizes: Sizes, moves: np.ndarray
) -> tuple[float, float]:
    """Return the masses of the upper and the lower half of an element's interval.

    Of each component, `moves` [components, COLUMNS] gets weight, inverse scale, masses of the
    halves, their derivatives by mean and log scale, z of the three edges, and minuends of both.
    """
    log_weights, means, log_scales = arrays
    half, whole, levels, normal = sizes
    first, middle, last = low, low + half, low + 2 * half
    largest = log_weights[i, 0]
    for k in range(1, means.shape[1]):
        largest = max(largest, log_weights[i, k])
    total, upper, lower = 0.0, 0.0, 0.0
    for k in range(means.shape[1]):
        weight, inverse = math.exp(log_weights[i, k] - largest), math.exp(-log_scales[i, k])
        a = at(first, levels, means[i, k], inverse, normal)
        b = at(middle, levels, means[i, k], inverse, normal)
        c = at(last, levels, means[i, k], inverse, normal)
        above, below = between(b, c), between(a, b)
        total, upper, lower = total + weight, upper + weight * above, lower + weight * below
        moves[k, 0], moves[k, 1], moves[k, 2], moves[k, 3] = weight, inverse, above, below
        moves[k, 4], moves[k, 5] = inverse * (b[2] - c[2]), inverse * (a[2] - b[2])
        moves[k, 6], moves[k, 7] = b[3] * b[2] - c[3] * c[2], a[3] * a[2] - b[3] * b[2]
        moves[k, 8], moves[k, 9], moves[k, 10] = a[3], b[3], c[3]
        moves[k, 11], moves[k, 12] = minuend_of(b, c), minuend_of(a, b)
    spread = FLOOR * total * half / whole
    return upper + spread, lower + spread


@compiled
def _slope(
    i: int, offs: Parameters, masses: tuple[float, float], share: float, moves: np.ndarray
) -> tuple[float, float]:
    """Return the sum of the first derivatives of u times the tolerances, and the error of u."""
    weight_off, mean_off, scale_off = offs
    upper, lower = 1.0 / masses[0], 1.0 / masses[1]
    off, error = 0.0, 0.0
    for k in range(len(moves)):
        weight = moves[k, 0]
        by_weight = weight * ((moves[k, 2] + share) * upper - (moves[k, 3] + share) * lower)
        by_mean = weight * (moves[k, 4] * upper - moves[k, 5] * lower)
        by_scale = weight * (moves[k, 6] * upper - moves[k, 7] * lower)
        off += abs(by_weight) * weight_off[i, k]
        off += abs(by_mean) * mean_off[i, k] + abs(by_scale) * scale_off[i, k]
        error += weight * (moves[k, 11] * upper + moves[k, 12] * lower)
    return off, ERROR * error


@compiled
def _half(
    weight: float,
    own: float,
    distance: float,
    offs: tuple[float, float, float],
    stretch: float,
    share: float,
    normal: bool,
) -> tuple[float, float, float, float]:
    """Return a component's contribution to bounds of the second derivative of a half's log mass.

    The first three values are the bounds of the second derivative from above and, negated, from
    below, and the least mass on the path, each times the component's weight; the last one bounds
    the change of the component's log mass.
    """
    by_weight, mean_off, scale_off = offs
    if distance - mean_off > (NORMAL_FAR if normal else LOGISTIC_FAR) * stretch:
        own, score, up, down = 0.0, 0.0, 0.0, 0.0
    else:
        score, up, down = path_bounds(distance, mean_off, scale_off, stretch, normal)
    growth = by_weight + score
    # 1 / (1 - growth) is at most this where growth is at most LARGEST_GROWTH.
    most, both = weight * (1.0 + 2.0 * growth), score + by_weight
    rise = most * (own * (both * both + up) + share * by_weight * by_weight)
    return rise, most * own * down, weight * (1.0 - growth) * (own + share), growth


@compiled
def _rest(
    i: int, offs: Parameters, low: int, sizes: Sizes, share: float, moves: np.ndarray
) -> float:
    """Return an upper bound of half the second derivative of u on a path, which may be infinite."""
    half, _, levels, normal = sizes
    up_rise, up_fall, up_mass, low_rise, low_fall, low_mass = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    middle, last = low + half, low + 2 * half
    for k in range(len(moves)):
        scale_off = offs[2][i, k]
        if not scale_off <= LARGEST_GROWTH:
            return math.inf
        own = (offs[0][i, k], offs[1][i, k] * moves[k, 1], scale_off)
        stretch = 1.0 + 2.0 * scale_off  # at least exp(scale_off)
        distance = distance_of(middle, last, moves[k, 9], moves[k, 10], levels)
        found = _half(moves[k, 0], moves[k, 2], distance, own, stretch, share, normal)
        up_rise, up_fall, up_mass = up_rise + found[0], up_fall + found[1], up_mass + found[2]
        distance = distance_of(low, middle, moves[k, 8], moves[k, 9], levels)
        other = _half(moves[k, 0], moves[k, 3], distance, own, stretch, share, normal)
        low_rise, low_fall, low_mass = low_rise + other[0], low_fall + other[1], low_mass + other[2]
        if not max(found[3], other[3]) <= LARGEST_GROWTH:
            return math.inf
    rise, fall = up_rise / up_mass, up_fall / up_mass
    return 0.5 * max(rise + low_fall / low_mass, fall + low_rise / low_mass)


@compiled
def _extreme_odds(
    i: int, arrays: Parameters, offs: Parameters, low: int, sizes: Sizes, share: float
) -> tuple[float, float]:
    """Return the least and the largest u, from the extremes of the cumulative function."""
    log_weights, means, log_scales = arrays
    weight_off, mean_off, scale_off = offs
    half, _, levels, normal = sizes
    largest = log_weights[i].max()
    masses = np.zeros(4)  # least and largest mass of the upper half, then of the lower half
    for k in range(means.shape[1]):
        inverse = math.exp(-log_scales[i, k])
        mean, off, stretch = means[i, k], mean_off[i, k], stretch_of(scale_off[i, k])
        a = extremes(low, levels, mean, inverse, off, stretch, normal)
        b = extremes(low + half, levels, mean, inverse, off, stretch, normal)
        c = extremes(low + 2 * half, levels, mean, inverse, off, stretch, normal)
        upper = mass_range(b[0], b[1], c[0], c[1])
        lower = mass_range(a[0], a[1], b[0], b[1])
        few = math.exp(log_weights[i, k] - largest - weight_off[i, k])
        many = math.exp(log_weights[i, k] - largest + weight_off[i, k])
        masses[0] += few * (upper[0] + share)
        masses[1] += many * (upper[1] + share)
        masses[2] += few * (lower[0] + share)
        masses[3] += many * (lower[1] + share)
    return math.log(masses[0] / masses[3]), math.log(masses[1] / masses[2])


@entry
def split(arrays: Parameters, low: np.ndarray, sizes: Sizes, t: np.ndarray) -> None:
    """Write the odds of all elements to `t`; `low` are first levels of intervals, int64."""
    moves = np.empty((arrays[1].shape[1], COLUMNS))
    for i in range(len(low)):
        upper, lower = _masses(i, arrays, low[i], sizes, moves)
        t[i] = warp_odds(math.log(upper / lower))


@functools.partial(entry, parallel=True)
def split_bounded(
    arrays: Parameters,
    offs: Parameters,
    low: np.ndarray,
    sizes: Sizes,
    t: np.ndarray,
    margin: np.ndarray,
) -> None:
    """Write the odds to `t` as `split` does, and their largest errors for `offs` to `margin`."""
    half, whole = sizes[0], sizes[1]
    share = FLOOR * half / whole
    for i in numba.prange(len(low)):
        moves = np.empty((arrays[1].shape[1], COLUMNS))
        masses = _masses(i, arrays, low[i], sizes, moves)
        u = math.log(masses[0] / masses[1])
        off, error = _slope(i, offs, masses, share, moves)
        rest = _rest(i, offs, low[i], sizes, share, moves)
        least, most = u - off - rest, u + off + rest
        if not rest <= SMALL + SMALL_SHARE * off:
            extremes = _extreme_odds(i, arrays, offs, low[i], sizes, share)
            least, most = max(least, extremes[0]), min(most, extremes[1])
        t[i] = warp_odds(u)
        margin[i] = reach_of(u, least - error, most + error) + ROUNDING


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
            split(arrays, low, sizes, t)
        else:
            split_bounded(arrays, self.tolerances, low, sizes, t, margin)
        return Split(t, margin)

    def condition_on_levels(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log weights, but for a constant, of logistics given levels; and tolerances."""
        means, log_scales, num_levels = self.means, self.log_scales, self.levels
        zeros = np.zeros_like(means)
        weight_off, mean_off, scale_off = self.tolerances or (zeros, zeros, zeros)
        weights, tolerance = self.log_weights.copy(), weight_off.copy()
        absorb(means, log_scales, mean_off, scale_off, levels, num_levels, weights, tolerance)
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


@entry
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


# Least scale of a component in files of format version 1, as a share of the number of levels.
LEAST_SCALE = 4e-5
# Least scale, in tolerances of the mean: with a narrower component, most bits would be too close to
# a rounding border, because the component's position is uncertain.
NARROWEST = 8.0
# The tolerance is relative to at least this share of an output's root mean square.
LEAST_SHARE = 0.03
# Outputs up to this one are masks, such as -1e9 or -inf, and say nothing about an output's size.
MASK = -1e4


def tolerances(outputs: np.ndarray, tolerance: float) -> np.ndarray:
    """Return how much outputs may differ on a different processor, float64 [elements, outputs]."""
    shown = outputs > MASK
    if shown.all():
        like = np.sqrt(np.mean(np.square(outputs), 0))
    else:
        squares = np.square(np.where(shown, outputs, 0.0))
        like = np.sqrt(squares.sum(0) / np.maximum(shown.sum(0), 1))
    size = np.where(np.isneginf(outputs), 0.0, np.abs(outputs))  # an infinity is exact
    return tolerance * (size + LEAST_SHARE * like)


def narrowest_of(tolerance: float) -> float:
    """Return the argument `narrowest` of `closed_form` stored in a file with this tolerance."""
    return NARROWEST * tolerance


def closed_form(
    distribution: Any, outputs: np.ndarray, off: np.ndarray | None, narrowest: float | None = None
) -> Mixture | Categorical:
    """Return the distributions of elements in closed form.

    `off` are the largest differences of the outputs on a different processor; None: no margins.
    `narrowest` is the lower limit of a component's scale, as a multiple of |mean| + LEAST_SHARE,
    where the levels cover [-1, 1]; 0: no limit; None: that of format version 1, LEAST_SCALE times
    the number of levels.
    """
    return FORMS[distribution.form](distribution, outputs, off, narrowest)


def _components(
    distribution: Any,
    outputs: np.ndarray,
    off: np.ndarray | None,
    narrowest: float | None,
    normal: bool,
) -> Mixture:
    half = 0.5 * (distribution.levels - 1)
    weights, means, scales = _sections(distribution, outputs)
    scales = np.maximum(scales, distribution.min_log_scale) + np.log(half)
    if narrowest is None:
        scales = np.maximum(scales, np.log(LEAST_SCALE * distribution.levels))
    elif narrowest:
        away = np.abs(means) + LEAST_SHARE
        scales = np.maximum(scales, np.log(narrowest * half * away))
    offs = None
    if off is not None:
        weights_off, means_off, scales_off = _sections(distribution, off)
        if narrowest:
            # The logarithm of the least scale moves with the mean, which may be infinite.
            with np.errstate(invalid="ignore"):
                moved = means_off / np.maximum(away - means_off, 1e-300)
            scales_off = np.maximum(scales_off, moved)
        offs = weights_off, half * means_off, scales_off
    return Mixture(distribution.levels, weights, half * (means + 1.0), scales, offs, normal)


def _sections(distribution: Any, array: np.ndarray) -> list[np.ndarray]:
    """Return logits, means and log scales, each float64 [elements, components]."""
    logits, means, _ = distribution.sections
    parts = np.split(array, [logits, logits + means], -1)
    # A single component has the whole weight.
    parts = parts if logits else [np.zeros_like(parts[1]), *parts[1:]]
    return [np.ascontiguousarray(part) for part in parts]


FORMS: dict[str, Callable[..., Mixture | Categorical]] = {
    "softmax": lambda _, outputs, off, narrowest: Categorical(
        outputs, np.zeros_like(outputs) if off is None else off
    ),
    "logistic": functools.partial(_components, normal=False),
    "normal": functools.partial(_components, normal=True),
}
