"""Statistics of mel frames, used to detect frames of a different convention."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wavenet.features.conventions import MelConvention

LEAST_FRAMES = 20  # minimum number of frames for a meaningful mean


MARGIN = 0.25  # tolerance above the range in training; 29 dB for a floor of 1e-5


FAR = 2.0  # deviations above the training mean that even loud recordings do not reach


LOUD, NARROW = 1.2, 0.65  # a mean above and a spread below these reveal a different logarithm


ROUNDING = 0.05


@dataclasses.dataclass(frozen=True)
class FrameStatistics:
    """Statistics over all bands of a model's training frames (`above_silence`), at least 0."""

    high: float
    mean: float
    deviation: float

    @classmethod
    def of(cls, recordings: Iterable[np.ndarray]) -> "FrameStatistics":
        """Return the statistics of recordings' frames [frames, bands], to four decimal places."""
        high, sums = 0.0, np.zeros(3)
        for frames in recordings:
            values = np.asarray(frames, np.float64)
            high = max(high, float(values.max()))
            sums += values.size, values.sum(), np.square(values).sum()
        mean, square = sums[1:] / sums[0]
        deviation = math.sqrt(max(0.0, square - mean**2))
        return cls(round(high, 4), round(float(mean), 4), round(deviation, 4))

    def to_dict(self) -> dict[str, float]:
        """Return the statistics as an entry of model.json."""
        return dataclasses.asdict(self)


def read_statistics(spec: Mapping[str, Any]) -> FrameStatistics | None:
    """Return the statistics in a model.json; None if it has no valid ones."""
    try:
        found = FrameStatistics(**{name: float(value) for name, value in spec["frames"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if np.isfinite(dataclasses.astuple(found)).all() and found.deviation > 0 else None


def unlike(frames: np.ndarray, trained: FrameStatistics, mel: MelConvention) -> str | None:
    """Return why frames [frames, bands] do not fit a model's convention, or None if they fit.

    Recordings may have any level, but their values are never below the floor. Frames with a
    different logarithm, or none, have a high mean and a low standard deviation.
    """
    low, high = float(frames.min()), float(frames.max())
    if low < -ROUNDING or high > trained.high + MARGIN:
        ends = f"{_log(low, mel):.2f} to {_log(high, mel):.2f}"
        known = f"{_log(0.0, mel):.2f} to {_log(trained.high, mel):.2f}"
        return f"values from {ends}, where the model knows {known}: {describe(mel)}"
    distance = (float(frames.mean()) - trained.mean) / trained.deviation
    spread = float(frames.std()) / trained.deviation
    if len(frames) < LEAST_FRAMES or not (distance > FAR or (distance > LOUD and spread < NARROW)):
        return None
    scale = abs(mel.silence)
    found = f"mean {_log(float(frames.mean()), mel):.2f}, spread {scale * frames.std():.2f}"
    known = f"mean {_log(trained.mean, mel):.2f}, spread {scale * trained.deviation:.2f}"
    return f"{found}, where the model knows {known}: {describe(mel)}"


def describe(mel: MelConvention) -> str:
    """Return a short description of a convention."""
    return (
        f"{mel.log} logarithms of magnitudes, at least {mel.floor:g}, {mel.bands} bands of scale "
        f"{mel.scale}, normalised by {mel.normalisation}, {mel.sample_rate_hz} Hz"
    )


def _log(value: float, mel: MelConvention) -> float:
    return mel.silence * (1.0 - value)
