"""Linear prediction of speech computed from mel frames, without training or side information.

A mel frame determines the spectral envelope, which determines the best linear predictor (Valin and
Skoglund 2019, LPCNet, arXiv 1810.11846; LP-WaveNet, 1811.11913). The computation

    magnitudes over frequency -> squares -> autocorrelation r_0 .. r_K -> Levinson recursion

yields the coefficients a_1 .. a_K and the gain g of the residual e in

    x_t = sum_k a_k x_(t-k) + g e_t
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import UserError
from wavenet.features import MelConvention, mel_filters

LAG_WINDOW_HZ = 40.0  # standard deviation of the Gaussian that smooths the power spectrum
WHITE_NOISE = 1e-4  # noise power relative to the signal's, -40 dB; limits the spectrum's valleys
FLOOR = 1e-4  # RMS that is assumed for digital silence, about three 16-bit steps
HANN_POWER = 0.375  # mean square of a Hann window

Solver = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class MelPrediction:
    """Linear prediction from mel frames.

    If `exact`, sums and solutions are in float64: where loud and silent bands are adjacent,
    rounding errors in float32, and even more in TensorFloat32, can change the predictor.
    """

    def __init__(self, mel: MelConvention, order: int, exact: bool = True) -> None:
        if order < 1:
            raise UserError(f"`order` must be at least 1, got {order}.")
        self.order, self._mel, self._exact = order, mel, exact
        self._magnitudes = band_to_bin(mel)
        self._lags = bin_to_lag(mel, order)

    def __call__(self, frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return coefficients [..., order], log gain [...] of the residual, and log level [...].

        The level is the root mean square of the waveform that the frame describes. All results have
        the frames' type, and are finite if the frames, from `above_silence`, are.
        """
        natural = 1.0 if self._mel.log == "natural" else math.log(10.0)
        # Bounds that no recording in [-1, 1] can exceed; they keep the squares finite.
        frames = tf.clip_by_value(frames, -0.5, 1.5)
        bands = tf.exp(self._mel.silence * natural * (1.0 - frames))
        # The power spectrum of a frame, whose Fourier transform is the autocorrelation.
        power = tf.square(tf.matmul(bands, tf.cast(self._magnitudes, bands.dtype)))
        summed = tf.float64 if self._exact else power.dtype
        correlation = tf.matmul(tf.cast(power, summed), tf.cast(self._lags, summed))
        noise = WHITE_NOISE * correlation[..., :1] + FLOOR**2
        correlation = tf.concat([correlation[..., :1] + noise, correlation[..., 1:]], -1)
        solve = _SOLVER.get() if self._exact else levinson_unrolled
        coefficients, error = solve(correlation)
        found = coefficients, 0.5 * tf.math.log(error), 0.5 * tf.math.log(correlation[..., 0])
        return tuple(tf.cast(one, power.dtype) for one in found)


@contextlib.contextmanager
def solved_by(solver: Solver) -> Iterator[None]:
    """Make exact `MelPrediction`s use `solver` instead of `levinson` within a `with` statement."""
    token = _SOLVER.set(solver)
    try:
        yield
    finally:
        _SOLVER.reset(token)


@functools.lru_cache(maxsize=8)
def band_to_bin(mel: MelConvention) -> np.ndarray:
    """Return weights that interpolate mean band magnitudes linearly over frequency bins.

    They are float32 [bands, bins] and include the division by the total weight of each band's
    triangular filter, which converts a band's magnitude to the mean magnitude in the band.
    """
    filters = mel_filters(mel).astype(np.float64)
    weights = filters.sum(0)
    bins = np.arange(len(filters))
    centres = (filters * bins[:, None]).sum(0) / weights
    columns = [np.interp(bins, centres, one) for one in np.eye(mel.bands)]
    return (np.stack(columns) / weights[:, None]).astype(np.float32)


