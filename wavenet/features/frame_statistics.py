"""Statistics of mel frames that distinguish a model's convention from others."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wavenet.features.conventions import MelConvention

LEAST_FRAMES = 20  # whose mean is meaningful
MARGIN = 0.25  # beyond the range; what 29 dB more are where the floor is 1e-5
FAR = 2.0  # deviations above the training mean, which even a loud recording's mean does not reach
LOUD, NARROW = 1.2, 0.65  # deviations above it, and spread in deviations: another logarithm
ROUNDING = 0.05


@dataclasses.dataclass(frozen=True)
class FrameStatistics:
    """Statistics of the mel frames, `above_silence`, that a model was trained on, over all bands.

    Attributes:
      high: the greatest value; the least is 0, for silence.
      mean: mean of all values.
      deviation: standard deviation of all values.
    """

    high: float
    mean: float
    deviation: float

    @classmethod
    def of(cls, recordings: Iterable[np.ndarray]) -> "FrameStatistics":
        """Return the statistics, to four places, of the frames [frames, bands] of recordings."""
        high, sums = 0.0, np.zeros(3)
        for frames in recordings:
            values = np.asarray(frames, np.float64)
            high = max(high, float(values.max()))
            sums += values.size, values.sum(), np.square(values).sum()
        mean, square = sums[1:] / sums[0]
        deviation = math.sqrt(max(0.0, square - mean**2))
        return cls(*(round(float(value), 4) for value in (high, mean, deviation)))

    def to_dict(self) -> dict[str, float]:
        """Return the entry of model.json."""
        return dataclasses.asdict(self)


def stored_statistics(spec: Mapping[str, Any]) -> FrameStatistics | None:
    """Return the statistics that a model.json holds; None for one without them, as before 0.3."""
    try:
        found = FrameStatistics(**{name: float(value) for name, value in spec["frames"].items()})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if np.isfinite(dataclasses.astuple(found)).all() and found.deviation > 0 else None


def unlike(frames: np.ndarray, trained: FrameStatistics, mel: MelConvention) -> str | None:
    """Return why frames [frames, bands], `above_silence`, do not fit a model's convention, or None.

    A recording may be silent, quiet or loud, but its logarithm is never below the floor; frames
    with a different logarithm, or none, are too high for how little they vary.
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
    """Return a convention in a few words."""
    return (
        f"{mel.log} logarithms of magnitudes, at least {mel.floor:g}, {mel.bands} bands of scale "
        f"{mel.scale}, normalised by {mel.normalisation}, {mel.sample_rate_hz} Hz"
    )


def _log(value: float, mel: MelConvention) -> float:
    return mel.silence * (1.0 - value)
