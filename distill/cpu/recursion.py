"""The compiled recursion from residual to wave on a CPU, see `residual.synthesise`."""

import numpy as np

from distill.residual import Prediction
from wavenet.samplers.numba import as_compiled
from wavenet.samplers.numba.kernels import entry


def wave(
    residual: np.ndarray, prediction: Prediction, tail: np.ndarray, row_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wave float32 [batch, time], and its last K samples; equal in any batch and chunks.

    The residual is in units of the gain; the tail has the K samples before it, oldest first. The
    last row of the prediction may be shorter.
    """
    coefficients = as_compiled(np.asarray(prediction.coefficients), np.float32)
    gain = np.exp(np.asarray(prediction.log_gain, np.float32))
    order, time = coefficients.shape[-1], residual.shape[1]
    sound = np.zeros([len(residual), order + time], np.float32)
    sound[:, :order] = tail
    _run(as_compiled(residual, np.float32), coefficients, gain, sound, row_samples)
    return sound[:, order:], sound[:, time:].copy()


@entry
def _run(residual, coefficients, gain, sound, row_samples):
    order = coefficients.shape[2]
    for one in range(len(residual)):
        for t in range(residual.shape[1]):
            row = t // row_samples
            total = gain[one, row] * residual[one, t]
            for k in range(order):
                total += coefficients[one, row, k] * sound[one, order + t - 1 - k]
            sound[one, order + t] = total
