"""Parts that all trained models of sound share: requests, counts of passes, and model.json."""

import dataclasses
from typing import Any

import numpy as np

from onepass.draw import Draw
from onepass.foundation.arguments import check_seed, whole_number
from onepass.foundation.stored_config import at_least, require
from wavenet.config import DataConfig
from wavenet.features.conventions import FrameStatistics, read_statistics
from wavenet.features.mel import FramesInPieces, RepeatedFrames
from wavenet.front import SoundFront

FULL_SCALE = 1.15  # upper bound of a frame's values, reached by a full-scale sine in a narrow band


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a batch of waveforms.

    Attributes:
      rows: index of each waveform in the seed's sequence of waveforms, one per batch row.
      frames: float32 [batch, frames, channels], covering the prime as well, or None.
      prime: int32 levels [batch, samples] that the waveforms continue, or None; students have none.
    """

    num_samples: int
    seed: int = 0
    rows: tuple[int, ...] = (0,)
    frames: np.ndarray | RepeatedFrames | None = None
    speaker: np.ndarray | None = None
    prime: np.ndarray | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Raise a ValueError if `num_samples` is below 1 or `temperature` is negative."""
        at_least(self, 1, "num_samples")
        require(self.temperature >= 0, "temperature", "at least 0", self.temperature)


@dataclasses.dataclass
class PassCount:
    """Passes, samples and corrected proposals per batch row of the latest generation."""

    passes: int = 0
    samples: int = 0
    corrected: float = 0.0

    def clear(self) -> None:
        """Reset all counts."""
        self.passes = self.samples = 0
        self.corrected = 0.0

    def add(self, passes: int, samples: int, corrected: float = 0.0) -> None:
        """Add to the counts."""
        self.passes += passes
        self.samples += samples
        self.corrected += corrected

    @property
    def samples_per_pass(self) -> float:
        """Mean number of samples per pass."""
        return self.samples / max(1, self.passes)

    @property
    def acceptance(self) -> float:
        """Share of the samples for which the draft's proposal was accepted."""
        return 1.0 - self.corrected / max(1, self.samples)

    def format_report(self) -> str:
        """Return the counts as a line of text."""
        said = f"{self.passes:,} passes, {self.samples_per_pass:.2f} samples each"
        kept = f"; {100 * self.acceptance:.0f} % of the drafts kept" if self.corrected else ""
        return said + kept


def request_of(condition: tuple, num_samples: int) -> Request:
    """Return a request for one waveform with seed 0, given its frames and speaker (or None)."""
    frames, speaker = condition
    return Request(
        num_samples,
        frames=None if frames is None else frames[None],
        speaker=None if speaker is None else np.array([speaker], np.int32),
    )


def batch_of(draw: Draw, hop_samples: int, prime: np.ndarray | None = None) -> Request:
    """Return the `Request` of a draw whose condition is frames, and whose speaker is a number.

    Args:
      draw: the draw; its length includes the prime.
      hop_samples: hop length of the frames.
      prime: int32 levels [samples] that every waveform continues, or None.
    """
    frames, number, length = draw.condition, draw.speaker, draw.length
    seed, num = check_seed(draw.seed), whole_number(draw.num, "num")
    if length is None:
        if frames is None:
            raise ValueError("`length` must be given when there is no `condition`.")
        length = len(frames) * hop_samples
    length, begun = whole_number(length, "length"), 0 if prime is None else len(prime)
    if begun >= length:
        raise ValueError(f"`prefix` must be shorter than `length`, {length}, got {begun}.")
    return Request(
        num_samples=length - begun,
        seed=seed,
        rows=tuple(range(num)),
        frames=None if frames is None else _repeat_frames(frames, num),
        speaker=None if number is None else np.full([num], number, np.int32),
        prime=None if prime is None else np.repeat(prime[None], num, 0),
        temperature=1.0 if draw.temperature is None else draw.temperature,
    )


def _repeat_frames(condition: Any, num: int) -> np.ndarray | RepeatedFrames:
    if isinstance(condition, FramesInPieces):
        return RepeatedFrames(condition, num)
    return np.repeat(np.asarray(condition)[None], num, 0)


def _statistics_of(network: Any) -> FrameStatistics | None:
    conditioner = network.conditioner
    if conditioner is None or not np.any(conditioner.mean.numpy()):
        return None
    mean, deviation = conditioner.mean.numpy(), conditioner.deviation.numpy()
    spread = np.sqrt(np.mean(deviation**2) + np.var(mean))
    return FrameStatistics(FULL_SCALE, float(mean.mean()), float(spread))


def spec_of_speech(kind: str, stored: dict, data: DataConfig, network: Any) -> dict[str, Any]:
    """Return the content of model.json for a speech model; `stored` is its run's config.json."""
    mel, pitch = data.mel(network.hop_samples), data.pitch(network.hop_samples)
    return {
        "kind": kind,
        "preset": stored["preset"],
        "sample_rate_hz": data.sample_rate_hz,
        "hop_samples": network.hop_samples,
        "receptive_field_samples": network.receptive_field,
        "gain_db": stored["gain_db"],
        "features": {
            "mel": mel.to_dict() if mel else None,
            "f0": pitch.to_dict() if pitch else None,
        },
        "speakers": stored["speakers"],
        **{name: stored[name] for name in ("level_db", "frames") if name in stored},
    }


def front_of(spec: dict[str, Any], data: DataConfig, network: Any) -> SoundFront:
    """Return the front of a network that was trained on `data`, given its model.json."""
    config = network.config
    return SoundFront(
        data,
        config.hop_samples,
        spec["gain_db"],
        tuple(spec["speakers"])[: config.speakers],
        spec.get("level_db", data.level_db),
        read_statistics(spec) or _statistics_of(network),
        float(spec.get("temperature", 1.0)),
        spec.get("refine", 0),
    )
