"""Bundles of models of users: sequences, arrays of one shape, and 8-bit images among these."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foundation.errors import UserError
from serving.bundles.audio_bundle import CHUNK, CHUNK_SAMPLES, AudioBundle
from serving.bundles.bundle import Bundle, Program, signatures_of
from serving.bundles.condition_inputs import has_named
from serving.bundles.image_bundle import ImageBundle
from serving.bundles.own_requests import OwnRequest
from serving.bundles.own_sampling import OwnSampling
from serving.bundles.own_spec import ARRAY, IMAGE, check_own_spec
from serving.bundles.prompt_inputs import NUM_PREFIX, PROMPTED, TOP_K
from serving.bundles.signature import Arrays, TensorInfo
from serving.bundles.stored_models import scanned_copy
from serving.errors import InvalidInput

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive

MODEL_FOLDER = "autoregressive"  # folder in a bundle that `onepass.save` writes


class _OwnBundle(OwnSampling, Bundle):
    """A bundle of a user's model, which may give log-probabilities."""

    problem = InvalidInput

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The model that was exported, with the weights of the export, trainable.

        The signatures of a bundle sample and give log-probabilities. This program also has the
        network, its step and its density, with gradients.

        Raises:
          UserError: the bundle is of a student or of version 0.2, which hold no model; or the
            program has a disallowed operation.
        """
        from autoregressive.storage.load import load

        stored = self.path / MODEL_FOLDER
        if not stored.is_dir():
            raise UserError(
                f"{self.path} holds no model, only its sampler; export it again, or save it."
            )
        with scanned_copy(stored) as copy:
            return load(copy)

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        return self.signatures[signature].inputs if signature in self.signatures else {}

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        return self.call(signature, self.check(signature, inputs))


class SequenceBundle(_OwnBundle, AudioBundle):
    """A model in time order that makes its elements one after the other.

    It has `generate` and `stream` of a model of sound, and `sample` of every user's model.
    """

    def __init__(self, path: Path, spec: dict[str, Any], program: Program):
        super().__init__(path, spec, program)
        self.kind = spec["makes"]

    @property
    def sample_rate_hz(self) -> Any:
        """Samples per second of the model's sound; None for a model that makes no sound."""
        return self.spec.get("sample_rate_hz")

    def stream(
        self,
        condition: Any = None,
        *,
        seed: int = 0,
        num: int = 1,
        num_samples: int | None = None,
        temperature: Any = None,
        chunk_samples: int = CHUNK_SAMPLES,
        top_k: int = 0,
        top_p: float = 1.0,
        prefix: Any = None,
        stop: Any = None,
        **of_sound: Any,
    ) -> Iterator[np.ndarray]:
        """Yield what `sample` returns in parts [num, about chunk_samples], as they are made.

        With a prompt it ends early where all rows have ended.

        Args:
          condition: frames [frames, channels] for all rows; for a model with conditions by name,
            the `condition` of `sample`, where one at the rate of the elements may have one row for
            all; None for a model without.
          seed: seed of the noise, an integer in [0, 2^64).
          num: number of rows.
          num_samples: number of elements of a row; None: as many as there are frames.
          temperature: temperature of the distribution, one number or [num]; None: 1.
          chunk_samples: elements at a time, rounded up to a multiple of the model's unit.
          top_k: draw among so many of the most probable tokens; 0: among all.
          top_p: draw among the fewest tokens whose probabilities add up to this share, in (0, 1].
          prefix: elements that the rows begin with: [n] for all rows, [num, n], or a list of `num`
            rows; None: nothing.
          stop: the element that ends a row; None: rows end at `num_samples`.
          **of_sound: `row`, `speaker` and `refine` of `AudioBundle.stream`, without a prompt.

        Raises:
          InvalidInput: the model cannot make this; raised at the call, not at the first element.
        """
        prompt = {"top_k": top_k, "top_p": top_p, "prefix": prefix, "stop": stop}
        is_named = has_named(self.spec)
        is_plain = prefix is None and stop is None and top_k == 0 and top_p == 1.0 and not is_named
        counted = num_samples is None and condition is not None and not is_named
        length = len(condition) if counted else num_samples
        if is_plain and np.ndim(temperature) == 0:
            self._check_streamed(length or 0)
            given = {"seed": seed, "num": num, "num_samples": num_samples, **of_sound}
            given |= {"temperature": temperature, "chunk_samples": chunk_samples}
            return super().stream(condition, **given)
        if of_sound:
            raise InvalidInput(
                f"`{next(iter(of_sound))}` must not be given with a prompt or with conditions that"
                " are not frames."
            )
        heat = 1.0 if temperature is None else temperature
        with self._own_errors():
            asked = (num, length, seed, self._conditions(condition, for_all=True))
            request = OwnRequest.checked("time", *asked, temperature=heat, **prompt)
        return self.streamed(request, chunk_samples)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield the calls of `AudioBundle.warm`, and one of `prompted` of a model over tokens.

        For any other model `prompted` compiles when it is first called.
        """
        yield from super().warmup_calls()
        if TOP_K in self._inputs_of(PROMPTED):
            count = sum(dict.fromkeys(self._streaming["pieces"]))
            inputs = self._example(PROMPTED, 1, count)
            # All but one element, so that what reads a prompt and what draws are compiled.
            inputs[NUM_PREFIX][:] = count - 1
            yield PROMPTED, inputs

    def _frames(self, condition: Any) -> np.ndarray | None:
        if has_named(self.spec):
            raise InvalidInput(f"`{self.name}` has conditions by name: call `sample` or `stream`.")
        return super()._frames(condition)

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Raise InvalidInput: the condition is the user's own, and no recording has it."""
        raise InvalidInput(f"`{self.name}` reads no frames of a recording.")


class ArrayBundle(_OwnBundle):
    """A model of arrays of one shape."""

    kind = ARRAY


class ByteImageBundle(_OwnBundle, ImageBundle):
    """A model of 8-bit images of one size, which is drawn from as a PixelCNN is."""

    def condition(self, value: Any) -> dict[str, np.ndarray]:
        """Return no inputs; raise InvalidInput for a model that has conditions, or is given one."""
        if has_named(self.spec):
            raise InvalidInput(f"`{self.name}` has conditions by name: call `sample`.")
        return super().condition(value)


def own_bundle(
    path: Path, spec: dict[str, Any], program: Program
) -> SequenceBundle | ArrayBundle | ByteImageBundle:
    """Return the bundle of a user's model; raise UserError if model.json does not describe one."""
    check_own_spec(path, spec, signatures_of(spec))
    if spec["makes"] == IMAGE:
        return ByteImageBundle(path, spec, program)
    if CHUNK in spec["serving"]["signatures"]:
        return SequenceBundle(path, spec, program)
    return ArrayBundle(path, spec, program)
