"""A derived step is compared with the network before anybody trusts it."""

import numpy as np
import tensorflow as tf

from autoregressive.incremental.plan import Plan
from autoregressive.incremental.streams import UnsupportedNetworkError

# A row after a row, and after many.
PARTS = (1, 1, 21, 1)


def verify(plan: Plan, function, specs: list[tf.TensorSpec]) -> None:
    """Raise UnsupportedNetworkError unless the steps equal the call, on random numbers.

    Args:
      plan: of the function for the batch size of the specs.
      function: of tensors.
      specs: of its arguments, [batch, None, ...].
    """
    generator = np.random.default_rng(0)
    length = sum(PARTS)
    arguments = []
    for spec in specs:
        shape = [spec.shape[0], length, *spec.shape[2:]]
        draw = (
            generator.integers(0, 2, shape)
            if spec.dtype.is_integer
            else generator.normal(size=shape)
        )
        arguments.append(tf.constant(draw, spec.dtype))

    step = tf.function(plan.step, autograph=False)  # traced once for each number of rows

    @tf.function(autograph=False)
    def both():
        state, outputs, start = plan.initial_state(), [], 0
        for rows in PARTS:
            part = [argument[:, start : start + rows] for argument in arguments]
            output, state = step(part, state)
            outputs.append(output)
            start += rows
        return tf.concat(outputs, 1), function(*arguments)

    stepped, whole = both()
    size = 1.0 + tf.reduce_max(tf.abs(tf.cast(whole, tf.float64)))
    error = tf.reduce_max(tf.abs(tf.cast(stepped - whole, tf.float64))) / size
    if not float(error) <= plan.tolerance:
        raise UnsupportedNetworkError(
            f"the step derived from the graph differs from the network by {float(error):.2g} of"
            " its outputs' size; please report the network"
        )
