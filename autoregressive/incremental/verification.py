"""Compare a derived step with the network before it is used."""

from typing import Any

import tensorflow as tf

from autoregressive.incremental.horizon import horizon_of
from autoregressive.incremental.program import LONG, StepProgram
from autoregressive.incremental.streams import NotCausalError, UnsupportedNetworkError
from autoregressive.incremental.tracing import is_temporal, random_arguments, sized


def verify(stepped: Any, program: StepProgram, specs: list[tf.TensorSpec]) -> None:
    """Raise an error unless steps give the same outputs as one call of the network.

    Args:
      stepped: the derived step to verify.
      program: the program that `stepped` runs for batch size 1.
      specs: specs of the network's arguments.

    Raises:
      NotCausalError: a layer attends to later time steps.
      UnsupportedNetworkError: the outputs of the steps differ from the outputs of the call, or the
        network has different operations for a long input.
    """
    length, temporal = program.lengths[0], [is_temporal(spec) for spec in specs]
    arguments = random_arguments(
        [tf.TensorSpec([1, *sized(spec, length).shape[1:]], spec.dtype) for spec in specs]
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
    whole = tf.cast(program.whole(*arguments), tf.float64)
    error = tf.reduce_max(tf.abs(tf.cast(tf.concat(outputs, 1), tf.float64) - whole))
    error = float(error / (1.0 + tf.reduce_max(tf.abs(whole))))
    if not error <= program.tolerance:
        raise UnsupportedNetworkError(
            f"the step derived from the graph differs from the network by {error:.2g} of its"
            " outputs' size; please report the network"
        )
