"""What is computed from a waveform and back: mel spectrograms, F0, Griffin-Lim."""

from wavenet.features.mel import (
    MelConvention,
    above_silence,
    mel_filters,
    mel_spectrogram,
    num_frames,
)
from wavenet.features.mel_inversion import griffin_lim, magnitudes_of_mel
from wavenet.features.pitch import PitchConvention, fundamental_frequency, log_f0_features

__all__ = [
    "MelConvention",
    "PitchConvention",
    "above_silence",
    "fundamental_frequency",
    "griffin_lim",
    "log_f0_features",
    "magnitudes_of_mel",
    "mel_filters",
    "mel_spectrogram",
    "num_frames",
]
