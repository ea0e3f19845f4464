"""What the server needs of a bundle, whatever kind of model it holds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from serving.bundles.signature import Arrays, Signature


class Servable(Protocol):
    """A loaded model, called by signature; safe to call from several threads.

    name, version, path: where it lies. kind: "sound", "picture" or "array". spec: its model.json.
    """

    name: str
    version: int
    path: Path
    spec: dict[str, Any]
    signatures: dict[str, Signature]

    @property
    def kind(self) -> str:
        """What it makes: "sound", "picture" or "array"."""

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """The inputs of a signature as `call` takes them; InvalidInput for what breaks a rule."""

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """The outputs of a signature for checked inputs."""

    def warm(self) -> None:
        """Compiles what is served compiled."""


class SpeechServable(Servable, Protocol):
    """A model of kind "sound"."""

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """The frames float32 [frames, channels] that describe a waveform [samples]."""

    def stream(
        self,
        condition: np.ndarray | None = None,
        *,
        seed: int = 0,
        row: int = 0,
        num_samples: int | None = None,
        speaker: str | None = None,
        temperature: float | None = None,
    ) -> Iterator[np.ndarray]:
        """A sound in chunks float32 [1, samples]."""
