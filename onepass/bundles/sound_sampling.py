"""Sounds, and sequences of users' models, generated whole or in chunks by a bundle's signatures."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bundles.condition_inputs import FRAMES, has_named
from onepass.bundles.errors import InvalidInput, shorten_text
from onepass.bundles.numba_engine import Engine
from onepass.bundles.sampling import Request, Sampling, only_output
from onepass.bundles.signature import (
    CHUNK,
    COMPILED,
    PROMPTED,
    PROMPTED_CHUNK,
    SPEAKER,
    Arrays,
    check_input,
)
from onepass.draw import Draw
from onepass.foundation.arguments import whole_number
from onepass.foundation.errors import UserError

CHUNK_SAMPLES = 32_000  # approximate
SOUND_OPTIONS = frozenset({"temperature", "speaker", "refine", "row"})


def check_speaker(known: Sequence[str], name: str | None) -> None:
    """Raise InvalidInput if the model has no speaker called `name`; None is always valid."""
    if name is not None and name not in known:
        rule = f"one of {', '.join(known)}, got `{shorten_text(name)}`"
        one_voice = "`speaker` must not be given: the model has one voice."
        raise InvalidInput(f"`speaker` must be {rule}." if known else one_voice)


class _Refinement:
    def __init__(self, spec: Mapping[str, Any], passes: int):
        # Imported here because a bundle needs neither package for anything else.
        from distill import refinement
        from wavenet.features import MelConvention, mel

        self._refined, self._mel_of = refinement.refine_chunks, mel.mel_of
        self._convention = MelConvention.from_dict(spec["features"]["mel"])
        self._refiner = refinement.Refiner(self._convention, passes)
        self.ahead_samples = self._refiner.reach_frames * self._convention.hop_samples

    def __call__(self, chunks: Iterator[np.ndarray], condition: np.ndarray) -> Iterator[np.ndarray]:
        frames = np.asarray(condition)[:, : self._convention.bands]
        mel = self._mel_of(frames, self._convention)
        return self._refined(chunks, mel, self._refiner)


def restore_level(sound: np.ndarray, condition: Any) -> np.ndarray:
    """Scale a sound to its recording's level, if `condition` consists of a recording's frames."""
    gain_db = getattr(condition, "gain_db", 0.0)
    if not gain_db:
        return sound
    # Such frames come from `wavenet`, which a bundle does not need otherwise.
    from wavenet.data.recorded_level import at_recorded_level

    return at_recorded_level(sound, gain_db)


class SoundSampling(Sampling):
    """Methods of a bundle that has the signature `chunk`."""

    _engine: Engine | None

    @property
    def sample_rate_hz(self) -> Any:
        """Sample rate of the model's sound, in Hz; None if it does not generate sound."""
        return self.spec.get("sample_rate_hz")

    @property
    def hop_samples(self) -> int:
        """Hop length of the frames, in samples; 1 for a model without frames."""
        return self.spec["hop_samples"]

    @property
    def conditional(self) -> bool:
        """True if the model generates sound from frames."""
        return FRAMES in self._inputs_of(COMPILED)

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """Names of the model's speakers, by index; empty for a model without speakers."""
        info = self._inputs_of(COMPILED).get(SPEAKER)
        return () if info is None else tuple(self.spec["speakers"][: int(info.high or 0) + 1])

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames of a recording, float32 [samples], at its stored level and rate.

        The frames, float32 [frames, channels], keep that level, and `sample` scales its audio to
        it. This method needs the package `wavenet`.
        """
        if not self.conditional or "config" not in self.spec:  # the condition is the user's own
            raise UserError(f"`{self.name}` reads no frames of a recording.")
        try:
            from onepass.bundles import frames
        except ImportError as error:
            raise UserError(f"Features of a recording need the package {error.name}.") from error
        return frames.front_of(self.spec).frames(waveform)

    def _sounds(self, draw: Draw) -> np.ndarray:
        draw = self._read_recording(draw)
        condition = draw.condition
        request = self._request(draw)
        refinement = self._refinement(condition, draw.refine)
        if self._engine is not None:
            whole = self._engine.whole(request)
        else:
            signature = self._signature_for(request, COMPILED, PROMPTED)
            whole = np.concatenate(
                [only_output(each) for each in self._outputs_of_rows(signature, request)]
            )
            whole = whole[:, : request.shape[0]].astype(self._dtype)
        if refinement is not None and condition is not None:
            whole = np.concatenate(list(refinement(iter([whole]), condition)), axis=1)
        return restore_level(whole, condition)

    def _sound_chunks(self, draw: Draw, chunk: int | None) -> Iterator[np.ndarray]:
        """Return an iterator over sounds in chunks, of which the first is short to arrive early.

        The refining passes run after the program, whose signatures return unrefined audio. A single
        row may be given for all rows even in a condition with a time axis.
        """
        draw = self._read_recording(draw)
        condition = draw.condition
        request = self._request(draw)
        with self._own_errors():
            samples = whole_number(CHUNK_SAMPLES if chunk is None else chunk, "chunk")
            refine = None if draw.refine is None else whole_number(draw.refine, "refine", least=0)
        refinement = self._refinement(condition, refine)
        # The first chunk includes the look-ahead of its refinement.
        ahead = 0 if refinement is None else refinement.ahead_samples
        if self._engine is not None:
            sound = self._engine.stream(request, samples, ahead)
        else:
            opening = self.spec["serving"]["streaming"]["pieces"][0] + ahead
            sound = self.stream_chunks(request, samples, opening)
        if refinement is not None and condition is not None:
            sound = refinement(sound, condition)
        return (restore_level(part, condition) for part in sound)

    def _read_recording(self, draw: Draw) -> Draw:
        recording = draw.condition
        if self._is_own or not isinstance(recording, np.ndarray) or recording.ndim != 1:
            return draw
        length = len(recording) if draw.length is None else draw.length
        return dataclasses.replace(draw, condition=self.frames(recording), length=length)

    def _request(self, draw: Draw) -> Request:
        condition, speaker = draw.condition, draw.speaker
        known = self._inputs_of(CHUNK)
        if not known:
            raise InvalidInput(f"The model `{self.name}` cannot stream: call `sample`.")
        length, info = self._length(condition, draw.length), known["temperature"]
        heat: Any = info.default if draw.temperature is None else draw.temperature
        if np.ndim(heat) and self._engine is not None:
            raise InvalidInput("`temperature` must be one number for the engine `numba`.")
        check_speaker(self.known_speakers, speaker)
        sides = self.spec["serving"]["streaming"]

        def conditions(rows: int, length: int) -> Arrays:
            found = self._conditions(condition, for_all=True)(rows, length)
            if FRAMES in found:
                found[FRAMES] = check_input(FRAMES, known[FRAMES], found[FRAMES])
            if SPEAKER in known:
                index = self.known_speakers.index(speaker or self.known_speakers[0])
                found[SPEAKER] = np.full([rows], index, np.int32)
            return found

        with self._own_errors():
            request = Request.check_draw(
                dataclasses.replace(draw, length=length, temperature=heat),
                "time",
                conditions,
                hop_samples=sides["hop_samples"],
                side_frames=sides["side_frames"],
            )
        check_input("temperature", info, request.temperature)
        self._signature_for(request, CHUNK, PROMPTED_CHUNK)  # raises an error for a prompt
        return request

    def _refinement(self, condition: np.ndarray | None, refine: int | None) -> _Refinement | None:
        mel = (self.spec.get("features") or {}).get("mel")
        default = int(self.spec.get("refine", 0)) if hasattr(condition, "gain_db") else 0
        passes = default if refine is None else refine
        if passes < 0 or (passes and (not mel or self.spec.get("kind") == "wavenet")):
            rule = "at least 0" if passes < 0 else "0 for a model that is not a student of a mel"
            raise InvalidInput(f"`refine` must be {rule}, got {passes}.")
        return _Refinement(self.spec, passes) if passes else None

    def _length(self, condition: Any, length: int | None) -> int:
        most = None
        if not has_named(self.spec):
            if self.conditional and condition is None:
                raise InvalidInput(f"`condition` must be given for {self.name}.")
            most = np.shape(condition)[-2] * self.hop_samples if np.ndim(condition) > 1 else None
        length = most if length is None else length
        if length is None:
            raise InvalidInput("`length` must be given if there are no frames.")
        with self._own_errors():
            length = whole_number(length, "length")
        if most is not None and length > most:
            raise InvalidInput(f"`length` must be between 1 and {most}, got {length}.")
        return length
