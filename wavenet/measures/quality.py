"""All measures of a synthetic sound, compared with the recording that it imitates."""

from collections.abc import Callable

import numpy as np

from wavenet.features.mel import MelConvention
from wavenet.features.pitch import PitchConvention, fundamental_frequency
from wavenet.measures.opinion import opinions
from wavenet.measures.perceptual import pesq, stoi
from wavenet.measures.pitch import f0_error_cents, f0_within_50_cents, voicing_error
from wavenet.measures.residual import residual_kurtosis
from wavenet.measures.spectral import (
    level_difference_db,
    log_mel_distance_db,
    multi_resolution_stft_distance,
)
from wavenet.measures.waveforms import pair_waveforms
from wavenet.optional_packages import available


def measure(
    sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int, mel: MelConvention
) -> dict[str, float]:
    """Return all measures {name: value}, nan if undefined; the longer sound is cut.

    The keys, in order: log_mel_distance_db, multi_resolution_stft_distance, pesq, stoi,
    f0_within_50_cents, f0_error_cents, voicing_error, residual_kurtosis, level_difference_db,
    dnsmos_p808, plcmos; each is a function in this package. Measures that need a missing package
    are left out (`optional_packages.left_out`). F0 is estimated by WORLD's DIO with StoneMask, at
    the mel's hop length, from 60 to 600 Hz.
    """
    if mel.sample_rate_hz != sample_rate_hz:
        raise ValueError(f"`mel` must be at {sample_rate_hz} Hz, got {mel.sample_rate_hz} Hz.")
    sound, recorded = pair_waveforms(sound, recorded)
    measures: dict[str, Callable[[], float]] = {
        "log_mel_distance_db": lambda: log_mel_distance_db(sound, recorded, mel),
        "multi_resolution_stft_distance": lambda: multi_resolution_stft_distance(sound, recorded),
        "pesq": lambda: pesq(sound, recorded, sample_rate_hz),
        "stoi": lambda: stoi(sound, recorded, sample_rate_hz),
        **_of_the_voice(sound, recorded, sample_rate_hz, mel.hop_samples),
        "level_difference_db": lambda: level_difference_db(sound, recorded),
    }
    found = {name: taken() for name, taken in measures.items() if available(name)}
    return found | opinions(sound, sample_rate_hz)


def _of_the_voice(
    sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int, hop_samples: int
) -> dict[str, Callable[[], float]]:
    """Return the measures that need F0, as functions; {} if pyworld is missing."""
    if not available("f0_error_cents"):
        return {}
    pitch = PitchConvention(sample_rate_hz, hop_samples)
    f0_hz, recorded_f0_hz = (fundamental_frequency(x, pitch)[0] for x in (sound, recorded))
    return {
        "f0_within_50_cents": lambda: f0_within_50_cents(f0_hz, recorded_f0_hz),
        "f0_error_cents": lambda: f0_error_cents(f0_hz, recorded_f0_hz),
        "voicing_error": lambda: voicing_error(f0_hz, recorded_f0_hz),
        "residual_kurtosis": lambda: residual_kurtosis(
            sound, recorded_f0_hz, sample_rate_hz, hop_samples
        ),
    }
