"""Bundles of models of users: sequences, arrays of one shape, and 8-bit images among these."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.audio_bundle import CHUNK, AudioBundle
from serving.bundles.bundle import Backend, Bundle
from serving.bundles.image_bundle import ImageBundle
from serving.bundles.program import Program
from serving.bundles.signature import COMPILED, LOG_PROB, PLAIN, Arrays, example
from serving.errors import InvalidInput

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive

ARRAY, SOUND, IMAGE = "array", "sound", "picture"
ELEMENTS = "elements"


class _HasLogProb(Bundle):
    """A bundle that may give log-probabilities."""

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The model that was exported, with the weights of the export, trainable.

        Raises:
          UserError: the bundle holds none: a student, or a bundle of version 0.2.
        """
        from serving.bundles.stored_model import read_model

        return read_model(self.path)

    def log_prob(self, elements: Any, condition: Any = None) -> np.ndarray:
        """Return the log-probability of every element, float32, in nats, as the model's own.

        Args:
          elements: [batch, time] or [batch, height, width, channels].
          condition: float32 [batch, time, channels], where the model has one.

        Raises:
          InvalidInput: an input is of another shape or type, or out of range.
          UserError: a student, which has none.
        """
        if LOG_PROB not in self.signatures:
            raise UserError(f"{self.name} has no log-probabilities: it is a {self.spec['kind']}.")
        given = {ELEMENTS: np.asarray(elements)}
        given |= {} if condition is None else {"frames": np.asarray(condition)}
        return self.call(LOG_PROB, self.check(LOG_PROB, given))[LOG_PROB]


class SequenceBundle(AudioBundle, _HasLogProb):
    """A model in time order that makes its elements one after the other.

    As a model of sound it has `generate` and `stream`; `sample` is that of every user's model.
    """

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        super().__init__(path, spec, program, backend)
        self.kind = spec["makes"]

    @property
    def sample_rate_hz(self) -> Any:
        """Of its sound; None where it makes none."""
        return self.spec.get("sample_rate_hz")

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Raise InvalidInput: the condition is the user's own, and no recording has it."""
        raise InvalidInput(f"`{self.name}` reads no frames of a recording.")

    def sample(
        self,
        num: int,
        length: int,
        seed: int,
        condition: Any = None,
        *,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """Return `num` sequences [num, length]; arguments as for `Autoregressive.sample`."""
        if not isinstance(length, int | np.integer):
            raise InvalidInput(f"`length` must be a number of elements, got {length}.")
        conditions = _conditions(condition, num)
        rows = [
            self.generate(given, seed=seed, row=row, num_samples=length, temperature=temperature)[0]
            for row, given in enumerate(conditions)
        ]
        return np.stack(rows).astype(self.spec[ELEMENTS]["dtype"])


class ArrayBundle(_HasLogProb):
    """A model of arrays of one shape."""

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        _refuse_numba(path, backend)
        super().__init__(path, spec, program, backend)
        self.kind = ARRAY
        program.restore()

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return what a signature gives for inputs as `check` gives them.

        `serving_default` is answered by `compiled`: one seed is one array, whichever is asked.
        """
        return super().call(COMPILED if signature == PLAIN else signature, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield one whole array: no batch takes another program."""
        yield COMPILED, example(self.signatures[COMPILED], 1)

    def sample(
        self,
        num: int,
        length: Any,
        seed: int,
        condition: Any = None,
        *,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """Return `num` arrays [num, *length]; arguments as for `Autoregressive.sample`.

        Raises:
          InvalidInput: another length than the bundle was exported for, or a condition that the
            model cannot read.
        """
        check_shape(length, self.signatures[COMPILED].outputs[ELEMENTS].shape[1:])
        made = []
        for row, given in enumerate(_conditions(condition, num)):
            inputs = {"seed": [_signed(seed)], "row": [row], "temperature": [temperature]}
            inputs |= {} if given is None else {"frames": given[np.newaxis]}
            made.append(self.call(COMPILED, self.check(COMPILED, inputs))[ELEMENTS][0])
        return np.stack(made)


class ByteImageBundle(ImageBundle, _HasLogProb):
    """A model of 8-bit images of one size, which is drawn from as a PixelCNN is."""

    def sample(
        self,
        num: int,
        length: Any,
        seed: int,
        condition: Any = None,
        *,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """Return `num` images int32 [num, *length]; arguments as for `Autoregressive.sample`.

        Raises:
          InvalidInput: another size than the bundle was exported for, or a condition.
        """
        if condition is not None:
            raise InvalidInput("`condition` must not be given: the model is unconditional.")
        check_shape(length, (self.size, self.size, self.channels))
        drawn = self.generate(seed=seed, num=num, temperature=temperature)
        return drawn.astype(self.spec[ELEMENTS]["dtype"])


def own_bundle(
    path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
) -> SequenceBundle | ArrayBundle | ByteImageBundle:
    """Return the bundle of a user's model.

    Raises:
      UserError: model.json does not describe one.
    """
    _check(path, spec)
    if spec["makes"] == IMAGE:
        return ByteImageBundle(path, spec, program, backend)
    if CHUNK in spec["serving"]["signatures"]:
        _refuse_numba(path, backend)
        return SequenceBundle(path, spec, program, backend)
    return ArrayBundle(path, spec, program, backend)


def check_shape(length: Any, shape: tuple[int | None, ...]) -> None:
    """Raise InvalidInput unless a length is the shape that a bundle was exported for."""
    given = (length,) if isinstance(length, int | np.integer) else tuple(length)
    if given != tuple(shape):
        wanted = shape[0] if len(shape) == 1 else tuple(shape)
        raise InvalidInput(f"`length` must be {wanted}, as exported, got {length}.")


def _check(path: Path, spec: Mapping[str, Any]) -> None:
    """Raise UserError for a model.json that the classes here could not read."""
    rate_hz, makes = spec.get("sample_rate_hz"), spec.get("makes")
    signatures = spec["serving"]["signatures"]
    kinds = (SOUND, ARRAY) if CHUNK in signatures else (IMAGE, ARRAY)
    elements = spec.get(ELEMENTS)
    known = isinstance(elements, dict) and elements.get("dtype") in ("int32", "float32")
    rate_fits = type(rate_hz) is int and rate_hz > 0 if makes == SOUND else rate_hz is None
    size_fits = makes != IMAGE or all(type(spec.get(n)) is int for n in ("size", "channels"))
    if makes not in kinds or not known or not rate_fits or not size_fits:
        raise UserError(f"{path}/model.json does not describe a model that can be served.")


def _conditions(condition: Any, num: int) -> list[Any]:
    """Return the condition of every row."""
    if num < 1:
        raise InvalidInput(f"`num` must be at least 1, got {num}.")
    if condition is None:
        return [None] * num
    if len(condition) != num:
        raise InvalidInput(f"`condition` must have {num} rows, got {len(condition)}.")
    return list(np.asarray(condition, np.float32))


def _signed(seed: int) -> np.int64:
    if not 0 <= seed < 2**64:
        raise InvalidInput(f"`seed` must be between 0 and 2^64 - 1, got {seed}.")
    return np.uint64(seed).astype(np.int64)


def _refuse_numba(path: Path, backend: Backend) -> None:
    if backend == "numba":
        raise UserError(
            f"{path} is a user's model; the engine `numba` is for WaveNets and their students."
        )
