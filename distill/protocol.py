"""Protocols of students in time order: the student that users call, and its flows."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from likelihoods.affine import FlowOutput


@runtime_checkable
class Student(Protocol):
    """A student that draws a sequence in one pass."""

    def sample(
        self, num: int, length: int, seed: int, condition: Any = None, **options: Any
    ) -> np.ndarray:
        """Return sequences [num, length], each determined by the seed and the row.

        Args:
          num: number of sequences.
          length: number of elements of each sequence.
          seed: seed of the noise, an integer in [0, 2^64).
          condition: what the student reads besides the noise.
          options: further options, such as `temperature`, a factor of the noise.
        """

    def stream(self, *given: Any, **options: Any) -> Iterator[np.ndarray]:
        """Yield the same sequences in parts; takes the arguments of the teacher's `stream`."""

    def log_density(
        self, num: int, length: int, seed: int, condition: Any = None, **options: Any
    ) -> np.ndarray:
        """Return the log density of the sequences that `sample` draws, [num, length].

        It is in nats per unit, for each element given the preceding elements, at temperature 1,
        before rounding to levels. It is available only for drawn sequences: for any other sequence,
        the noise that a trained student would make it from cannot be found in float32, since the
        inverse of its flows loses all digits after a few hundred samples.

        Args:
          num: number of sequences.
          length: number of elements of each sequence.
          seed: seed of the noise, an integer in [0, 2^64).
          condition: what the student reads besides the noise.
          options: further arguments of `sample`, such as a speaker.
        """

    def as_draft(self, model: Any) -> Any:
        """Return the student as a draft for a model's `method="speculative"`."""


class Flows(Protocol):
    """Flows over noise that run block by block."""

    @property
    def noise_kind(self) -> str:
        """The distribution of the noise that the flows transform: "logistic" or "normal"."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first element."""

    def advance(self, noise: tf.Tensor, state: Any, condition: Any) -> tuple[FlowOutput, Any]:
        """Return the output for the next noise [batch, n], and the state after it."""
