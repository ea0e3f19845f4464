"""The mel of `wavenet-universal-22k` is HiFi-GAN's, as librosa computes that recipe."""

from pathlib import Path

import numpy as np
import pytest

from wavenet.config import PRESETS
from wavenet.features.frames import mel_spectrogram

HOP, WINDOW = 256, 1024
REFERENCE = Path(__file__).parent / "hifigan_mel.npz"  # `librosa_mel(waveform())`, librosa 0.11


def waveform() -> np.ndarray:
    """A sweep over a pulse train and noise, 22,050 Hz, float32 [24 * 256]."""
    time = np.arange(24 * HOP) / 22_050
    sweep = 0.4 * np.sin(2 * np.pi * (200 + 9_000 * time) * time)
    pulses = 0.3 * (np.arange(time.size) % 147 == 0)
    noise = np.random.default_rng(7).normal(0, 0.01, time.size)
    return (sweep + pulses + noise).astype(np.float32)


def librosa_mel(sound: np.ndarray) -> np.ndarray:
    """The recipe of HiFi-GAN's published features, float32 [frames, 80]."""
    librosa = pytest.importorskip("librosa")
    side = (WINDOW - HOP) // 2
    padded = np.pad(sound, (side, side), mode="reflect")
    spectrum = librosa.stft(padded, n_fft=WINDOW, hop_length=HOP, window="hann", center=False)
    filters = librosa.filters.mel(sr=22_050, n_fft=WINDOW, n_mels=80, fmin=0, fmax=8_000)
    magnitudes = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)
    return np.log(np.maximum(filters @ magnitudes, 1e-5)).T.astype(np.float32)


def ours(sound: np.ndarray) -> np.ndarray:
    config = PRESETS["wavenet-universal-22k"].config
    return mel_spectrogram(sound, config.data.mel(HOP))


def test_it_is_the_mel_that_librosa_computed():
    with np.load(REFERENCE) as stored:
        np.testing.assert_allclose(ours(waveform()), stored["mel"], atol=1e-4)


def test_the_stored_reference_is_what_librosa_computes():
    with np.load(REFERENCE) as stored:
        np.testing.assert_allclose(librosa_mel(waveform()), stored["mel"], atol=1e-4)
