"""The recursion from residual to wave (`residual.synthesise`), one sample at a time, for CPUs."""

import numpy as np

from distill.residual import Prediction
from onepass.machine.kernels import compiled, entry
from wavenet.samplers.numba import as_compiled


def wave(
    residual: np.ndarray, prediction: Prediction, tail: np.ndarray, row_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wave, float32 [batch, time], and its last K samples.

    The samples are the same for chunks of any size.

    Args:
      residual: errors of the linear prediction in units of the gain, float32 [batch, time].
      prediction: coefficients and gain of each row of samples; the last row may be shorter.
      tail: the preceding K samples of the wave, oldest first, [batch, K].
    """
    coefficients = as_compiled(np.asarray(prediction.coefficients), np.float32)
    gain = np.exp(np.asarray(prediction.log_gain, np.float32))
    order, time = coefficients.shape[-1], residual.shape[1]
    sound = np.zeros([len(residual), order + time], np.float32)
    sound[:, :order] = tail
    _run(as_compiled(residual, np.float32), coefficients, gain, sound, row_samples)
    return sound[:, order:], sound[:, time:].copy()


@entry
def _run(
    residual: np.ndarray,
    coefficients: np.ndarray,
    gain: np.ndarray,
    sound: np.ndarray,
    row_samples: int,
) -> None:
    order = coefficients.shape[2]
    now = np.zeros(2 * order + row_samples, np.float32)
    for one in range(len(residual)):
        for start in range(0, residual.shape[1], row_samples):
            row, stop = start // row_samples, min(start + row_samples, residual.shape[1])
            now[:order] = sound[one, start : start + order]
            now[order : order + stop - start] = gain[one, row] * residual[one, start:stop]
            _filter(coefficients[one, row], now, order, stop - start)
            sound[one, order + start : order + stop] = now[order : order + stop - start]


@compiled
def _filter(coefficients: np.ndarray, now: np.ndarray, order: int, count: int) -> None:
    """Add the prediction to each of the `count` samples of `now` after the first `order` samples.

    The contributions of a finished sample to later samples are added at once, with vector
    instructions; in a dot product per sample, each addition would wait for the one before it. The
    values of `now` after these samples have no meaning.
    """
    for t in range(order):
        _add(now[order : order + t + 1], coefficients[order - t - 1 :], now[t])
    for t in range(order, order + count):
        _add(now[t + 1 : t + 1 + order], coefficients, now[t])


@compiled
def _add(target: np.ndarray, weights: np.ndarray, factor: float) -> None:
    for k in range(len(target)):
        target[k] += weights[k] * factor
