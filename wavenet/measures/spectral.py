"""Distances between the spectra, and between the levels, of two waveforms."""

import math

import numpy as np
import scipy.fft

from wavenet.data import audio
from wavenet.features.mel import MelConvention, mel_spectrogram
from wavenet.measures.waveforms import pair_waveforms

DB_PER_NAT = 20.0 / math.log(10.0)
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # FFT, hop, window in samples
MAGNITUDE_FLOOR = 1e-7**0.5  # lower bound of STFT magnitudes
LOUDEST = 2.0  # ratio of norms above which the sound's norm replaces the recording's


def log_mel_distance_db(sound: np.ndarray, recorded: np.ndarray, mel: MelConvention) -> float:
    """Return the RMS difference of log-mel spectrograms, above the floor, in dB; 0 is best."""
    sound, recorded = pair_waveforms(sound, recorded)
    difference = mel_spectrogram(sound, mel) - mel_spectrogram(recorded, mel)
    db_per_unit = DB_PER_NAT if mel.log == "natural" else 20.0
    return float(np.sqrt(np.mean(np.square(difference)))) * db_per_unit


def multi_resolution_stft_distance(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the mean STFT distance over three resolutions; 0 is best.

    For each resolution it is the spectral convergence plus the error of log magnitudes, where X are
    the magnitudes of the recording and Y the magnitudes of the sound, [frames, bins]:

        || X - Y ||_F / max(|| X ||_F, || Y ||_F / 2)  +  mean | ln X - ln Y |

    The paper divides by || X || instead of the maximum. The maximum, which matters if the sound is
    more than 6 dB louder than the recording, bounds the first term by 3; otherwise a silent
    recording would dominate a mean over recordings.

    Source: Yamamoto, Song, Kim, "Parallel WaveGAN", arXiv 1910.11480, equations 4 to 6 and table 1:
    FFTs of 1,024, 2,048 and 512 samples, hops of 120, 240 and 50, Hann windows of 600, 1,200 and
    240. The paper's sizes are for 24 kHz; they are used for every sample rate, so results at
    different rates are not comparable. Magnitudes are at least 10^-3.5; both ends are zero-padded.
    """
    sound, recorded = pair_waveforms(sound, recorded)
    return float(np.mean([_stft_distance(sound, recorded, *sizes) for sizes in RESOLUTIONS]))


def level_difference_db(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the RMS level of the sound minus the level of the recording, in dB; 0 is best."""
    sound, recorded = pair_waveforms(sound, recorded)
    return audio.rms_db(sound) - audio.rms_db(recorded)


def _stft_distance(
    sound: np.ndarray, recorded: np.ndarray, fft_size: int, hop: int, window: int
) -> float:
    X, Y = (_magnitudes(x, fft_size, hop, window) for x in (recorded, sound))
    loudness = max(np.linalg.norm(X), np.linalg.norm(Y) / LOUDEST)
    convergence = np.linalg.norm(X - Y) / loudness
    return float(convergence + np.mean(np.abs(np.log(X / Y))))


def _magnitudes(waveform: np.ndarray, fft_size: int, hop: int, window: int) -> np.ndarray:
    """Return STFT magnitudes, float32 [frames, bins]; frame f is centred on sample f * hop."""
    padded = np.pad(waveform, window // 2)
    segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = np.sin(np.pi * np.arange(window, dtype=np.float32) / window) ** 2
    spectrum = scipy.fft.rfft(segments * hann, n=fft_size, axis=-1)
    return np.maximum(np.abs(spectrum), np.float32(MAGNITUDE_FLOOR))
