"""Linear prediction on CPUs: Levinson's recursion, and the recursion from residual to wave.

TensorFlow's loop takes half of the time that a student spends outside its flows.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, DTypeLike

from distill.residual import Prediction
from onepass.machine.compiler import compiled, entry

_FRAMES = 32  # solved together, in vectors; their arrays fit into a core's first-level cache
_SUMS = 4  # TensorFlow adds the terms of a step in this many sums, in turn


def as_compiled(array: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Return the array as contiguous and writeable, with the given type."""
    # Numba treats a read-only array as a different type, and would compile everything again.
    return np.require(np.asarray(array), dtype, ["C_CONTIGUOUS", "WRITEABLE"])


def levinson(correlation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what `wavenet.linear_prediction.levinson` does for float64, without gradients."""
    found = tf.numpy_function(solve_rows, [correlation], [tf.float64, tf.float64], stateful=False)
    found[0].set_shape([*correlation.shape[:-1], correlation.shape[-1] - 1])
    found[1].set_shape(correlation.shape[:-1])
    return found[0], found[1]


def solve_rows(correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `levinson` for an array float64 [..., K + 1]."""
    rows = np.ascontiguousarray(correlation).reshape(-1, correlation.shape[-1])
    coefficients, error = np.zeros([len(rows), rows.shape[1] - 1]), np.zeros(len(rows))
    _solve(rows, coefficients, error)
    shape = correlation.shape[:-1]
    return coefficients.reshape([*shape, -1]), error.reshape(shape)


@entry
def _solve(correlation: np.ndarray, coefficients: np.ndarray, error: np.ndarray) -> None:
    order = coefficients.shape[1]
    lags, found = np.zeros((order + 1, _FRAMES)), np.zeros((order, _FRAMES))
    sums, reflection, left = np.zeros((_SUMS, _FRAMES)), np.zeros(_FRAMES), np.zeros(_FRAMES)
    for first in range(0, len(correlation), _FRAMES):
        count = min(_FRAMES, len(correlation) - first)
        lags[0] = 1.0  # unused frames get the correlation of white noise
        lags[1:] = 0.0
        for frame in range(count):
            for lag in range(order + 1):
                lags[lag, frame] = correlation[first + frame, lag]
        left[:] = lags[0]
        for i in range(order):
            sums[:] = 0.0
            for j in range(i):
                for frame in range(_FRAMES):
                    sums[j % _SUMS, frame] += found[j, frame] * lags[i - j, frame]
            for frame in range(_FRAMES):
                explained = sums[0, frame] + sums[1, frame] + sums[2, frame] + sums[3, frame]
                share = (lags[i + 1, frame] - explained) / left[frame]
                share = max(min(share, 0.9999), -0.9999)
                reflection[frame] = share
                left[frame] *= 1.0 - share * share
            for j in range((i + 1) // 2):
                for frame in range(_FRAMES):
                    one, other = found[j, frame], found[i - 1 - j, frame]
                    found[j, frame] = one - reflection[frame] * other
                    found[i - 1 - j, frame] = other - reflection[frame] * one
            found[i] = reflection
        for frame in range(count):
            for k in range(order):
                coefficients[first + frame, k] = found[k, frame]
            error[first + frame] = left[frame]


def wave(
    residual: np.ndarray, prediction: Prediction, tail: np.ndarray, row_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wave, float32 [batch, time], and its last K samples.

    They are equal for chunks of any size. The residual is in units of the gain; the prediction has
    coefficients and a gain per row of samples; `tail` are the K samples before, [batch, K].
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

    A finished sample's contributions are added at once, with vector instructions; in a dot product
    per sample, each addition would wait for the one before it. Later values have no meaning.
    """
    for t in range(order):
        _add(now[order : order + t + 1], coefficients[order - t - 1 :], now[t])
    for t in range(order, order + count):
        _add(now[t + 1 : t + 1 + order], coefficients, now[t])


@compiled
def _add(target: np.ndarray, weights: np.ndarray, factor: float) -> None:
    for k in range(len(target)):
        target[k] += weights[k] * factor
