"""A trained voice, which turns text into mel frames with espeak-ng and NumPy."""

import contextlib
import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.files import read_npz
from onepass.foundation.rules import UserError, dataclass_from
from onepass.speech.frame_density import STATISTICS, draw_differences, initial_density, no_pause
from onepass.speech.network import (
    Networks,
    VoiceConfig,
    contexts,
    initial_weights,
    numbers,
    phoneme_of_frame,
    positions,
)
from onepass.speech.phonemes import (
    COMMA,
    MAX_SPEED,
    MIN_SPEED,
    PLAIN,
    QUESTION,
    START,
    STOP,
    Mark,
    Phoneme,
    TextError,
    TooLongError,
    as_statements,
    phonemes,
    question_rise,
)

SPEC_FILE, WEIGHTS_FILE = "model.json", "weights.npz"
KIND = "speech-acoustic"
MAX_FRAMES = 12_000
MAX_PHONEME_FRAMES = 60  # longest phoneme
# The recordings are single sentences with hardly any silence, so pauses get minimum lengths.
LEAST_FRAMES = {START: 4, COMMA: 8, STOP: 24, QUESTION: 24}
LAST_FRAMES = 10


@dataclasses.dataclass(frozen=True)
class Reading:
    """The phonemes of a text with their numbers of frames and encoder states, before mel frames."""

    phonemes: Sequence[Phoneme]
    lengths: np.ndarray
    hidden: np.ndarray

    def __len__(self) -> int:
        return int(self.lengths.sum())


