"""Checks of waveforms before they are measured."""

import numpy as np

from wavenet.data import audio

SILENCE_DB = -90.0  # peak level in dB of full scale, about one 16-bit step


def pair_waveforms(sound: np.ndarray, recorded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both waveforms as float32 [samples], cut to the length of the shorter one."""
    sound, recorded = check_waveform("sound", sound), check_waveform("recorded", recorded)
    length = min(len(sound), len(recorded))
    return sound[:length], recorded[:length]


def check_waveform(name: str, waveform: np.ndarray) -> np.ndarray:
    """Return the waveform as float32 [samples].

    Raises:
      ValueError: If the waveform is empty, not one-dimensional or not finite.
    """
    waveform = np.asarray(waveform, np.float32)
    if waveform.ndim != 1 or not waveform.size:
        raise ValueError(f"`{name}` must have the shape [samples], got {waveform.shape}.")
    if not np.all(np.isfinite(waveform)):
        raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
    return waveform


def is_silent(waveform: np.ndarray) -> bool:
    """Return whether all samples are within one 16-bit step of 0."""
    return audio.peak_db(waveform) < SILENCE_DB
