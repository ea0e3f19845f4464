"""Bundles of models of users: sequences, arrays of one shape, and 8-bit images among these."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.audio_bundle import CHUNK, AudioBundle
from serving.bundles.bundle import Bundle, Program, signatures_of
from serving.bundles.image_bundle import ImageBundle
from serving.bundles.own_sampling import OwnSampling
from serving.bundles.own_spec import ARRAY, IMAGE, check_own_spec
from serving.bundles.signature import Arrays, TensorInfo
from serving.bundles.stored_models import scanned_copy
from serving.errors import InvalidInput

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive

MODEL_FOLDER = "autoregressive"  # of a bundle: what `onepass.save` writes


class _OwnBundle(OwnSampling, Bundle):
    """A bundle of a user's model, which may give log-probabilities."""

    problem = InvalidInput

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The model that was exported, with the weights of the export, trainable.

        The signatures of a bundle sample and give log-probabilities. This program also has the
        network, its step and its density, with gradients.

        Raises:
          UserError: the bundle holds none: a student, or a bundle of version 0.2; or its program
            has a disallowed operation.
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

    As a model of sound it has `generate` and `stream`; `sample` is that of every user's model.
    """

    def __init__(self, path: Path, spec: dict[str, Any], program: Program):
        super().__init__(path, spec, program)
        self.kind = spec["makes"]

    @property
    def sample_rate_hz(self) -> Any:
        """Of its sound; None where it makes none."""
        return self.spec.get("sample_rate_hz")

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Raise InvalidInput: the condition is the user's own, and no recording has it."""
        raise InvalidInput(f"`{self.name}` reads no frames of a recording.")


class ArrayBundle(_OwnBundle):
    """A model of arrays of one shape."""

    kind = ARRAY


class ByteImageBundle(_OwnBundle, ImageBundle):
    """A model of 8-bit images of one size, which is drawn from as a PixelCNN is."""


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
