"""A bundle that generates audio, as a whole or chunk by chunk."""

import dataclasses
import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foundation.errors import UserError
from serving.bundles.bundle import Backend, Bundle, Program
from serving.bundles.numba_engine import Engine, EngineRequest, engine_for
from serving.bundles.signature import COMPILED, LOG_PROB, PLAIN, Arrays, checked, example
from serving.errors import InvalidInput, shortened

CHUNK, STATE = "chunk", "state_"
CHUNK_SAMPLES = 32_000  # approximate
WHOLE = (PLAIN, COMPILED)


def check_speaker(known: Sequence[str], name: str | None) -> None:
    """Raise InvalidInput unless a model has a speaker of this name; None stands for its first."""
    if name is not None and name not in known:
        rule = f"one of {', '.join(known)}, got `{shortened(name)}`"
        one_voice = "`speaker` must not be given: the model has one voice."
        raise InvalidInput(f"`speaker` must be {rule}." if known else one_voice)


class _Refinement:
    """The passes of `distill.refinement`, which bring the magnitudes of chunks to their mel."""

    def __init__(self, spec: Mapping[str, Any], passes: int):
        # A bundle needs neither package for anything else.
        self._refinement: Any = importlib.import_module("distill.refinement")
        self._mel: Any = importlib.import_module("wavenet.features.mel")
        self._convention = self._mel.MelConvention.from_dict(spec["features"]["mel"])
        self._refiner = self._refinement.Refiner(self._convention, passes)
        self.ahead_samples = self._refiner.reach_frames * self._convention.hop_samples

    def __call__(self, chunks: Iterator[np.ndarray], condition: np.ndarray) -> Iterator[np.ndarray]:
        frames = np.asarray(condition)[:, : self._convention.bands]
        mel = self._mel.mel_of(frames, self._convention)
        return self._refinement.refined(chunks, mel, self._refiner)


def _levelled(sound: np.ndarray, condition: np.ndarray | None) -> np.ndarray:
    """Scale a sound to the level of the recording that its frames come from, if any."""
    gain_db = getattr(condition, "gain_db", 0.0)
    if not gain_db:
        return sound
    # Such frames come from `wavenet`, which a bundle does not otherwise need.
    level = importlib.import_module("wavenet.data.recorded_level")
    return level.at_recorded_level(sound, gain_db)


