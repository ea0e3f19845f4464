"""A bounded representation of odds, which is rounded before coding.

The number t clearly distinguishes likely bits from unlikely ones, but hardly distinguishes unlikely
bits from very unlikely ones:

    t = sign(u) 3 (1 - exp(-|u| / 3)),        u = log(upper half / lower half)
"""

import math

from onepass.compression.components import compiled

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
