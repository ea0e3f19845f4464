"""The representation of odds that rounding and bounds share.

Odds are represented by a number t that separates likely from unlikely bits, but hardly separates
degrees of very unlikely ones:

    t = sign(u) 3 (1 - exp(-|u| / 3)),        u = log(upper half / lower half)
"""

import math

from compression.components import compiled

REACH = 3.0  # |t| is less than this
FLOOR = 1e-5  # share of a distribution that is spread over all levels, so that each has a code
ROUNDING = 1e-9  # error of float64 arithmetic, in t
LARGEST_LOG_ODDS = 14.0


@compiled
def warped(u: float) -> float:
    """Return t, given u."""
    u = min(max(u, -LARGEST_LOG_ODDS), LARGEST_LOG_ODDS)
    return math.copysign(REACH * (1.0 - math.exp(-abs(u) / REACH)), u)


@compiled
def reach_of(u: float, least: float, most: float) -> float:
    """Return how far t can be from that of u if the log-odds are between `least` and `most`."""
    t = warped(u)
    return max(warped(max(most, u)) - t, t - warped(min(least, u)))
