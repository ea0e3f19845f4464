"""A bundle that speaks: whole sounds, or chunk by chunk as they are made."""

import dataclasses
import importlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.bundle import Backend, Bundle
from serving.bundles.numba_engine import Engine, EngineRequest, engine_for
from serving.bundles.program import Program
from serving.bundles.signature import COMPILED, PLAIN, Arrays, checked, example
from serving.errors import InvalidInput

CHUNK, STATE = "chunk", "state_"
CHUNK_SAMPLES = 32_000  # about
WHOLE = (PLAIN, COMPILED)
COUNTS = ("frames_before", "num_frames", "frames_after")  # of frames that are handed in


def check_lengths(arrays: Arrays) -> None:
    """Returns nothing; InvalidInput where more frames are counted than are given."""
    if "frames" in arrays:
        counts = [arrays[name].astype(np.int64) for name in COUNTS if name in arrays]
        longest, given = int(np.max(sum(counts))), arrays["frames"].shape[1]
        if longest > given:
            said = " + ".join(f"`{name}`" for name in COUNTS if name in arrays)
            raise InvalidInput(f"{said} must be at most the {given} `frames`, got {longest}.")


def _levelled(sound: np.ndarray, condition: np.ndarray | None) -> np.ndarray:
    """The sound at the level of the recording whose frames the condition is, if it is of one."""
    gain_db = getattr(condition, "gain_db", 0.0)
    if not gain_db:
        return sound
    # Such frames come from `wavenet`, which a bundle alone does not need.
    level = importlib.import_module("wavenet.data.recorded_level")
    return level.at_recorded_level(sound, gain_db)


