"""Masses of logistic and normal components between levels, and how much tolerances change them.

As a component's mean and log scale move on a straight path within their tolerances, its log mass
between two edges has bounded first and second derivatives. With z = (x - mean) / scale, the score
of a logistic in z is at most 1 in absolute value and changes by at most 1/2 per unit of z; the
score of a normal is -z and changes by 1 per unit of z. The mean of |z| over an interval is at most
the interval's distance from the component's mean plus the mean of |z| of the standard component:
both have an increasing hazard rate, so |z| minus that distance is stochastically smaller.
"""

import math

import numba
import numpy as np

compiled = numba.njit(nogil=True, error_model="numpy", cache=True)
parallel = numba.njit(nogil=True, error_model="numpy", cache=True, parallel=True)

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
def is_far(distance: float, mean_off: float, stretch: float, normal: bool) -> bool:
    """Return whether an interval's mass surely stays below 1e-30 on a path (see `path_bounds`)."""
    return distance - mean_off > (NORMAL_FAR if normal else LOGISTIC_FAR) * stretch


@compiled
def _log_below(z: float) -> float:
    return min(z, 0.0) - math.log1p(math.exp(-abs(z)))


@compiled
def stretch_of(scale_off: float) -> float:
    """Return an upper bound of exp(scale_off)."""
    return 1.0 / (1.0 - scale_off) if scale_off < LARGEST_GROWTH else math.exp(scale_off) * 1.0001


@compiled
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
