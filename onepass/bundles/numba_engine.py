"""The CPU engine: a bundle's model rebuilt from its weights and compiled by Numba.

The engine needs the packages that trained the model. It generates the same audio as the exported
program; for a student, within one 16-bit step.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onepass import families
from onepass.bundles.condition_inputs import FRAMES
from onepass.bundles.sampling import Request
from onepass.bundles.signature import SOUND, SPEAKER, Arrays
from onepass.foundation.errors import UserError
from onepass.replicator.training.family import ModelFamily


class Engine:
    """The functions that generate sounds with a bundle's weights, compiled by Numba."""

    def __init__(self, path: Path, family: ModelFamily, backend: str) -> None:
        try:
            from distill.model import load

            sampler: Any = family.sampler  # kinds without one have no engine
            self._generation: Any = sampler()
            loaded = load(path)
            if backend != "numba":
                self._generation.check_backend(backend)
        except ImportError as error:
            raise UserError(f"The engine `numba` needs the package {error.name}.") from error
        self._backend = backend
        self._network, self._hop = loaded.network, loaded.front.hop_samples
        self._draws_levels = not family.is_fast
        if self._draws_levels and not self._generation.is_known(self._network):
            raise UserError(f"The engine `numba` does not support the likelihood of {path}.")

    def whole(self, request: Request) -> np.ndarray:
        """Return the requested sounds, float32 [rows, num_samples]."""
        return self._whole(self._generation_request(request))

    def stream(
        self, request: Request, chunk_samples: int, ahead_samples: int = 0
    ) -> Iterator[np.ndarray]:
        """Return an iterator over the sounds of `whole` in chunks [rows, about chunk_samples].

        A student's first chunk is longer by `ahead_samples`, which its refinement needs.
        """
        made, opening = self._generation, {}
        if ahead_samples:
            opening["first_samples"] = made.FIRST_SAMPLES + ahead_samples
        return map(
            self._sound,
            made.stream(
                self._network,
                self._generation_request(request),
                self._backend,
                chunk_samples,
                **opening,
            ),
        )

    def call(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of the signature for whole sounds, which are computed row by row."""
        frames, speaker = inputs.get(FRAMES), inputs.get(SPEAKER)
        if frames is None:
            lengths = longest = inputs["num_samples"]
        else:
            lengths = inputs["num_frames"] * self._hop
            longest = frames.shape[1] * self._hop
        sound = np.zeros([len(lengths), np.max(longest)], np.float32)
        for n, length in enumerate(map(int, lengths)):
            row = self._generation.Request(
                num_samples=length,
                seed=int(inputs["seed"][n]) % 2**64,
                rows=(int(inputs["row"][n]),),
                frames=None if frames is None else frames[n : n + 1, : length // self._hop],
                speaker=None if speaker is None else speaker[n : n + 1],
                temperature=float(inputs["temperature"][n]),
            )
            sound[n, :length] = self._whole(row)[0]
        return {SOUND: sound, "num_samples": lengths.astype(np.int32)}

    def _generation_request(self, request: Request) -> Any:
        return self._generation.Request(
            num_samples=request.shape[0],
            seed=request.seed,
            rows=tuple(range(request.first_row, request.first_row + request.num)),
            frames=request.conditions.get(FRAMES),
            speaker=request.conditions.get(SPEAKER),
            temperature=float(request.temperature[0]),
        )

    def _whole(self, request: Any) -> np.ndarray:
        return self._sound(self._generation.generate(self._network, request, self._backend))

    def _sound(self, output: np.ndarray) -> np.ndarray:
        return self._network.codec.decode(output).numpy() if self._draws_levels else output


def prepare() -> None:
    """Import and compile what the engines of all kinds need, if the packages are installed.

    Compiled in a confined process, the kernels could be neither cached nor shared with others.
    """
    with contextlib.suppress(ImportError):
        import distill.model  # noqa: F401 - for `Engine`
        from distill.cpu.engine import compile_kernels

        for family in families.every_family():
            if family.sampler:
                family.sampler()
        compile_kernels()


def engine_for(path: Path, spec: Mapping[str, Any], backend: str) -> Engine | None:
    """Return the engine if `backend` requests it or, for "auto", if it is faster; else None.

    With "auto", it is used for a float32 student if there is no GPU and the packages are installed.
    """
    family = families.installed(spec["kind"])
    compiled = backend.startswith("numba")
    if family is None:
        if compiled:
            raise UserError(f"The engine `{backend}` needs the code of {spec['kind']} models.")
        return None
    if compiled and not (family.sampler and (family.is_fast or backend == "numba")):
        makers = "WaveNets and their students" if backend == "numba" else "students"
        raise UserError(f"{path}: the engine `{backend}` is for {makers}.")
    if not family.sampler or backend == "tensorflow" or (backend == "auto" and not family.is_fast):
        return None
    is_float32 = spec["config"][family.network]["compute_dtype"] == "float32"
    if compiled:
        if not is_float32:
            raise UserError(f"The engine `{backend}` needs float32, {path} has another type.")
        return Engine(path, family, backend)
    import tensorflow as tf

    if not is_float32 or tf.config.list_physical_devices("GPU"):
        return None
    with contextlib.suppress(UserError):
        return Engine(path, family, "numba")
    return None
