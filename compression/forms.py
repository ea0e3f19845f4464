"""Distributions with a closed form: softmaxes, and mixtures of logistics or normals, over levels.

A distribution names its form by the attribute `form`, and the code of a level then costs a few
masses between levels, however many levels there are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from compression.splits import Categorical, Mixture

# Of the number of levels: least scale of a component. Outputs that are known to 1e-5 of the whole
# range cannot place a narrower one.
LEAST_SCALE = 4e-5
# Of the root mean square of an output: the tolerance applies to at least this.
LEAST_SHARE = 0.03


def form_of(distribution: Any) -> str | None:
    """Return the name in FORMS of a distribution of `likelihoods`, or None."""
    form: str | None = getattr(distribution, "form", None)
    return form


def tolerances(outputs: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the largest differences of outputs from another processor's, [elements, outputs].

    Args:
      outputs: of a network, float64 [elements, outputs].
      tolerance: relative.
    """
    like = np.sqrt(np.mean(np.square(outputs), 0))
    return tolerance * (np.abs(outputs) + LEAST_SHARE * like)


def closed(distribution: Any, outputs: np.ndarray, off: np.ndarray) -> Mixture | Categorical:
    """Return the distributions of elements in their closed form.

    Args:
      distribution: with a `form` in FORMS.
      outputs: of a network, float64 [elements, num_parameters].
      off: their largest differences from another processor's, of the same shape.
    """
    return FORMS[distribution.form](distribution, outputs, off)


def _softmax(distribution: Any, outputs: np.ndarray, off: np.ndarray) -> Categorical:
    return Categorical(outputs, off)


def _logistics(distribution: Any, outputs: np.ndarray, off: np.ndarray) -> Mixture:
    return _components(distribution, outputs, off, normal=False)


def _normals(distribution: Any, outputs: np.ndarray, off: np.ndarray) -> Mixture:
    return _components(distribution, outputs, off, normal=True)


def _components(distribution: Any, outputs: np.ndarray, off: np.ndarray, normal: bool) -> Mixture:
    half = 0.5 * (distribution.levels - 1)
    narrowest = np.log(LEAST_SCALE * distribution.levels)
    least = max(distribution.min_log_scale + np.log(half), narrowest)
    weights, means, scales = _sections(distribution, outputs)
    weights_off, means_off, scales_off = _sections(distribution, off)
    return Mixture(
        distribution.levels,
        weights,
        half * (means + 1.0),
        np.maximum(scales + np.log(half), least),
        (weights_off, half * means_off, scales_off),
        normal,
    )


def _sections(distribution: Any, array: np.ndarray) -> list[np.ndarray]:
    """Return logits, means and log-scales, float64 [elements, components] each."""
    logits, means, _ = distribution.sections
    parts = np.split(array, [logits, logits + means], -1)
    # A component alone has the whole weight.
    parts = parts if logits else [np.zeros_like(parts[1]), *parts[1:]]
    return [np.ascontiguousarray(part) for part in parts]


FORMS: dict[str, Callable[[Any, np.ndarray, np.ndarray], Mixture | Categorical]] = {
    "softmax": _softmax,
    "logistic": _logistics,
    "normal": _normals,
}
