"""The CPU engine: a bundle's model rebuilt from its weights, and compiled by Numba.

It needs the packages that trained the model. Its audio equals that of the exported program, for a
student within one 16-bit step.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from foundation.errors import UserError
from serving.bundles.signature import Arrays

STUDENT = "parallel-wavenet"
PACKAGES = {STUDENT: "distill", "wavenet": "wavenet"}
CONFIGS = {STUDENT: "student", "wavenet": "network"}  # the network's key in the configuration
SAMPLERS = {STUDENT: "distill.generation", "wavenet": "wavenet.samplers.generation"}


@dataclasses.dataclass(frozen=True)
class EngineRequest:
    """A request for sounds.

    frames: float32 [frames, channels] or None. num_samples: number of samples of each sound. seed:
    the noise's seed, an integer in [0, 2^64). rows: rows of the seed, one per sound. speaker: index
    of the speaker or None. temperature: scale of the noise.
    """

    frames: np.ndarray | None
    num_samples: int
    seed: int
    rows: tuple[int, ...]
    speaker: int | None
    temperature: float


class Engine:
    """A model with the weights of a bundle's folder; raises UserError if its package is missing."""

    def __init__(self, path: Path, kind: str):
        try:
            self._generation: Any = importlib.import_module(SAMPLERS[kind])
            loaded = importlib.import_module(f"{PACKAGES[kind]}.model").load(path)
        except ImportError as error:
            raise UserError(f"The engine `numba` needs the package {error.name}.") from error
        self._network, self._hop = loaded.network, loaded.hop_samples
        self._draws_levels = kind != STUDENT
        if self._draws_levels and not self._generation.is_known(self._network):
            raise UserError(f"The engine `numba` does not support the likelihood of {path}.")

    def whole(self, request: EngineRequest) -> np.ndarray:
        """Return sounds, float32 [rows, num_samples]."""
        output = self._generation.generate(self._network, self._request(request), "numba")
        return self._sound(output)

    def stream(
        self, request: EngineRequest, chunk_samples: int, ahead_samples: int = 0
    ) -> Iterator[np.ndarray]:
        """Return the same sounds in chunks float32 [rows, about chunk_samples].

        A student's first chunk is longer by `ahead_samples`, which its refinement needs.
        """
        made, opening = self._generation, {}
        if ahead_samples:
            opening["first_samples"] = made.FIRST_SAMPLES + ahead_samples
        arguments = self._network, self._request(request), "numba", chunk_samples
        stream = made.stream(*arguments, **opening)
        return map(self._sound, stream)

    def call(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of the signature of whole sounds, computed row by row."""
        frames = inputs.get("frames")
        if frames is None:
            lengths = longest = inputs["num_samples"]
        else:
            lengths = inputs["num_frames"] * self._hop
            longest = frames.shape[1] * self._hop
        sound = np.zeros([len(lengths), np.max(longest)], np.float32)
        for n, length in enumerate(lengths):
            sound[n, :length] = self.whole(self._row(inputs, n, int(length)))[0]
        return {"sound": sound, "num_samples": lengths.astype(np.int32)}

    def _row(self, inputs: Mapping[str, np.ndarray], n: int, length: int) -> EngineRequest:
        frames = inputs.get("frames")
        speaker = inputs.get("speaker")
        return EngineRequest(
            None if frames is None else frames[n, : length // self._hop],
            length,
            int(inputs["seed"][n]) % 2**64,
            (int(inputs["row"][n]),),
            None if speaker is None else int(speaker[n]),
            float(inputs["temperature"][n]),
        )

    def _request(self, request: EngineRequest) -> Any:
        rows, frames = len(request.rows), request.frames
        return self._generation.Request(
            num_samples=request.num_samples,
            seed=request.seed,
            rows=request.rows,
            frames=None if frames is None else np.repeat(frames[None], rows, 0),
            speaker=None if request.speaker is None else np.full([rows], request.speaker, np.int32),
            temperature=request.temperature,
        )

    def _sound(self, output: np.ndarray) -> np.ndarray:
        return self._network.codec.decode(output).numpy() if self._draws_levels else output


def engine_for(path: Path, spec: Mapping[str, Any], backend: str) -> Engine | None:
    """Return the engine if it is requested, or is the better choice; otherwise None.

    With "auto" it is used for a float32 student where there is no accelerator. UserError is raised
    if it is requested and not available.
    """
    kind = spec["kind"]
    if kind not in PACKAGES or backend == "tensorflow" or (backend, kind) == ("auto", "wavenet"):
        return None
    is_float32 = spec["config"][CONFIGS[kind]]["compute_dtype"] == "float32"
    if backend == "numba":
        if not is_float32:
            raise UserError(f"The engine `numba` needs float32, {path} has another type.")
        return Engine(path, kind)
    import tensorflow as tf

    if not is_float32 or tf.config.list_physical_devices("GPU"):
        return None
    with contextlib.suppress(UserError):
        return Engine(path, kind)
    return None
