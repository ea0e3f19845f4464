"""Distributions over levels in closed form: softmaxes, and mixtures of logistics or normals.

A distribution names its form in the attribute `form`. Coding a level then takes the masses of only
a few intervals, however many levels there are.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from onepass.compression.splits import Categorical, Mixture

# Least scale of a component in files of format version 1, as a share of the number of levels.
LEAST_SCALE = 4e-5
# Least scale, in tolerances of the mean: with a narrower component, most bits would be too close to
# a rounding border, because the component's position is uncertain.
NARROWEST = 8.0
# The tolerance is relative to at least this share of an output's root mean square.
LEAST_SHARE = 0.03
# Outputs up to this one are masks, such as -1e9 or -inf, and say nothing about an output's size.
MASK = -1e4


def form_of(distribution: Any) -> str | None:
    """Return the name of a distribution's closed form, a key of FORMS, or None if it has none."""
    form: str | None = getattr(distribution, "form", None)
    return form


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
    distribution: Any,
    outputs: np.ndarray,
    off: np.ndarray | None,
    narrowest: float | None = None,
) -> Mixture | Categorical:
    """Return the distributions of elements in closed form.

    `off` are the largest differences of the outputs on a different processor; None: no margins.
    `narrowest` is the lower limit of a component's scale, as a multiple of |mean| + LEAST_SHARE,
    where the levels cover [-1, 1]; 0: no limit; None: that of format version 1, LEAST_SCALE times
    the number of levels.
    """
    return FORMS[distribution.form](distribution, outputs, off, narrowest)


def _softmax(
    distribution: Any, outputs: np.ndarray, off: np.ndarray | None, narrowest: float | None
) -> Categorical:
    return Categorical(outputs, np.zeros_like(outputs) if off is None else off)


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
    "softmax": _softmax,
    "logistic": functools.partial(_components, normal=False),
    "normal": functools.partial(_components, normal=True),
}
