"""Fundamental frequency on the frame grid of the mel spectrogram."""

import numpy as np

from wavenet.features.conventions import PitchConvention
from wavenet.features.mel import num_frames
from wavenet.optional_packages import require


def _estimate(x: np.ndarray, convention: PitchConvention) -> np.ndarray:
    require("pyworld", "quality", "The fundamental frequency")
    import pyworld  # optional, and slow to import

    rate_hz = convention.sample_rate_hz
    settings = dict(
        f0_floor=convention.low_hz,
        f0_ceil=convention.high_hz,
        frame_period=1000.0 * convention.hop_samples / rate_hz,
    )
    if convention.method == "harvest":
        return pyworld.harvest(x, rate_hz, **settings)[0]
    raw_hz, positions_seconds = pyworld.dio(x, rate_hz, **settings)
    return pyworld.stonemask(x, raw_hz, positions_seconds, rate_hz)


def fundamental_frequency(
    waveform: np.ndarray, convention: PitchConvention
) -> tuple[np.ndarray, np.ndarray]:
    """Return F0 in Hz, float32 [frames], 0 if unvoiced, and voicing, bool [frames].

    Frame f is centred on sample f * hop_samples + hop_samples / 2, as in `mel_spectrogram`. F0 is
    estimated by WORLD (Morise et al., IEICE 2016) through pyworld.
    """
    hop_samples = convention.hop_samples
    x = np.asarray(waveform, np.float64)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"`waveform` must have the shape [samples], got {x.shape}.")
    frames = num_frames(x.size, hop_samples)
    # WORLD centres frame i on sample i * hop, so half a hop is dropped; it also needs a minimum
    # length.
    wanted = max(frames * hop_samples, convention.sample_rate_hz // 10)
    x = np.pad(x[hop_samples // 2 :], (0, max(0, wanted - x.size + hop_samples)))
    f0_hz = _estimate(np.ascontiguousarray(x), convention)[:frames].astype(np.float32)
    return f0_hz, f0_hz > 0.0


def log_f0_features(
    f0_hz: np.ndarray, voiced: np.ndarray, reference_hz: float = 200.0
) -> np.ndarray:
    """Return interpolated log2(f0 / reference_hz), and voicing (0 or 1), float32 [frames, 2]."""
    features = np.zeros((len(f0_hz), 2), np.float32)
    where = np.flatnonzero(voiced)
    if where.size:
        octaves = np.log2(np.asarray(f0_hz, np.float64)[where] / reference_hz)
        features[:, 0] = np.interp(np.arange(len(f0_hz)), where, octaves)
    features[:, 1] = voiced
    return features
