"""Odds of mixtures, and rigorous bounds of how much tolerances change them.

With U and L the masses of the upper and lower half, u = log(U / L) changes by at most the sum of
its first derivatives times the tolerances, plus half its largest second derivative on a straight
path from the initial parameters to any others within the tolerances. The second derivative of the
log of a mixture's mass lies between the average of the second derivatives of its components' log
densities and that average plus the variance of their scores; the averages are over the interval
(`components`), and the components' shares on the path are bounded by their initial shares. Where
the tolerances are too wide for a small bound, the masses of each half are also bounded by the
extremes of the cumulative function.
"""

import math

import numba
import numpy as np

from onepass.compression import components
from onepass.compression.components import ERROR, LARGEST_GROWTH, compiled, parallel
from onepass.compression.odds import FLOOR, ROUNDING, reach_of, warp_odds

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

    Args:
      moves: output [components, COLUMNS]: weight, inverse scale, masses of the halves, derivatives
        of the masses by mean and log scale, z of the three edges, and `subtracted` for each half.
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
        a = components.at(first, levels, means[i, k], inverse, normal)
        b = components.at(middle, levels, means[i, k], inverse, normal)
        c = components.at(last, levels, means[i, k], inverse, normal)
        above, below = components.between(b, c), components.between(a, b)
        total, upper, lower = total + weight, upper + weight * above, lower + weight * below
        moves[k, 0], moves[k, 1], moves[k, 2], moves[k, 3] = weight, inverse, above, below
        moves[k, 4], moves[k, 5] = inverse * (b[2] - c[2]), inverse * (a[2] - b[2])
        moves[k, 6], moves[k, 7] = b[3] * b[2] - c[3] * c[2], a[3] * a[2] - b[3] * b[2]
        moves[k, 8], moves[k, 9], moves[k, 10] = a[3], b[3], c[3]
        moves[k, 11], moves[k, 12] = components.minuend_of(b, c), components.minuend_of(a, b)
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
    if components.is_far(distance, mean_off, stretch, normal):
        own, score, up, down = 0.0, 0.0, 0.0, 0.0
    else:
        score, up, down = components.path_bounds(distance, mean_off, scale_off, stretch, normal)
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
        distance = components.distance_of(middle, last, moves[k, 9], moves[k, 10], levels)
        found = _half(moves[k, 0], moves[k, 2], distance, own, stretch, share, normal)
        up_rise, up_fall, up_mass = up_rise + found[0], up_fall + found[1], up_mass + found[2]
        distance = components.distance_of(low, middle, moves[k, 8], moves[k, 9], levels)
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
        mean, off, stretch = means[i, k], mean_off[i, k], components.stretch_of(scale_off[i, k])
        a = components.extremes(low, levels, mean, inverse, off, stretch, normal)
        b = components.extremes(low + half, levels, mean, inverse, off, stretch, normal)
        c = components.extremes(low + 2 * half, levels, mean, inverse, off, stretch, normal)
        upper = components.mass_range(b[0], b[1], c[0], c[1])
        lower = components.mass_range(a[0], a[1], b[0], b[1])
        few = math.exp(log_weights[i, k] - largest - weight_off[i, k])
        many = math.exp(log_weights[i, k] - largest + weight_off[i, k])
        masses[0] += few * (upper[0] + share)
        masses[1] += many * (upper[1] + share)
        masses[2] += few * (lower[0] + share)
        masses[3] += many * (lower[1] + share)
    return math.log(masses[0] / masses[3]), math.log(masses[1] / masses[2])


@compiled
def split(arrays: Parameters, low: np.ndarray, sizes: Sizes, t: np.ndarray) -> None:
    """Write the odds of all elements to `t`.

    `arrays` are log weights, means and log scales, each float64 [elements, components], and `low`
    the first level of each interval, int64 [elements]. `sizes` are the numbers of levels in a half,
    of coded levels and of all levels, and whether components are normal.
    """
    moves = np.empty((arrays[1].shape[1], COLUMNS))
    for i in range(len(low)):
        upper, lower = _masses(i, arrays, low[i], sizes, moves)
        t[i] = warp_odds(math.log(upper / lower))


@parallel
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