class AudioBundle(Bundle):
    """An exported WaveNet or student ready to speak."""

    kind = "sound"

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        super().__init__(path, spec, program, backend)
        self._engine: Engine | None = engine_for(path, spec, backend)
        self._streaming = spec["serving"]["streaming"]
        self._output = next(iter(spec["serving"]["cropped"]))
        if self._engine is None:
            program.restore()

    @property
    def sample_rate_hz(self) -> int:
        """Of its sound."""
        return self.spec["sample_rate_hz"]

    @property
    def hop_samples(self) -> int:
        """Samples between two frames; 1 for a model without frames."""
        return self.spec["hop_samples"]

    @property
    def conditional(self) -> bool:
        """Whether it needs frames."""
        return "frames" in self.signatures[COMPILED].inputs

    @property
    def known_speakers(self) -> tuple[str, ...]:
        """The names of the speakers that it can speak as; none for a model without speakers."""
        info = self.signatures[COMPILED].inputs.get("speaker")
        return () if info is None else tuple(self.spec["speakers"][: int(info.high or 0) + 1])

    @property
    def _batches(self) -> list[int]:
        return sorted(self.serving["allowed_batches"])

    @property
    def engine(self) -> str:
        """What makes sounds, whole and streamed: "numba" or "tensorflow"."""
        return "tensorflow" if self._engine is None else "numba"

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a recording, to be spoken again.

        What `generate` makes of them is at the recording's level, see `FeatureExtraction.frames`.
        Needs the package `wavenet`.

        Args:
          waveform: float32 [samples] at `sample_rate_hz`, at its stored level.

        Raises:
          UserError: the package is missing, or the model reads no frames.
        """
        if not self.conditional:
            raise UserError(f"{self.name} reads no frames.")
        try:
            extractor = importlib.import_module("serving.bundles.feature_extractor")
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
    ) -> np.ndarray:
        """Sounds, float32 [num, samples] in [-1, 1].

        Args:
          condition: frames [frames, channels], or None for a model without. From `frames(...)`, the
            sound is at that recording's level; from others, at the model's.
          seed, row, num: sounds row, row + 1, ... of the seed, the same whatever `num` is.
          num_samples: length; by default that of the condition.
          speaker: a name, for models with speakers; None: the first one.
          temperature: multiplies the noise; 1 samples the model. None: what the model declares.

        Raises InvalidInput for what the model cannot speak.
        """
        request = self._engine_request(condition, seed, row, num, num_samples, speaker, temperature)
        if self._engine is not None:
            return _levelled(self._engine.whole(request), condition)
        whole = np.concatenate([self._whole(group) for group in self._groups(request)])
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
        chunk_samples: int = CHUNK_SAMPLES,
    ) -> Iterator[np.ndarray]:
        """The same sounds in chunks float32 [num, about chunk_samples], as they are made.

        The first chunk is shorter, so that it comes early. What cannot be spoken is refused at
        once, before the first chunk is asked for.
        """
        request = self._engine_request(condition, seed, row, num, num_samples, speaker, temperature)
        if chunk_samples < 1:
            raise InvalidInput(f"`chunk_samples` must be at least 1, got {chunk_samples}.")
        if self._engine is not None:
            made = self._engine.stream(request, chunk_samples)
        else:
            groups = [self._streamed(group, chunk_samples) for group in self._groups(request)]
            made = (np.concatenate(chunks) for chunks in zip(*groups, strict=True))
        return (_levelled(chunk, condition) for chunk in made)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """What a signature gives for inputs as `check` gives them.

        Whole sounds are made by the fastest of what makes them, whichever signature is asked.
        """
        if signature not in WHOLE:
            return super().call(signature, inputs)
        if self._engine is not None:
            return self._engine.call(inputs)
        return super().call(COMPILED, inputs)

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """The inputs of a signature as `call` takes them, see `Bundle.check`."""
        arrays = super().check(signature, inputs)
        check_lengths(arrays)
        return arrays

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Signature and inputs of every call that `warm` makes: all pieces, by every batch.

        Where there is an engine, the program is made ready by the first `chunk` that is asked for.
        """
        # A long piece and a short one behind it: no other length is ever compiled.
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
        self, condition, seed: int, row: int, num: int, num_samples, speaker, temperature
    ) -> EngineRequest:
        """What is asked for, checked; InvalidInput for what cannot be spoken."""
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

    def _frames(self, condition) -> np.ndarray | None:
        if (condition is None) == self.conditional:
            rule = "given" if self.conditional else "None"
            raise InvalidInput(f"`condition` must be {rule} for {self.name}.")
        if condition is None:
            return None
        return checked("frames", self.signature(CHUNK).inputs["frames"], [condition])[0]

    def _length(self, frames: np.ndarray | None, num_samples: int | None) -> int:
        """Samples of the sound."""
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
        if not known:
            if name is not None:
                raise InvalidInput("`speaker` must not be given: the model has one voice.")
            return None
        if name is not None and name not in known:
            raise InvalidInput(f"`speaker` must be one of {', '.join(known)}, got {name[:40]!r}.")
        return 0 if name is None else known.index(name)

    def _groups(self, request: EngineRequest) -> Iterator[EngineRequest]:
        """The request in parts of as many rows as a call may have."""
        most = self._batches[-1]
        for first in range(0, len(request.rows), most):
            yield dataclasses.replace(request, rows=request.rows[first : first + most])

    def _rows(self, request: EngineRequest) -> Arrays:
        """The inputs that name the noise, in an allowed batch: the last row fills it up."""
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

    def _streamed(self, request: EngineRequest, chunk_samples: int) -> Iterator[np.ndarray]:
        inputs, unit = self._rows(request), self._streaming["unit_samples"]
        size, first = len(inputs["row"]), 0
        state: Arrays = {
            name: np.full([size, *info["shape"][1:]], info["fill"], info["dtype"])
            for name, info in self._streaming["state"].items()
        }
        length = -(-self._streaming["pieces"][0] // unit) * unit
        while first < request.num_samples:
            last = min(first + length, request.num_samples)
            place = self._place(request, size, first, last)
            made = super().call(CHUNK, {**inputs, **place, **state})
            state = {name: made[name] for name in state}
            yield made[self._output][: len(request.rows), : last - first]
            first, length = last, -(-chunk_samples // unit) * unit

    def _place(self, request: EngineRequest, size: int, first: int, last: int) -> Arrays:
        """The inputs that say where a chunk is, and its conditioning."""
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