@dataclasses.dataclass(frozen=True)
class Voice:
    """The networks of a text front end, with their weights and settings."""

    config: VoiceConfig
    symbols: dict[str, int]
    # Float32 weights of the networks; `harmonics` [steps, bands] of `training.harmonics_table`;
    # `mel_mean`, `mel_std` and `mel_stretch` [bands]; with a density, those of `frame_density`.
    weights: dict[str, np.ndarray]
    spec: dict[str, Any]

    @functools.cached_property
    def networks(self) -> Networks:
        """The networks on NumPy."""
        return Networks(np, self.config, self.weights)

    def frames(self, text: str, speed: float = 1.0) -> np.ndarray:
        """Return mel frames of a text, float32 [frames, bands], on the scale of `above_silence`."""
        return self.speak_frames(self.reading(text, speed))

    def reading(
        self,
        text: str,
        speed: float = 1.0,
        marks: Mapping[str, Mark] | None = None,
        style: Mark = PLAIN,
    ) -> "Reading":
        """Return the `Reading` of a text, cheap; `marks` and `style` are those of `phonemes`."""
        return self.reading_of(phonemes(text, marks, style), speed)

    def reading_of(self, asked: Sequence[Phoneme], speed: float = 1.0) -> "Reading":
        """Return the `Reading` of phonemes; TextError: it has more than MAX_FRAMES frames."""
        spoken = asked if self.speaks_questions else as_statements(asked)
        lengths, hidden = self.durations(spoken, speed)
        reading = Reading(asked, lengths, hidden)
        self.check_length(len(reading), MAX_FRAMES)
        return reading

    def check_length(self, frames: int, most: int) -> None:
        """Raise TooLongError if there are more than `most` frames."""
        if frames > most:
            raise TooLongError(
                f"The text may last {most * self.hop_seconds:g} s at most, got "
                f"{frames * self.hop_seconds:.0f} s; speak it in parts."
            )

    def speak_frames(self, reading: "Reading", pause: Callable[[], None] = no_pause) -> np.ndarray:
        """Return the mel frames of a reading, float32 [frames, bands]; `pause` may end the work."""
        pitch = self.pitch(reading.hidden, reading.lengths)
        raised = np.array([phoneme.octaves for phoneme in reading.phonemes], np.float32)
        pitch[:, 0] += np.repeat(raised, reading.lengths)
        if not self.speaks_questions:
            pitch[:, 0] += question_rise(reading.phonemes, reading.lengths)
        pause()
        return self.mel(reading.hidden, reading.lengths, pitch, pause=pause)

    @property
    def speaks_questions(self) -> bool:
        """True if the training data had questions, or if unknown."""
        return bool(self.spec.get("questions", True))

    @property
    def hop_seconds(self) -> float:
        """Time from one frame to the next, in seconds."""
        return self.spec["mel"]["hop_samples"] / self.spec["mel"]["sample_rate_hz"]

    def durations(
        self, spoken: Sequence[Phoneme], speed: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each phoneme's number of frames, int [phonemes], and the hidden states."""
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise TextError(f"`speed` must be in [{MIN_SPEED:g}, {MAX_SPEED:g}], got {speed:g}.")
        hidden, logs = self.networks.encoder(numbers(spoken, self.symbols), contexts(spoken), 1.0)
        exact = np.exp(np.clip(logs.astype(np.float64), 0.0, np.log(MAX_PHONEME_FRAMES)))
        exact *= self.spec["duration_stretch"]
        least = [LEAST_FRAMES.get(p.symbol, 1) for p in spoken[:-1]] + [LAST_FRAMES]
        exact = np.maximum(exact, least) / speed * [phoneme.stretch for phoneme in spoken]
        written = np.array([np.nan if p.seconds is None else p.seconds for p in spoken])
        return _whole(np.where(np.isnan(written), exact, written / self.hop_seconds)), hidden

    def pitch(self, hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return log2(F0 / 200 Hz) and voicing, 0 or 1, of each frame, float32 [frames, 2]."""
        where = phoneme_of_frame(lengths)
        made = self.networks.melody(hidden[where], positions(lengths), 1.0)
        return np.stack([made[:, 0], made[:, 1] > 0.0], axis=1).astype(np.float32)

    def mel(
        self,
        hidden: np.ndarray,
        lengths: np.ndarray,
        pitch: np.ndarray | None = None,
        temperature: float | None = None,
        pause: Callable[[], None] = no_pause,
    ) -> np.ndarray:
        """Return the mel frames of phonemes with these lengths, float32 [frames, bands].

        The `pitch` is a result of the method, or a recording's; None: the voice's own.
        `temperature` is a factor of the noise when a voice with a density draws frames: 0 returns
        the expected frames, None means the voice's own. The noise has a fixed seed.
        """
        pitch = self.pitch(hidden, lengths) if pitch is None else pitch
        temperature = self.temperature if temperature is None else temperature
        weights, standard = self.weights, self.expected_frames(hidden, lengths, pitch)
        if temperature and self.config.density_channels:
            noise = np.random.RandomState(0).standard_normal(standard.shape)  # a frozen stream
            scaled = (temperature * noise).astype(np.float32)
            where = positions(lengths)
            pause()
            standard += draw_differences(self.networks, standard, pitch, where, scaled, pause)
        frames = weights["mel_mean"] + weights["mel_std"] * weights["mel_stretch"] * standard
        return np.maximum(frames, 0.0).astype(np.float32)

    def expected_frames(
        self, hidden: np.ndarray, lengths: np.ndarray, pitch: np.ndarray
    ) -> np.ndarray:
        """Return the expected frames, float32 [frames, bands], in standard deviations."""
        spread, harmonics = hidden[phoneme_of_frame(lengths)], self.harmonics(pitch[:, 0])
        standard = self.networks.mel(spread, positions(lengths), pitch, harmonics, 1.0)
        return standard.astype(np.float32)

    @property
    def draws(self) -> bool:
        """True if frames are drawn from a density; False if they are the expected frames."""
        return bool(self.temperature and self.config.density_channels)

    @property
    def temperature(self) -> float:
        """Temperature at which frames are drawn from their density; 0.0 if there is none."""
        return float(self.spec.get("temperature", 0.0))

    def harmonics(self, octaves: np.ndarray) -> np.ndarray:
        """Return harmonics for log2(F0 / 200 Hz), [frames, bands], in standard deviations."""
        return harmonics_of(self.weights, self.spec["harmonics"], octaves)

    def check(self, spec: dict[str, Any]) -> None:
        """Raise UserError unless the model with this model.json reads this voice's frames."""
        features = spec.get("features")
        reads = features if isinstance(features, dict) else {}
        if not reads.get("mel"):
            raise UserError("Text can be spoken by models that read mel frames; this one does not.")
        if reads.get("f0"):
            raise UserError("Text gives only mel frames; this model also reads F0 frames.")
        own, other = self.spec["mel"], reads["mel"]
        for name, value in own.items():
            if other.get(name) != value:
                raise UserError(
                    f"Text gives mel frames with `{name}` {value}; this model reads them with "
                    f"{other.get(name)}. `python -m onepass.speech.train` makes a voice for it."
                )


def harmonics_of(
    weights: dict[str, np.ndarray], table: dict[str, float], octaves: np.ndarray
) -> np.ndarray:
    """Return a table's harmonics at clipped octaves, in std of frames, float32 [frames, bands]."""
    rows = weights["harmonics"]
    step = (octaves + np.log2(200.0 / table["low_hz"])) * table["steps_per_octave"]
    step = np.clip(step, 0.0, len(rows) - 1.001)
    low = step.astype(np.int64)
    part = (step - low)[:, None].astype(np.float32)
    nats = rows[low] * (1.0 - part) + rows[low + 1] * part
    return (nats / (table["range_nats"] * weights["mel_std"])).astype(np.float32)


def _whole(exact: np.ndarray) -> np.ndarray:
    """Round lengths to integers of at least 1, without accumulating rounding errors."""
    ends = np.rint(np.cumsum(np.maximum(exact, 1.0))).astype(np.int64)
    return np.diff(ends, prepend=0)


def load_voice(folder: Path) -> Voice:
    """Load a voice from a folder that `onepass.speech.train` wrote."""
    try:
        spec = json.loads((folder / SPEC_FILE).read_text("utf-8"))
        config = dataclass_from(VoiceConfig, spec["config"])
        stored = read_npz(folder / WEIGHTS_FILE)
        weights = {name: array.astype(np.float32) for name, array in stored.items()}
        _check_weights(weights, config)
        symbols = {name: number + 1 for number, name in enumerate(spec["symbols"])}
        return Voice(config, symbols, weights, spec)
    except (OSError, RecursionError, UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} holds no voice that this version can read: {error}.") from error


def _check_weights(weights: dict[str, np.ndarray], config: VoiceConfig) -> None:
    shapes = {name: value.shape for name, value in initial_weights(config).items()}
    bands = (config.bands,)
    shapes |= {"mel_mean": bands, "mel_std": bands, "mel_stretch": bands}
    density = {name: value.shape for name, value in initial_density(config).items()}
    if density:
        density |= dict(zip(STATISTICS, (bands, 2 * bands, 2 * bands), strict=True))
    shapes |= density
    for name, shape in shapes.items():
        if weights[name].shape != shape or not np.isfinite(weights[name]).all():
            raise ValueError(f"`{name}` must hold {shape} numbers, got {weights[name].shape}")
    if weights["harmonics"].shape[1:] != bands or len(weights["harmonics"]) < 2:
        raise ValueError(f"`harmonics` must have {config.bands} bands")


def shipped_voice(spec: dict[str, Any] | None = None) -> Voice:
    """Return the shipped voice for the frames of model.json, or the first voice if none fits."""
    if spec is not None:
        for voice in _voices():
            with contextlib.suppress(UserError):
                voice.check(spec)
                return voice
    return _voices()[0]


@functools.lru_cache(maxsize=1)
def _voices() -> tuple[Voice, ...]:
    folder = Path(str(importlib.resources.files("onepass.speech"))) / "shipped"
    return tuple(load_voice(folder / name) for name in ("kathleen-22k", "kathleen-16k"))
