"""Element-wise affine transformations of noise, as in autoregressive flows."""

from typing import NamedTuple

import tensorflow as tf


class FlowOutput(NamedTuple):
    """Tensors float32 [batch, elements...] with output = noise * exp(log_scale) + location."""

    output: tf.Tensor
    location: tf.Tensor
    log_scale: tf.Tensor


def compose(steps: list[FlowOutput]) -> FlowOutput:
    """Compose consecutive flows, with locations mu_i and scales s_i, into one flow.

    mu_tot = sum_i mu_i prod_{j>i} s_j,   log s_tot = sum_i log s_i: van den Oord et al. 2017,
    "Parallel WaveNet" (arXiv 1711.10433).
    """
    location, log_scale = steps[0].location, steps[0].log_scale
    for step in steps[1:]:
        location = location * tf.exp(step.log_scale) + step.location
        log_scale = log_scale + step.log_scale
    return FlowOutput(steps[-1].output, location, log_scale)
