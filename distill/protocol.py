"""Protocols of the students that users call, and of the flows of a student in time order."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from onepass.likelihoods.affine import FlowOutput


@runtime_checkable
class Student(Protocol):
    """A student, which draws sequences or images in one pass or a few.

    Attributes:
      drafts: whether the student can propose symbols for a teacher (`as_draft`).
    """

    drafts: bool

    def sample(
        self, num: int = 1, length: Any = None, seed: int = 0, condition: Any = None, **options: Any
    ) -> np.ndarray:
        """See `onepass.interface.Model.sample`."""

    def stream(
        self, num: int = 1, length: Any = None, seed: int = 0, condition: Any = None, **options: Any
    ) -> Iterator[np.ndarray]:
        """See `onepass.interface.Model.stream`."""

    def log_density(
        self, num: int, length: Any, seed: int, condition: Any = None, **options: Any
    ) -> np.ndarray:
        """Return the log-density of the rows that `sample` draws, at temperature 1.

        The result is in nats. For sequences it is [num, length], the density per unit of each
        element, before rounding to levels, given the elements before it; for images it is [num],
        for all pixels together. There is no such method for other sequences, because the inverse of
        a student's flows loses all digits of float32 after a few hundred samples.

        Args:
          num: number of rows.
          length: number of elements of each row, or side of the images.
          seed: the noise's seed, an integer in [0, 2^64).
          condition: what the student reads besides the noise.
          **options: further arguments of `sample`, such as a speaker.
        """

    def as_draft(self, model: Any) -> Any:
        """Return the student as a draft for a model's `method="speculative"`.

        Raises:
          UserError: `drafts` is False.
        """


class Flows(Protocol):
    """Flows over noise that run block by block."""

    @property
    def noise_kind(self) -> str:
        """The distribution of the noise that the flows transform: "logistic" or "normal"."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first element."""

    def advance(self, noise: tf.Tensor, state: Any, condition: Any) -> tuple[FlowOutput, Any]:
        """Return the output for the next noise [batch, n], and the state after it."""