class AudioBundle(Bundle):
    """An exported WaveNet or student that generates audio."""

    kind = "sound"

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        super().__init__(path, spec, program)
        self._engine: Engine | None = engine_for(path, spec, backend)
        self.engine = "tensorflow" if self._engine is None else "numba"
        self._streaming = spec["serving"]["streaming"]
        self._output = next(name for name in spec["serving"]["cropped"] if name != LOG_PROB)

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second of the model's audio."""
        return self.spec["sample_rate_hz"]

    @property
    def hop_samples(self) -> int:
        """Samples between two frames; 1 for a model without frames."""
        return self.spec["hop_samples"]

    @property
    def conditional(self) -> bool:
        """True if the model generates from frames."""
        return "frames" in self.signatures[COMPILED].inputs

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """Names of the model's speakers, by index; empty for a model without speakers."""
        info = self.signatures[COMPILED].inputs.get("speaker")
        return () if info is None else tuple(self.spec["speakers"][: int(info.high or 0) + 1])

    @property
    def _batches(self) -> list[int]:
        return sorted(self.serving["allowed_batches"])

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a recording, to resynthesise it.

        The frames remember the recording's level, and `generate` scales their audio to it. Needs
        the package `wavenet`.

        Args:
          waveform: float32 [samples] at `sample_rate_hz`, at its stored level.

        Raises:
          UserError: the package is missing, or the model reads no frames.
        """
        if not self.conditional:
            raise UserError(f"{self.name} reads no frames.")
        try:
            extractor = importlib.import_module("serving.bundles.frames")
        except ImportError as error:
            raise UserError(f"Features of a recording need the package {error.name}.") from error
        return extractor.feature_extractor(self.spec).frames(waveform)

    def generate(
        self,
        condition: np.ndarray | None = None,
        *,
        seed: int = 0,
        row: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        speaker: str | None = None,
        temperature: float | None = None,
        refine: int | None = None,
    ) -> np.ndarray:
        """Generate sounds, float32 [num, samples] in [-1, 1].

        Args:
          condition: frames [frames, channels], or None for a model without. Audio of frames from
            `frames(...)` has that recording's level, other audio the model's.
          seed: seed of the noise.
          row: row of the seed for the first sound, which does not depend on `num`.
          num: number of sounds, from rows row, row + 1, ... of the seed.
          num_samples: number of samples of each sound; None: as many as the condition has.
          speaker: name of the speaker, for models with speakers; None: the first one.
          temperature: scales the noise; 1 samples the model. None: the model's default.
          refine: number of passes of `distill.refinement`, which bring the sound's magnitudes to
            the mel; they are not part of the program, whose signatures return the sound before
            them. None: the model's default for frames from `frames(...)` and those drawn for a
            text, else 0.

        Raises:
          InvalidInput: the model cannot generate this.
        """
        request = self._engine_request(condition, seed, row, num, num_samples, speaker, temperature)
        refinement = self._refinement(condition, refine)
        if self._engine is not None:
            whole = self._engine.whole(request)
        else:
            whole = np.concatenate([self._whole(group) for group in self._groups(request)])
        if refinement is not None and condition is not None:
            whole = np.concatenate(list(refinement(iter([whole]), condition)), axis=1)
        return _levelled(whole, condition)

    def stream(
        self,
        condition: np.ndarray | None = None,
        *,
        seed: int = 0,
        row: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        speaker: str | None = None,
        temperature: float | None = None,
        refine: int | None = None,
        chunk_samples: int = CHUNK_SAMPLES,
    ) -> Iterator[np.ndarray]:
        """Return the sounds of `generate` in chunks float32 [num, about chunk_samples].

        Chunks are generated as they are requested; the first one is shorter, so that it arrives
        early. Invalid requests raise InvalidInput at once, before the first chunk is requested.
        All other arguments mean the same in `generate`.
        """
        request = self._engine_request(condition, seed, row, num, num_samples, speaker, temperature)
        if chunk_samples < 1:
            raise InvalidInput(f"`chunk_samples` must be at least 1, got {chunk_samples}.")
        refinement = self._refinement(condition, refine)
        # The first chunk holds what its refinement looks ahead to.
        ahead = 0 if refinement is None else refinement.ahead_samples
        if self._engine is not None:
            sound = self._engine.stream(request, chunk_samples, ahead)
        else:
            groups = [
                self._streamed(group, chunk_samples, ahead) for group in self._groups(request)
            ]
            sound = (np.concatenate(chunks) for chunks in zip(*groups, strict=True))
        if refinement is not None and condition is not None:
            sound = refinement(sound, condition)
        return (_levelled(chunk, condition) for chunk in sound)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for inputs that `check` returned.

        Whole sounds are generated by the fastest backend, whichever signature is called.
        """
        if self._engine is not None and signature in WHOLE:
            return self._engine.call(inputs)
        return super().call(signature, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield signature and inputs of each call of `warm`: every piece in every batch size.

        With an engine, the program is compiled by the first call of `chunk`.
        """
        # A long piece, then a short one: no other length is ever compiled.
        samples = sum(dict.fromkeys(self._streaming["pieces"]))
        frames = -(-samples // self.hop_samples)
        names: tuple[str, ...] = (COMPILED, CHUNK)
        batches = self._batches[:1] if self._streaming["rows_alone"] else self._batches
        if self._engine is not None:
            names, batches = (COMPILED,), [1]
        for rows, name in itertools.product(batches, names):
            yield name, self._example(name, rows, frames)

    def _example(self, signature: str, rows: int, frames: int) -> Arrays:
        infos = self.signature(signature)
        arrays: Arrays = example(infos, rows, self.serving.get("padded"), frames)
        if not self.conditional:
            arrays["num_samples"][:] = frames
        return arrays

    def _engine_request(
        self,
        condition: Any,
        seed: int,
        row: int,
        num: int,
        num_samples: int | None,
        speaker: str | None,
        temperature: float | None,
    ) -> EngineRequest:
        for name, value, low in (("num", num, 1), ("seed", seed, 0), ("row", row, 0)):
            if value < low:
                raise InvalidInput(f"`{name}` must be at least {low}, got {value}.")
        for name, value, high in (("seed", seed, 2**64 - 1), ("row", row + num - 1, 2**31 - 1)):
            if value > high:
                raise InvalidInput(f"`{name}` must be at most {high}, got {value}.")
        infos = self.signature(CHUNK).inputs
        frames = self._frames(condition)
        length = self._length(frames, num_samples)
        speaker_index, rows = self._speaker(speaker), tuple(range(row, row + num))
        info = infos["temperature"]
        given = info.default if temperature is None else temperature
        temperature_value = checked("temperature", info, [given])[0]
        return EngineRequest(frames, length, seed, rows, speaker_index, float(temperature_value))

    def _refinement(self, condition: np.ndarray | None, refine: int | None) -> _Refinement | None:
        mel = (self.spec.get("features") or {}).get("mel")
        default = int(self.spec.get("refine", 0)) if hasattr(condition, "gain_db") else 0
        passes = default if refine is None else refine
        if passes < 0 or (passes and (not mel or self.spec.get("kind") == "wavenet")):
            rule = "at least 0" if passes < 0 else "0 for a model that is no student of a mel"
            raise InvalidInput(f"`refine` must be {rule}, got {passes}.")
        return _Refinement(self.spec, passes) if passes else None

    def _frames(self, condition: Any) -> np.ndarray | None:
        if (condition is None) == self.conditional:
            rule = "given" if self.conditional else "None"
            raise InvalidInput(f"`condition` must be {rule} for {self.name}.")
        if condition is None:
            return None
        return checked("frames", self.signature(CHUNK).inputs["frames"], [condition])[0]

    def _length(self, frames: np.ndarray | None, num_samples: int | None) -> int:
        most = None if frames is None else len(frames) * self.hop_samples
        length = most if num_samples is None else num_samples
        if length is None:
            raise InvalidInput("`num_samples` must be given where there is no `condition`.")
        if length < 1 or (most is not None and length > most):
            rule = "at least 1" if most is None else f"between 1 and {most}"
            raise InvalidInput(f"`num_samples` must be {rule}, got {length}.")
        return length

    def _speaker(self, name: str | None) -> int | None:
        known = self.known_speakers
        check_speaker(known, name)
        return known.index(name or known[0]) if known else None

    def _groups(self, request: EngineRequest) -> Iterator[EngineRequest]:
        """Split the request into parts of as many rows as a call may have."""
        most = self._batches[-1]
        for first in range(0, len(request.rows), most):
            yield dataclasses.replace(request, rows=request.rows[first : first + most])

    def _rows(self, request: EngineRequest) -> Arrays:
        """Return the inputs that name the noise, in an allowed batch, padded with the last row."""
        size = min(batch for batch in self._batches if batch >= len(request.rows))
        rows = [*request.rows, *[request.rows[-1]] * (size - len(request.rows))]
        inputs: Arrays = {
            "seed": np.full([size], np.uint64(request.seed).astype(np.int64)),
            "row": np.array(rows, np.int32),
            "temperature": np.full([size], request.temperature, np.float32),
        }
        if request.speaker is not None:
            inputs["speaker"] = np.full([size], request.speaker, np.int32)
        return inputs

    def _whole(self, request: EngineRequest) -> np.ndarray:
        inputs = self._rows(request)
        size = len(inputs["row"])
        if request.frames is None:
            inputs["num_samples"] = np.full([size], request.num_samples, np.int32)
        else:
            count = -(-request.num_samples // self.hop_samples)
            frames = request.frames[: count + self._streaming["side_frames"]]
            inputs["frames"] = np.repeat(frames[None], size, 0)
            inputs["num_frames"] = np.full([size], len(frames), np.int32)
        sound = super().call(COMPILED, inputs)[self._output]
        return sound[: len(request.rows), : request.num_samples]

    def _streamed(
        self, request: EngineRequest, chunk_samples: int, ahead_samples: int
    ) -> Iterator[np.ndarray]:
        inputs, unit = self._rows(request), self._streaming["unit_samples"]
        size, first = len(inputs["row"]), 0
        state: Arrays = {
            name: np.full([size, *info["shape"][1:]], info["fill"], info["dtype"])
            for name, info in self._streaming["state"].items()
        }
        length = -(-(self._streaming["pieces"][0] + ahead_samples) // unit) * unit
        while first < request.num_samples:
            last = min(first + length, request.num_samples)
            position = self._position(request, size, first, last)
            outputs = super().call(CHUNK, {**inputs, **position, **state})
            state = {name: outputs[name] for name in state}
            yield outputs[self._output][: len(request.rows), : last - first]
            first, length = last, -(-chunk_samples // unit) * unit

    def _position(self, request: EngineRequest, size: int, first: int, last: int) -> Arrays:
        """Return the inputs with a chunk's position and conditioning."""
        numbers: dict[str, int] = {"start": first}
        if request.frames is None:
            numbers["num_samples"] = last - first
            return {name: np.full([size], value, np.int32) for name, value in numbers.items()}
        hop, side = self.hop_samples, self._streaming["side_frames"]
        frame, end = first // hop, -(-last // hop)
        window = request.frames[max(0, frame - side) : end + side]
        numbers["frames_before"] = min(frame, side)
        numbers["num_frames"] = end - frame
        numbers["frames_after"] = min(len(request.frames) - end, side)
        arrays = {name: np.full([size], value, np.int32) for name, value in numbers.items()}
        return {**arrays, "frames": np.repeat(window[None], size, 0)}
