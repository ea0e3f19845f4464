"""Kurtosis of the linear prediction residual: whether glottal pulses are distinct or smeared."""

import math

import numpy as np
import scipy.linalg
import scipy.signal

from wavenet.data import audio
from wavenet.measures.waveforms import check_waveform

RATE_HZ = 16_000
ORDER = 16
WINDOW_SAMPLES = 640  # 40 ms, at least four periods of most voices
WHITE_NOISE = 1e-9  # noise power relative to the signal's; keeps the equations solvable
LEAST_POWER = 1e-12  # windows with a lower mean square are silent and left out


def residual_kurtosis(
    sound: np.ndarray, f0_hz: np.ndarray, sample_rate_hz: int, hop_samples: int
) -> float:
    """Return the median kurtosis of the order-16 linear prediction residual over voiced frames.

    For every voiced frame, the coefficients a_1 .. a_16 are estimated by the autocorrelation method
    from a Hann window of 40 ms around the frame's centre, at 16 kHz. Over the same 40 ms, without a
    window,

        e_t = x_t - sum_k a_k x_(t-k),    kurtosis = mean (e - m)^4 / (mean (e - m)^2)^2

    where m is the mean of e. The kurtosis of Gaussian noise is 3. Speech has a higher kurtosis,
    since the vocal tract is excited once per period. Random phases smear the pulses and bring the
    kurtosis closer to 3; a buzz, with all harmonics in phase, has too high a kurtosis. The result
    is nan if no voiced frame has its complete window within the sound.

    Args:
      f0_hz: F0 of the recording, [frames], 0 if unvoiced, so that all sounds are measured on the
        same frames; frame f is centred on sample f * hop_samples + hop_samples / 2.
    """
    x = audio.resample(check_waveform("sound", sound), sample_rate_hz, RATE_HZ).astype(np.float64)
    frames = np.flatnonzero(np.asarray(f0_hz) > 0.0)
    middles = np.rint((frames + 0.5) * hop_samples * RATE_HZ / sample_rate_hz).astype(int)
    starts = middles - WINDOW_SAMPLES // 2
    whole = starts[(starts >= ORDER) & (starts + WINDOW_SAMPLES <= len(x))]
    pieces = (x[start - ORDER : start + WINDOW_SAMPLES] for start in whole)
    found = [_kurtosis(_residual(piece)) for piece in pieces if np.mean(piece**2) > LEAST_POWER]
    return float(np.median(found)) if found else math.nan


def _residual(piece: np.ndarray) -> np.ndarray:
    hann = scipy.signal.get_window("hann", WINDOW_SAMPLES)
    windowed = piece[ORDER:] * hann
    lags = np.array([windowed[k:] @ windowed[: WINDOW_SAMPLES - k] for k in range(ORDER + 1)])
    lags[0] *= 1.0 + WHITE_NOISE
    coefficients = scipy.linalg.solve_toeplitz(lags[:-1], lags[1:])
    return scipy.signal.lfilter(np.r_[1.0, -coefficients], [1.0], piece)[ORDER:]


def _kurtosis(residual: np.ndarray) -> float:
    centred = residual - residual.mean()
    return float(np.mean(centred**4) / np.mean(centred**2) ** 2)
