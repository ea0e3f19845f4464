"""Numba code that draws a level from a network's outputs, one row at a time.

It computes in float32 the same formulas as onepass/likelihoods/*.py. A draw can differ if rounding
moves a value across the border between two levels or components.
"""

import math

import numpy as np

from onepass.machine.kernels import LANES, compiled, exponential
from wavenet.samplers.numba.weights import CATEGORICAL, GAUSSIAN, MIXTURE


@compiled
def add_prediction(
    plan: np.record, outputs: np.ndarray, history: np.ndarray, prediction: np.ndarray
) -> None:
    """Replace each mean by the linear prediction plus the mean times its scale."""
    first, count = (plan.components, plan.components) if plan.likelihood == MIXTURE else (0, 1)
    for row in range(plan.rows):
        total = np.float32(0.0)
        for past in range(plan.front_width):
            total += history[row, past] * prediction[past]
        for mean in range(first, first + count):
            outputs[row, mean] = total + outputs[row, mean] * math.exp(outputs[row, mean + count])


@compiled
def _choose(
    plan: np.record,
    outputs: np.ndarray,
    row: int,
    count: int,
    chances: np.ndarray,
    uniform: np.float32,
    temperature: np.float32,
) -> int:
    """Return the smallest k with `uniform < cumsum(softmax(logits / T))[k]`; at T = 0, the mode."""
    largest, best = outputs[row, 0], 0
    for k in range(1, count):
        if outputs[row, k] > largest:
            largest, best = outputs[row, k], k
    if temperature <= 0:
        return best
    inverse = np.float32(1.0) / max(temperature, np.float32(1e-6))
    for k in range(count):
        chances[k] = (outputs[row, k] - largest) * inverse
    exponential(plan.chances, (count + LANES - 1) // LANES)
    total = np.float32(0.0)
    for k in range(count):
        total += chances[k]
    threshold, passed = uniform * total, np.float32(0.0)
    for k in range(count - 1):
        passed += chances[k]
        if threshold < passed:
            return k
    return count - 1


@compiled
def _nearest(value: np.float32, levels: int) -> int:
    """Return the level whose bin contains `value`, or 0 for NaN."""
    position = np.rint((value + np.float32(1.0)) * np.float32(0.5 * (levels - 1)))
    if not position > 0:
        return 0
    return int(min(position, np.float32(levels - 1)))


@compiled
def draw(
    plan: np.record,
    outputs: np.ndarray,
    row: int,
    chances: np.ndarray,
    noise: np.ndarray,
    step: int,
    temperature: np.float32,
) -> int:
    """Draw a level from a row of the outputs, with the noise [rows, time, channels] at `step`."""
    first = noise[row, step, 0]
    if plan.likelihood == CATEGORICAL:
        return _choose(plan, outputs, row, plan.levels, chances, first, temperature)
    if plan.likelihood == GAUSSIAN:
        mean, log_scale, standard = outputs[row, 0], outputs[row, 1], first
    else:
        k = _choose(plan, outputs, row, plan.components, chances, first, temperature)
        mean = outputs[row, plan.components + k]
        log_scale, standard = outputs[row, 2 * plan.components + k], noise[row, step, 1]
    spread = math.exp(max(log_scale, plan.min_log_scale)) * temperature
    return _nearest(mean + spread * standard, plan.levels)


@compiled
def value_of(level: int, levels: int) -> np.float32:
    """Return the amplitude of a level, in [-1, 1]."""
    centred = np.float32(2.0) * np.float32(level) - np.float32(levels - 1.0)
    return centred * np.float32(1.0 / (levels - 1))


@compiled
def remember(
    plan: np.record, history: np.ndarray, latest: np.ndarray, row: int, level: int
) -> None:
    """Append `level` to the past samples of a batch row."""
    latest[row] = level
    for past in range(plan.front_width - 1):
        history[row, past] = history[row, past + 1]
    history[row, plan.front_width - 1] = value_of(level, plan.levels)
