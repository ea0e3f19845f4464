"""The mel of `wavenet-universal-22k` is HiFi-GAN's, as librosa computes that recipe."""

from pathlib import Path

import numpy as np

from wavenet.config import PRESETS
from wavenet.features.frames import mel_spectrogram

HOP = 256
# By librosa 0.11: the sound reflected by 384 samples, `stft` of 1,024 not centred, the root of
# power + 1e-9, `filters.mel` from 0 to 8,000 Hz, the logarithm of at least 1e-5.
REFERENCE = Path(__file__).parent / "hifigan_mel.npz"


def test_it_is_the_mel_that_librosa_computed():
    time = np.arange(24 * HOP) / 22_050
    sweep = 0.4 * np.sin(2 * np.pi * (200 + 9_000 * time) * time)
    pulses = 0.3 * (np.arange(time.size) % 147 == 0)
    sound = sweep + pulses + np.random.default_rng(7).normal(0, 0.01, time.size)
    mel = PRESETS["wavenet-universal-22k"].config.data.mel(HOP)
    with np.load(REFERENCE) as stored:
        np.testing.assert_allclose(mel_spectrogram(sound, mel), stored["mel"], atol=1e-4)