@functools.lru_cache(maxsize=8)
def bin_to_lag(mel: MelConvention, order: int) -> np.ndarray:
    """Return the matrix from power per bin to autocorrelation per lag, float32 [bins, order + 1].

    It is the inverse Fourier transform divided by the energy of the analysis window, times a
    Gaussian lag window.
    """
    size = mel.fft_size
    angles = 2.0 * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(order + 1)) / size
    sides = np.full(size // 2 + 1, 2.0)
    sides[0] = sides[-1] = 1.0
    lag_seconds = np.arange(order + 1) / mel.sample_rate_hz
    window = np.exp(-0.5 * np.square(2.0 * np.pi * LAG_WINDOW_HZ * lag_seconds))
    energy = size * HANN_POWER * mel.window_samples
    return (sides[:, None] * np.cos(angles) * window / energy).astype(np.float32)


def levinson(correlation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return coefficients a_1 .. a_K [..., K] and error power [...] from r_0 .. r_K [..., K + 1].

    This is the Levinson-Durbin recursion, whose reflection coefficient k_i in step i is

        k_i = (r_i - sum_(j<i) a_j r_(i-j)) / E_(i-1),    E_i = (1 - k_i^2) E_(i-1)

    The autocorrelation must be positive definite, as for any power spectrum. Rounding cannot make
    the error power E_i negative, since |k_i| is clipped below one.

    The steps run in a loop over arrays of constant size, because XLA would compile unrolled steps
    into one kernel that recomputes each step whenever a later one reads it.
    """
    order = correlation.shape[-1] - 1
    coefficients, error = _recursion(tf.transpose(tf.reshape(correlation, [-1, order + 1])), order)
    shape = tf.shape(correlation)[:-1]
    whole = tf.concat([shape, [order]], 0)
    return tf.reshape(tf.transpose(coefficients), whole), tf.reshape(error, shape)


@tf.function(autograph=False, reduce_retracing=True)  # op by op it takes ten times longer
def _recursion(rows: tf.Tensor, order: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return coefficients [order, frames] and error power [frames] from `rows` [lags, frames]."""
    lags, places = rows[1:], tf.range(order + 2)

    # Coefficients of later steps are still zero. Row `order` is -1, so that step i sets coefficient
    # i to the reflection; row `order + 1` is 0, so that the later coefficients do not change.
    def step(
        i: tf.Tensor, coefficients: tf.Tensor, error: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        mirrored = tf.maximum(i - 1 - places[:order], 0)
        explained = tf.reduce_sum(coefficients[:order] * tf.gather(lags, mirrored), 0)
        reflection = tf.clip_by_value((lags[i] - explained) / error, -0.9999, 0.9999)
        partners = tf.where(places < i, i - 1 - places, tf.where(places == i, order, order + 1))
        coefficients -= reflection * tf.gather(coefficients, partners)
        return i + 1, coefficients, error * (1.0 - tf.square(reflection))

    none, ones = tf.zeros_like(lags), tf.ones_like(rows[:1])
    start = tf.constant(0), tf.concat([none, -ones, 0.0 * ones], 0), rows[0]
    _, coefficients, error = tf.while_loop(lambda i, *_: i < order, step, start)
    return coefficients[:order], error


_SOLVER: contextvars.ContextVar[Solver] = contextvars.ContextVar("solver", default=levinson)


def levinson_unrolled(correlation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the result of `levinson`, op by op, as models are trained that are not exact."""
    return _unrolled_steps(correlation, correlation.shape[-1] - 1)


@tf.function(autograph=False, reduce_retracing=True)  # the same bits as op by op, in less time
def _unrolled_steps(correlation: tf.Tensor, order: int) -> tuple[tf.Tensor, tf.Tensor]:
    coefficients, error = correlation[..., :0], correlation[..., 0]
    for i in range(1, order + 1):
        explained = tf.reduce_sum(coefficients * tf.reverse(correlation[..., 1:i], [-1]), -1)
        reflection = (correlation[..., i] - explained) / error
        reflection = tf.clip_by_value(reflection, -0.9999, 0.9999)[..., None]
        kept = coefficients - reflection * tf.reverse(coefficients, [-1])
        coefficients = tf.concat([kept, reflection], -1)
        error *= 1.0 - tf.square(reflection[..., 0])
    return coefficients, error


def predictions(wave: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
    """Return the predictions p_t = sum_k a_k(t) x_(t-k) of a waveform, [batch, time].

    The waveform, [batch, time], is assumed to be silent before its first sample. The coefficients
    are [batch, rows, order], where each row applies to time / rows samples.
    """
    order, rows = coefficients.shape[-1], tf.shape(coefficients)[1]
    padded = tf.pad(wave, [[0, 0], [order, 0]])
    time = tf.shape(wave)[1]
    shape = [tf.shape(wave)[0], rows, -1]
    taps = (
        coefficients[..., k - 1, None] * tf.reshape(padded[:, order - k : order - k + time], shape)
        for k in range(1, order + 1)
    )
    return tf.reshape(tf.add_n(list(taps)), [shape[0], time])
