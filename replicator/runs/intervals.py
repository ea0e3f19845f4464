"""Means with bootstrap confidence intervals (Efron and Tibshirani 1993, chapter 13)."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Measure:
    """A mean and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


def weighted_mean(values: np.ndarray, weights: np.ndarray, seed: int) -> Measure:
    """The weighted mean with its 95% interval from resampled values (percentile bootstrap)."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, len(values), (RESAMPLES, len(values)))
    means = (values * weights)[chosen].sum(1) / weights[chosen].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Measure(float(np.average(values, weights=weights)), float(low), float(high))


def finite_mean(values: Sequence[float], seed: int) -> Measure:
    """The mean of the finite values, with its interval; NaN where there are none."""
    finite = np.array([value for value in values if np.isfinite(value)])
    if not finite.size:
        return Measure(math.nan, math.nan, math.nan)
    return weighted_mean(finite, np.ones(finite.size), seed)
