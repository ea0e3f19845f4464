"""The interface of a bundle to the server, whatever kind of model it holds."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from serving.bundles.signature import Arrays, Signature


class Servable(Protocol):
    """A loaded model, called by signature; thread-safe.

    name, version, path: from its folder. kind: "sound", "picture" or "array". spec: its model.json.
    """

    name: str
    version: int
    path: Path
    spec: dict[str, Any]
    signatures: dict[str, Signature]

    @property
    def kind(self) -> str:
        """Its kind: "sound", "picture" or "array"."""

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as `call` takes them; raise InvalidInput if bad."""

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs."""

    def warm(self) -> None:
        """Compile the served programs."""


class SpeechServable(Servable, Protocol):
    """A model of kind "sound"."""

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a waveform [samples]."""

    @property
    def stream(self) -> Callable[..., Iterator[np.ndarray]]:
        """A method that yields a sound in chunks float32 [1, samples]; see `AudioBundle.stream`."""
