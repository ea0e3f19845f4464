"""Distances between the spectra and the levels of two waveforms."""

import math

import numpy as np
import scipy.fft

from wavenet.data import audio
from wavenet.features.mel import MelConvention, mel_spectrogram
from wavenet.measures.waveforms import paired

DB_PER_NAT = 20.0 / math.log(10.0)
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # FFT, hop, window in samples
MAGNITUDE_FLOOR = 1e-7**0.5  # of a bin of the windowed spectrum; below it lies silence
LOUDEST = 2.0  # times the recording's norm, beyond which a sound is normalised by itself


def log_mel_distance_db(sound: np.ndarray, recorded: np.ndarray, mel: MelConvention) -> float:
    """Return the root mean square difference of log-mel spectrograms, in dB; 0 is best.

    Bands quieter than the convention's floor count as the floor.
    """
    sound, recorded = paired(sound, recorded)
    difference = mel_spectrogram(sound, mel) - mel_spectrogram(recorded, mel)
    db_per_unit = DB_PER_NAT if mel.log == "natural" else 20.0
    return float(np.sqrt(np.mean(np.square(difference)))) * db_per_unit


def multi_resolution_stft_distance(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the mean STFT distance over three resolutions; 0 is best.

    For each resolution it is the spectral convergence plus the error of log-magnitudes, with X the
    magnitudes of the recording and Y those of the sound, [frames, bins]:

        || X - Y ||_F / max(|| X ||_F, || Y ||_F / 2)  +  mean | ln X - ln Y |

    The paper divides only by || X ||. Here a sound more than 6 dB above its recording is normalised
    by itself, which keeps the first term below 3: a silent recording would otherwise outweigh
    dozens of others in a mean.

    Source: Yamamoto, Song, Kim, "Parallel WaveGAN", arXiv 1910.11480, equations 4 to 6 and table 1:
    FFTs of 1,024, 2,048 and 512 samples, hops of 120, 240 and 50, Hann windows of 600, 1,200 and
    240. These are meant for 24 kHz; the sample counts are the same at every rate, so results at
    different rates are not comparable. Magnitudes are at least 1e-3.5; zeros lie beyond both ends.
    """
    sound, recorded = paired(sound, recorded)
    return float(np.mean([_stft_distance(sound, recorded, *sizes) for sizes in RESOLUTIONS]))


def level_difference_db(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the RMS level of the sound minus that of the recording, in dB; 0 is best."""
    sound, recorded = paired(sound, recorded)
    return audio.rms_db(sound) - audio.rms_db(recorded)


def _stft_distance(
    sound: np.ndarray, recorded: np.ndarray, fft_size: int, hop: int, window: int
) -> float:
    X, Y = (_magnitudes(x, fft_size, hop, window) for x in (recorded, sound))
    loudness = max(np.linalg.norm(X), np.linalg.norm(Y) / LOUDEST)
    convergence = np.linalg.norm(X - Y) / loudness
    return float(convergence + np.mean(np.abs(np.log(X / Y))))


def _magnitudes(waveform: np.ndarray, fft_size: int, hop: int, window: int) -> np.ndarray:
    """Return float32 [frames, bins], frame f around sample f * hop."""
    padded = np.pad(waveform, window // 2)
    segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = np.sin(np.pi * np.arange(window, dtype=np.float32) / window) ** 2
    spectrum = scipy.fft.rfft(segments * hann, n=fft_size, axis=-1)
    return np.maximum(np.abs(spectrum), np.float32(MAGNITUDE_FLOOR))
