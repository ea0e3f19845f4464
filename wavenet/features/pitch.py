"""Fundamental frequency on the frame grid of the mel spectrogram."""

import dataclasses
from typing import Any

import numpy as np

from wavenet.features.mel import num_frames

METHODS = ("dio", "harvest")


@dataclasses.dataclass(frozen=True)
class PitchConvention:
    """What a pitch frame is: two channels, [log2(f0 / reference_hz), voiced as 0 or 1].

    Frame f looks at sample f * hop + hop / 2. The first channel is interpolated through unvoiced
    frames and held before the first and after the last voiced one; a recording without any voiced
    frame has 0 there. It needs no statistics of the corpus.

    Fields: sample_rate_hz. hop_samples: in samples. low_hz, high_hz: where F0 is looked for.
    method: "dio" (with StoneMask, 120 times real time) or "harvest" (surer, 6 times real time).
    reference_hz: the F0 that reads as 0.
    """

    sample_rate_hz: int = 24000
    hop_samples: int = 256
    low_hz: float = 60.0
    high_hz: float = 600.0
    method: str = "dio"
    reference_hz: float = 200.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f'`method` must be one of {METHODS}, got "{self.method}".')
        if not 0.0 < self.low_hz < self.high_hz < self.sample_rate_hz / 2:
            raise ValueError(
                f"`low_hz` and `high_hz` must satisfy 0 < low_hz < high_hz < "
                f"{self.sample_rate_hz / 2}, got {self.low_hz} and {self.high_hz}."
            )
        if self.hop_samples < 1 or not self.reference_hz > 0.0:
            raise ValueError(
                f"`hop_samples` must be at least 1 and `reference_hz` above 0, "
                f"got {self.hop_samples} and {self.reference_hz}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Every number of the convention, for a JSON file; `PitchConvention(**d)` reads it back."""
        return dataclasses.asdict(self)


def _estimate(x: np.ndarray, convention: PitchConvention) -> np.ndarray:
    import pyworld  # Loads slowly, and only pitch needs it.

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
    waveform: np.ndarray,
    sample_rate_hz: int,
    hop_samples: int,
    *,
    low_hz: float = 60.0,
    high_hz: float = 600.0,
    method: str = "dio",
) -> tuple[np.ndarray, np.ndarray]:
    """F0 in Hz, float32 [frames], 0 where unvoiced; and voiced, bool [frames].

    Frame f is centred on sample f * hop_samples + hop_samples / 2, as in `mel_spectrogram`.

    Args:
      waveform: float [samples], at least one sample.
      sample_rate_hz, hop_samples: the grid.
      low_hz, high_hz: where F0 is looked for.
      method: "dio" or "harvest" (Morise et al., WORLD, IEICE 2016; through pyworld).
    """
    convention = PitchConvention(sample_rate_hz, hop_samples, low_hz, high_hz, method)
    x = np.asarray(waveform, np.float64)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"`waveform` must have the shape [samples], got {x.shape}.")
    frames = num_frames(x.size, hop_samples)
    # WORLD's frame i lies on sample i * hop, so half a hop is dropped; its estimators also need
    # a few frames to work on.
    wanted = max(frames * hop_samples, sample_rate_hz // 10)
    x = np.pad(x[hop_samples // 2 :], (0, max(0, wanted - x.size + hop_samples)))
    f0_hz = _estimate(np.ascontiguousarray(x), convention)[:frames].astype(np.float32)
    return f0_hz, f0_hz > 0.0


def log_f0_features(
    f0_hz: np.ndarray, voiced: np.ndarray, reference_hz: float = 200.0
) -> np.ndarray:
    """float32 [frames, 2]: log2(f0 / reference_hz) through unvoiced frames, and voiced as 0 or 1.

    Args:
      f0_hz: [frames], in Hz where voiced.
      voiced: bool [frames].
      reference_hz: the F0 that reads as 0; the unit is the octave.
    """
    features = np.zeros((len(f0_hz), 2), np.float32)
    where = np.flatnonzero(voiced)
    if where.size:
        octaves = np.log2(np.asarray(f0_hz, np.float64)[where] / reference_hz)
        features[:, 0] = np.interp(np.arange(len(f0_hz)), where, octaves)
    features[:, 1] = voiced
    return features
