"""Linear prediction of speech from only its past: nothing is trained or transmitted.

Levinson's recursion computes the best predictor from the autocorrelation of a window of the samples
before a block. A decoder knows the same samples and computes the same predictor, as in
backward-adaptive coders (Chen et al. 1992, "A low-delay CELP coder for the CCITT 16 kb/s speech
coding standard").
"""

import math

import numpy as np
import tensorflow as tf

from wavenet.linear_prediction import levinson

RISE = 0.9  # share of a window over which it rises; it falls over the rest, up to the block
WHITE_NOISE = 1e-7  # noise power relative to the signal's, -70 dB, which float64 resolves
FLOOR = 0.3 / 32768  # RMS, about a third of a 16-bit step


class PastPrediction:
    """Linear predictors of order K, in float64, one for each window of the newest samples."""

    def __init__(self, order: int, windows: tuple[int, ...]) -> None:
        self.order, self.windows = order, windows
        self._weights = [weights_of(window) for window in windows]

    def __call__(self, past: tf.Tensor) -> tf.Tensor:
        """Return K coefficients and the logs of the RMS of the residual and of the samples.

        The result is float64 [..., windows, K + 2], without gradient; `past`, float64 [...,
        samples], oldest first, must fill the longest window.
        """
        power = tf.stack([self._power(past, weights) for weights in self._weights], -2)
        noise = WHITE_NOISE * power[..., :1] + FLOOR**2
        power = tf.stop_gradient(tf.concat([power[..., :1] + noise, power[..., 1:]], -1))
        coefficients, error = levinson(power)
        logs = 0.5 * tf.math.log(tf.stack([error, power[..., 0]], -1))
        return tf.concat([coefficients, logs], -1)

    def _power(self, past: tf.Tensor, weights: np.ndarray) -> tf.Tensor:
        """Return the autocorrelation of the windowed samples at lags 0 to K, [..., K + 1]."""
        size = fast_size(len(weights) + self.order)
        spectrum = tf.signal.rfft(past[..., -len(weights) :] * weights, [size])
        energy = tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))
        lags = tf.signal.irfft(tf.complex(energy, tf.zeros_like(energy)), [size])
        return lags[..., : self.order + 1]


def weights_of(window: int) -> np.ndarray:
    """Return a window whose squares sum to one, float64 [window]: a slow rise and a quick fall."""
    places, rise = np.arange(window) + 0.5, round(RISE * window)
    falling = np.cos(0.5 * np.pi * (places - rise) / (window - rise))
    weights = np.where(places < rise, np.sin(0.5 * np.pi * places / rise), falling)
    return weights / np.sqrt(np.square(weights).sum())


def fast_size(least: int) -> int:
    """Return the smallest 2^n, 9/8 2^n, 5/4 2^n or 3/2 2^n that is at least `least` (and 4)."""
    whole = 2 ** (math.ceil(math.log2(max(least, 8))) - 1)
    return next(
        size
        for size in (whole, whole * 9 // 8, whole * 5 // 4, whole * 3 // 2, 2 * whole)
        if size >= least
    )
