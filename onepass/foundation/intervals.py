"""Means and proportions with 95% confidence intervals, and their formatting."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

CONFIDENCE = 0.95
FEW = 10  # with fewer values, an interval relies on the assumption of a normal distribution
EXPLAINED = "95% intervals: Student's t for means, Wilson's for proportions"


@dataclasses.dataclass(frozen=True)
class Measure:
    """A mean or a proportion with its 95% interval and the number of values.

    Attributes:
      low, high: ends of the interval; None if the values do not determine one.
      undefined: number of NaN and infinite values that were left out.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    undefined: int = 0


def weighted_mean(values: np.ndarray, weights: np.ndarray | None = None) -> Measure:
    """Return a weighted mean with Student's t interval.

    The variance of the mean is `sum p_i^2 (x_i - mean)^2` for weights p that sum to 1, corrected
    for its bias; the degrees of freedom are `1 / sum p_i^2 - 1`. With equal weights this is the
    textbook interval.

    Args:
      values: independent values, float [n]. A value that is not finite makes the mean non-finite
        and leaves the interval undetermined.

    Source: Kish 1965, "Survey Sampling", section 8.2, for the effective number of values.
    """
    values = np.asarray(values, np.float64)
    share = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if not len(values) or not share.sum() > 0.0:
        return Measure(math.nan, None, None, len(values))
    share = share / share.sum()
    with np.errstate(invalid="ignore"):  # infinities of both signs have no mean
        mean = float(share @ values)
    squares = float(share @ share)
    freedom = 1.0 / squares - 1.0
    if not math.isfinite(mean) or freedom < 1e-9:
        return Measure(mean, None, None, len(values))
    expected = 1.0 + squares - 2.0 * float(np.sum(share**3)) / squares
    error = math.sqrt(float(share**2 @ (values - mean) ** 2) / expected)
    half = float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2.0)) * error
    return Measure(mean, mean - half, mean + half, len(values))


def finite_mean(values: Sequence[float]) -> Measure:
    """Return the mean of the finite values with its interval; `undefined` counts the others."""
    given = np.asarray(values, np.float64)
    finite = given[np.isfinite(given)]
    return dataclasses.replace(weighted_mean(finite), undefined=len(given) - len(finite))


def share_of(found: np.ndarray) -> Measure:
    """Return the share of true values, with Wilson's score interval (Wilson 1927)."""
    n = len(found)
    if not n:
        return Measure(math.nan, None, None, 0)
    share = float(np.mean(np.asarray(found, np.float64)))
    z = float(special.ndtri(0.5 + CONFIDENCE / 2.0))
    spread = z * math.sqrt(share * (1.0 - share) / n + z**2 / (4.0 * n**2))
    low, high = ((share + z**2 / (2.0 * n) + s) / (1.0 + z**2 / n) for s in (-spread, spread))
    return Measure(share, max(low, 0.0), min(high, 1.0), n)


def format_interval(measured: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> str:
    """Return the scaled interval of a stored `Measure` and its count: "0.1 to 0.3, n 12"."""
    low, high, n = measured["low"], measured["high"], measured.get("n")
    if n is not None and n < 1:
        parts = ["no value"]
    elif low is None or high is None:
        parts = ["no interval"]
    else:
        parts = [f"{scale * low:.{digits}f} to {scale * high:.{digits}f}"]
    if n:
        parts.append(f"n {n}" + (", few" if 1 < n < FEW else ""))
    if undefined := measured.get("undefined"):
        parts.append(f"{undefined} undefined")
    return ", ".join(parts)


def format_measure(
    measured: Mapping[str, Any], scale: float = 1.0, digits: int = 3, unit: str = ""
) -> str:
    """Return a stored `Measure` as "0.2 (95%: 0.1 to 0.3, n 12)"; `unit` follows the mean."""
    before = "" if measured["low"] is None else "95%: "
    mean = f"{scale * measured['mean']:.{digits}f}{unit}"
    return f"{mean} ({before}{format_interval(measured, scale, digits)})"
