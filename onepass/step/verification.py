"""Compare a derived step with the network before it is used."""

from typing import Any

import numpy as np
import tensorflow as tf

from onepass.step.horizon import horizon_of
from onepass.step.program import LONG, StepProgram
from onepass.step.streams import NotCausalError, UnsupportedNetworkError
from onepass.step.tracing import is_temporal, random_arguments, spec_of_length


def verify(stepped: Any, program: StepProgram, specs: list[tf.TensorSpec]) -> None:
    """Raise NotCausalError or UnsupportedNetworkError unless steps give the network's outputs."""
    length, temporal = program.lengths[0], [is_temporal(spec) for spec in specs]
    arguments = random_arguments(
        [tf.TensorSpec([1, *spec_of_length(spec, length).shape[1:]], spec.dtype) for spec in specs]
    )
    program.check_operations(LONG)
    layer = program.looks_ahead(*arguments)
    if layer:
        raise NotCausalError(f"{layer} attends to later time steps")
    fixed = [x for x, has_time in zip(arguments, temporal, strict=True) if not has_time]
    timed = [x for x, has_time in zip(arguments, temporal, strict=True) if has_time]
    state, outputs, start = stepped.first_state(1, length, fixed), [], 0
    one = stepped.traced_step(state, *(argument[:, :1] for argument in timed))
    for rows in (1, 1, length - 3, 1):  # single time steps, after one step and after many
        given = [argument[:, start : start + rows] for argument in timed]
        many = rows > 1
        output, state = (
            program.step(given, state, horizon_of(state)) if many else one(state, *given)
        )
        outputs.append(output)
        start += rows
    error = _relative_difference(tf.concat(outputs, 1), program.whole(*arguments))
    if not error <= program.tolerance:
        raise UnsupportedNetworkError(
            f"the step derived from the graph differs from the network by {error:.2g} of its"
            " outputs' size; please report the network"
        )


def _relative_difference(outputs: tf.Tensor, whole: tf.Tensor) -> float:
    """Return the largest difference relative to the second's size; equal infinities or NaNs: 0."""
    found, expected = (tf.cast(x, tf.float64).numpy() for x in (outputs, whole))
    both = np.isfinite(found) & np.isfinite(expected)
    if not np.array_equal(found[~both], expected[~both], equal_nan=True):
        return np.inf
    size = 1.0 + np.abs(expected[both]).max(initial=0.0)
    return float(np.abs(found[both] - expected[both]).max(initial=0.0) / size)
