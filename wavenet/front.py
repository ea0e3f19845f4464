"""`SoundFront`: recordings and frames become conditions, for models and their trained networks."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from onepass.foundation.rules import (
    Checked,
    Count,
    NonNegative,
    UserError,
    check_seed,
    whole_number,
)
from onepass.foundation.runtime import check_eager
from onepass.interface import Draw
from wavenet.config import DataConfig, MelConvention
from wavenet.data import audio
from wavenet.features.frames import (
    FramesInPieces,
    FrameStatistics,
    RepeatedFrames,
    above_silence,
    fundamental_frequency,
    log_f0_features,
    mel_pieces,
    mel_spectrogram,
    num_frames,
    read_statistics,
)


@dataclasses.dataclass(frozen=True)
class SoundFront:
    """The front of models of sound: from a recording and a speaker's name to a condition.

    Attributes:
      data: settings of the model's training data.
      hop_samples: hop length of the conditioning frames in samples.
      gain_db: gain that is applied to recordings before anything else, in dB.
      speakers: names of the speakers that the model can imitate, in the order of their numbers.
      level_db: median RMS of the training recordings after the gain, in dB of full scale, or the
        configured level if it was not measured, or None.
      statistics: statistics of the mel frames in training; None if unknown.
      temperature: the default temperature.
      refine: the default number of refining passes for frames of recordings.
    """

    data: DataConfig
    hop_samples: int
    gain_db: float
    speakers: tuple[str, ...] = ()
    level_db: float | None = None
    statistics: FrameStatistics | None = None
    temperature: float = 1.0
    refine: int = 0

    makes: ClassVar[str] = "sound"

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the sounds in Hz."""
        return self.data.sample_rate_hz

    @property
    def mel(self) -> MelConvention | None:
        """The convention of the mel frames; None without mel frames."""
        return self.data.mel(self.hop_samples)

    @property
    def conditional(self) -> bool:
        """True if the model needs conditioning frames."""
        return bool(self.data.features)

    def read(self, draw: Draw) -> Draw:
        """Return a request in which the condition is frames, and the speaker a number.

        A recording [samples] as the condition is replaced by its frames; without a length, the
        sound is as long. The prefix is brought to the level of the condition's recording.
        """
        check_eager()
        condition, length, prefix = draw.condition, draw.length, draw.prefix
        is_recording = isinstance(condition, np.ndarray) and condition.ndim == 1
        if is_recording and self.conditional:
            length = len(condition) if length is None else length
            condition = self.frames(condition)
        if prefix is not None:
            waveform = audio.check_samples(prefix, "prefix")
            prefix = audio.amplify(waveform, audio.gain_of(condition))
        default = self.refine if audio.is_recorded(condition) else 0
        found: dict[str, Any] = {
            "length": length,
            "condition": condition,
            "prefix": prefix,
            "speaker": self.speaker_number(draw.speaker),
            "temperature": self.temperature if draw.temperature is None else draw.temperature,
            "refine": default if draw.refine is None else draw.refine,
        }
        return dataclasses.replace(draw, **found)

    def read_elements(
        self, elements: np.ndarray, condition: Any, speaker: str | None
    ) -> tuple[Any, Any, int | None]:
        """Return a waveform at the model's level, its frames, and the number of its speaker.

        Of several waveforms [num, samples], with frames [frames, channels] for all of them or for
        each, the first two are lists.
        """
        if np.ndim(elements) == 2:
            of_each = isinstance(condition, list | tuple) or np.ndim(condition) == 3
            each = condition if of_each else [condition] * len(elements)
            if len(each) != len(elements):
                raise UserError(f"`condition` must have {len(elements)} rows, got {len(each)}.")
            rows = zip(elements, each, strict=True)
            read = [self.read_elements(waveform, own, speaker) for waveform, own in rows]
            waveforms, frames, _ = map(list, zip(*read, strict=True))
            return waveforms, frames, self.speaker_number(speaker)
        waveform = audio.check_samples(elements)
        gain_db = condition.gain_db if isinstance(condition, audio.RecordedFrames) else self.gain_db
        return audio.amplify(waveform, gain_db), condition, self.speaker_number(speaker)

    def finish(self, sound: np.ndarray, draw: Draw) -> np.ndarray:
        """Return a sound at the level of the condition's recording."""
        return audio.at_recorded_level(sound, audio.gain_of(draw.condition))

    def frames(self, waveform: np.ndarray) -> audio.RecordedFrames:
        """Return the conditioning frames of a recording, after bringing it to the model's level.

        A constant offset is taken out first.

        The frames keep the applied gain (`frames.gain_db`, in dB), so `sample(condition=frames)`
        returns a sound at the recording's level; its peaks are compressed to stay below full scale
        if the recording was attenuated. With `np.asarray(frames)` it has the model's level.

        Args:
          waveform: float32 [samples] at `sample_rate_hz`, at its stored level.

        Returns:
          float32 [frames, channels].

        Raises:
          ValueError: the waveform is empty, or is not one-dimensional, floating and finite.
        """
        waveform = audio.without_offset(audio.check_samples(waveform))
        gain_db = self.level_gain_db(waveform)
        frames = self.frames_at_level(audio.amplify(waveform, gain_db))
        return audio.recorded_frames(frames, gain_db)

    def level_gain_db(self, waveform: np.ndarray) -> float:
        """Return the gain, in dB, that brings a recording to the model's level."""
        return audio.level_gain_db(waveform, self.gain_db, self.level_db)

    def frames_at_level(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames of a waveform that is already at the model's level."""
        waveform = audio.check_samples(waveform)
        mel, pitch = self.mel, self.data.pitch(self.hop_samples)
        columns = []
        if mel is not None:
            columns.append(above_silence(mel_spectrogram(waveform, mel), mel))
        if pitch is not None:
            f0_hz, voiced = fundamental_frequency(waveform, pitch)
            columns.append(log_f0_features(f0_hz, voiced, pitch.reference_hz))
        return np.concatenate(columns, axis=1)

    def frames_in_pieces(self, recording: audio.RecordingInPieces) -> FramesInPieces:
        """Return the frames of a long recording, with only a few in memory at a time.

        They equal the result of `frames_at_level` for the recording at the model's level; waveforms
        generated from them have the model's level, too. The model must read only mel frames.
        """
        mel: Any = self.mel
        gain_db = self.level_gain_of(recording)

        def pieces() -> Iterator[np.ndarray]:
            blocks = (audio.amplify(block, gain_db) for block in recording.blocks())
            for piece in mel_pieces(blocks, recording.samples, mel):
                yield above_silence(piece, mel)

        shape = (num_frames(recording.samples, mel.hop_samples), mel.bands)
        return FramesInPieces(shape, pieces, 0.0)

    def level_gain_of(self, recording: audio.RecordingInPieces) -> float:
        """Return the gain, in dB, that brings a recording in pieces to the model's level."""
        rms_db, peak_db = recording.rms_db, recording.peak_db
        return audio.gain_of_levels_db(rms_db, peak_db, self.gain_db, self.level_db)

    def speaker_number(self, name: str | None) -> int | None:
        """Return the number of the speaker `name`, by default 0; None if the model has no speakers.

        Raises:
          UserError: the model has no speaker of this name.
        """
        known = self.speakers
        if not known:
            if name is not None:
                raise UserError(f"This model knows no speakers, got {name!r}.")
            return None
        if name is not None and name not in known:
            raise UserError(f"There is no speaker {name!r}; there are {', '.join(known)}.")
        return 0 if name is None else known.index(name)


FULL_SCALE = 1.15  # upper bound of a frame's values, reached by a full-scale sine in a narrow band


@dataclasses.dataclass(frozen=True)
class Request(Checked):
    """A request for a batch of waveforms.

    Attributes:
      rows: index of each waveform in the seed's sequence of waveforms, one per batch row.
      frames: float32 [batch, frames, channels], covering the prime as well, or None.
      prime: int32 levels [batch, samples] that the waveforms continue, or None; students have none.
    """

    num_samples: Count
    seed: int = 0
    rows: tuple[int, ...] = (0,)
    frames: np.ndarray | RepeatedFrames | None = None
    speaker: np.ndarray | None = None
    prime: np.ndarray | None = None
    temperature: NonNegative = 1.0


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
    frames = None if frames is None else frames[None]
    number = None if speaker is None else np.array([speaker], np.int32)
    return Request(num_samples, frames=frames, speaker=number)


def batch_of(draw: Draw, hop_samples: int, prime: np.ndarray | None = None) -> Request:
    """Return the `Request` of a draw whose condition is frames, and whose speaker is a number.

    Every waveform continues the `prime`, int32 levels [samples], which the draw's length includes.
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
    repeated: Any = None
    if isinstance(frames, FramesInPieces):
        repeated = RepeatedFrames(frames, num)
    elif frames is not None:
        repeated = np.repeat(np.asarray(frames)[None], num, 0)
    return Request(
        num_samples=length - begun,
        seed=seed,
        rows=tuple(range(num)),
        frames=repeated,
        speaker=None if number is None else np.full([num], number, np.int32),
        prime=None if prime is None else np.repeat(prime[None], num, 0),
        temperature=1.0 if draw.temperature is None else draw.temperature,
    )


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
        "features": {"mel": mel and mel.to_dict(), "f0": pitch and pitch.to_dict()},
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
