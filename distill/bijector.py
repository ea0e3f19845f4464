"""A flow as a bijector of TensorFlow Probability."""

import tensorflow as tf
import tensorflow_probability as tfp

from distill.flows import Flow


class FlowBijector(tfp.bijectors.Bijector):
    """An inverse autoregressive flow under one condition, over events [time].

    - Forward: `y_t = z_t s(z_<t) + mu(z_<t)`, one pass.
    - Inverse: one pass for every sample.
    - Forward log-determinant: `sum_t log s(z_<t)`.

    The student itself does not go through it: it wants location and scale, not their sum alone.
    """

    def __init__(self, flow: Flow, condition: tf.Tensor | None = None, name: str = "flow"):
        self._flow, self._condition = flow, condition
        super().__init__(
            forward_min_event_ndims=1, dtype=flow.outer_dtype, parameters=None, name=name
        )

    def _forward(self, x):
        return self._flow.forward(x, self._condition).output

    def _inverse(self, y):
        return self._flow.inverse(y, self._condition)

    def _forward_log_det_jacobian(self, x):
        return tf.reduce_sum(self._flow.forward(x, self._condition).log_scale, -1)

    def _inverse_log_det_jacobian(self, y):
        return -self._forward_log_det_jacobian(self._inverse(y))
