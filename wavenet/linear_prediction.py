"""Linear prediction of speech from mel frames, or from its past alone.

A mel frame determines the spectral envelope, which determines the best linear predictor (Valin and
Skoglund 2019, LPCNet, arXiv 1810.11846; LP-WaveNet, 1811.11913). The computation

    magnitudes over frequency -> squares -> autocorrelation r_0 .. r_K -> Levinson recursion

yields the coefficients a_1 .. a_K and the gain g of the residual e in

    x_t = sum_k a_k x_(t-k) + g e_t

From a window of past samples, which a decoder knows too, the recursion computes the predictor of
backward-adaptive coders (Chen et al. 1992, "A low-delay CELP coder for the CCITT 16 kb/s speech
coding standard"). The baseline for a model that reads mel frames, with which no lossless codec can
be compared fairly, fits one distribution of the residual over the gain to all recordings.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from scipy.special import expit

from onepass.foundation.rules import require
from wavenet.config import MelConvention
from wavenet.features.frames import above_silence, mel_filters, mel_spectrogram

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
        require(order >= 1, "order", "at least 1", order)
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
def use_solver(solver: Solver) -> Iterator[None]:
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

    It is the inverse Fourier transform over the energy of the window, times a Gaussian lag window.
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


def predictions(
    wave: tf.Tensor, coefficients: tf.Tensor, before: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the predictions p_t = sum_k a_k(t) x_(t-k) of a waveform, [batch, time].

    The waveform, [batch, time], follows `before`, [batch, at least order], or silence. The
    coefficients are [batch, rows, order], where each row applies to time / rows samples.
    """
    order, rows = coefficients.shape[-1], tf.shape(coefficients)[1]
    padded = with_past(wave, order, before)
    time = tf.shape(wave)[1]
    shape = [tf.shape(wave)[0], rows, -1]
    taps = (
        coefficients[..., k - 1, None] * tf.reshape(padded[:, order - k : order - k + time], shape)
        for k in range(1, order + 1)
    )
    return tf.reshape(tf.add_n(list(taps)), [shape[0], time])


def with_past(values: tf.Tensor, width: int, before: tf.Tensor | None = None) -> tf.Tensor:
    """Return values [batch, time] after the last `width` of those before them; None: zeros."""
    if before is None:
        return tf.pad(values, [[0, 0], [width, 0]])
    return tf.concat([before[:, before.shape[1] - width :], values], 1)


RISE = 0.9  # share of a window over which it rises; it falls over the rest, up to the block
PAST_WHITE_NOISE = 1e-7  # noise power relative to the signal's, -70 dB, which float64 resolves
PAST_FLOOR = 0.3 / 32768  # RMS, about a third of a 16-bit step


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
        noise = PAST_WHITE_NOISE * power[..., :1] + PAST_FLOOR**2
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
    sizes = (whole, whole * 9 // 8, whole * 5 // 4, whole * 3 // 2, 2 * whole)
    return next(size for size in sizes if size >= least)


ORDER = 32
ROW_SAMPLES = 50  # approximate number of samples that share one set of coefficients
SCALES = 0.02 * 1.5 ** np.arange(16)  # scales of the logistics relative to the gain, 0.02 to 8.8
FITTED_SAMPLES = 500_000  # longer data are subsampled to this size for fitting
ITERATIONS = 100
STEP = 2.0 / 65535.0  # distance between two 16-bit levels


def measure_untrained_bits(
    items: Sequence[dict], mel: MelConvention, order: int = ORDER
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits per sample and the number of samples of each recording, [recordings] each.

    The probability of a 16-bit level is the mass in its bin under a mixture of logistics around the
    linear prediction of the given order. Only the mixture weights are fitted, by maximum likelihood
    over all recordings. Each item has a "waveform", [samples] in [-1, 1].
    """
    prediction = MelPrediction(mel, order)
    pairs = [_over_gain(item["waveform"], mel, prediction) for item in items]
    lengths = np.array([len(residual) for residual, _ in pairs])
    every = -(-int(lengths.sum()) // FITTED_SAMPLES)
    residuals, half_bins = (np.concatenate(each)[::every] for each in zip(*pairs, strict=True))
    probabilities = _bin_probabilities(residuals, half_bins)
    weights = np.full(len(SCALES), 1.0 / len(SCALES))
    for _ in range(ITERATIONS):
        responsibilities = (1.0 / (probabilities @ weights)) @ probabilities
        weights = weights * responsibilities / len(probabilities)
    bits = [-np.mean(np.log2(_bin_probabilities(x, half) @ weights)) for x, half in pairs]
    return np.array(bits, np.float64), lengths.astype(np.float64)


def _over_gain(
    waveform: np.ndarray, mel: MelConvention, prediction: MelPrediction
) -> tuple[np.ndarray, np.ndarray]:
    frames = above_silence(mel_spectrogram(waveform, mel), mel)
    hop = mel.hop_samples
    count = max(n for n in range(1, max(1, hop // ROW_SAMPLES) + 1) if hop % n == 0)
    places = (np.arange(len(frames) * count) + 0.5) / count - 0.5
    before = np.clip(np.floor(places).astype(int), 0, len(frames) - 1)
    after = np.minimum(before + 1, len(frames) - 1)
    share = np.clip(places - before, 0.0, 1.0)[:, None]
    rows = (frames[before] * (1.0 - share) + frames[after] * share).astype(np.float32)
    row_samples = hop // count
    coefficients, log_gain, _ = (np.asarray(each) for each in prediction(rows))
    padded = np.pad(waveform, (0, len(rows) * row_samples - len(waveform))).astype(np.float32)
    predicted = predictions(tf.constant(padded[None]), tf.constant(coefficients[None]))
    gain = np.repeat(np.exp(log_gain), row_samples)[: len(waveform)]
    residual = (waveform - np.asarray(predicted)[0, : len(waveform)]) / gain
    return residual.astype(np.float64), (STEP / 2.0 / gain).astype(np.float64)


def _bin_probabilities(residual: np.ndarray, half_bin: np.ndarray) -> np.ndarray:
    """Return the probability of each sample's bin under each logistic, [samples, scales].

    It is F(b) - F(a), where F is the logistic distribution function; both arguments are reflected
    to negative values, where F is small, to keep precision in the tails.
    """
    distance = np.abs(residual)[:, None]
    half = half_bin[:, None]
    upper, lower = (half - distance) / SCALES, (-half - distance) / SCALES
    return np.maximum(expit(upper) - expit(lower), 1e-30)
