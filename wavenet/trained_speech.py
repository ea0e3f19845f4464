"""Code that all trained speech models share: requests, properties and model.json."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from onepass.draw import Draw
from onepass.foundation.arguments import checked_seed, whole_number
from onepass.foundation.field_rules import at_least, require
from onepass.foundation.tensorflow_state import check_eager
from onepass.interface import Model
from wavenet.feature_extractor import FeatureExtraction
from wavenet.features.frame_statistics import FrameStatistics, stored_statistics
from wavenet.features.frames_in_pieces import FramesInPieces, RepeatedFrames
from wavenet.presets import DataConfig

FULL_SCALE = 1.15  # upper bound of a frame's values, reached by a full-scale sine in a narrow band


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a batch of waveforms.

    Attributes:
      num_samples: length of each waveform in samples, without the prime.
      seed: random seed, an integer in [0, 2^64).
      rows: index of each waveform in the seed's sequence of waveforms, one per batch row.
      frames: float32 [batch, frames, channels], covering the prime as well, or None.
      speaker: int32 [batch] or None.
      prime: int32 levels [batch, samples] that the waveforms continue, or None; students have none.
      temperature: 1 samples the model; lower values are closer to its mode.
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
    """Counts per batch row of the latest generation, for samplers that draw many samples per pass.

    Attributes:
      passes: number of passes of the network.
      samples: number of samples drawn.
      corrected: number of samples that differ from the draft's proposals.
    """

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


class TrainedSpeechModel(Model, FeatureExtraction):
    """A mixin for trained speech models: properties, sampling and requests."""

    network: Any
    speakers: tuple[str, ...]
    spec: dict[str, Any]

    makes: ClassVar[str] = "sound"
    compresses: ClassVar[bool] = False  # whether there are `compress` and `decompress`
    takes_pieces: ClassVar[bool] = False  # whether `stream` accepts `FramesInPieces`

    @property
    def kind(self) -> str:
        """The kind of model in model.json: "wavenet" or "parallel-wavenet"."""
        return str(self.spec["kind"])

    @property
    def hop_samples(self) -> int:
        """Hop length of the conditioning frames in samples."""
        return self.network.config.hop_samples

    @property
    def level_db(self: Any) -> float | None:
        """Median RMS of the training recordings after the gain, in dB of full scale.

        It is the configured level if it was not measured, or None.
        """
        return self.spec.get("level_db", self.data.level_db)

    @property
    def conditional(self) -> bool:
        """Return whether the model needs conditioning frames."""
        return self.network.config.feature_channels > 0

    @property
    def frame_statistics(self) -> FrameStatistics | None:
        """Statistics of the mel frames in training; None if unknown."""
        return stored_statistics(self.spec) or _standardised_by(self.network)

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """Names of the speakers that the model can imitate; empty for a model without speakers."""
        return self.speakers[: self.network.config.speakers]

    @property
    def temperature(self) -> float:
        """The default temperature: from model.json, or 1 if it has none."""
        return float(self.spec.get("temperature", 1.0))

    def read_recording(self, draw: Draw) -> Draw:
        """Return a request in which a recording [samples] as the condition is replaced by frames.

        Without a length the sound is as long as the recording.
        """
        recording = draw.condition
        is_recording = isinstance(recording, np.ndarray) and recording.ndim == 1
        if not is_recording or not self.conditional:
            return draw
        length = len(recording) if draw.length is None else draw.length
        return dataclasses.replace(draw, condition=self.frames(recording), length=length)

    def _request(
        self: Any,
        draw: Draw,
        frames: np.ndarray | FramesInPieces | None,
        prefix: np.ndarray | None = None,
    ) -> Request:
        """Return a `Request` for frames of all rows; `prefix` is int32 levels [samples]."""
        check_eager()
        seed, num, length = checked_seed(draw.seed), whole_number(draw.num, "num"), draw.length
        if length is None:
            if frames is None:
                raise ValueError("`length` must be given when there is no `condition`.")
            length = len(frames) * self.hop_samples
        length, begun = whole_number(length, "length"), 0 if prefix is None else len(prefix)
        if begun >= length:
            raise ValueError(f"`prefix` must be shorter than `length`, {length}, got {begun}.")
        number = self.speaker_number(draw.speaker)
        return Request(
            num_samples=length - begun,
            seed=seed,
            rows=tuple(range(num)),
            frames=None if frames is None else _repeat_frames(frames, num),
            speaker=None if number is None else np.full([num], number, np.int32),
            prime=None if prefix is None else np.repeat(prefix[None], num, 0),
            temperature=self.temperature if draw.temperature is None else draw.temperature,
        )


def _repeat_frames(condition: Any, num: int) -> np.ndarray | RepeatedFrames:
    """Return the frames repeated for `num` batch rows, [num, frames, channels]."""
    if isinstance(condition, FramesInPieces):
        return RepeatedFrames(condition, num)
    return np.repeat(np.asarray(condition)[None], num, 0)


def _standardised_by(network: Any) -> FrameStatistics | None:
    """Return frame statistics computed from a conditioner's statistics; None if there are none."""
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
