"""The protocol of the flows of a student in time order."""

from typing import Any, Protocol

import tensorflow as tf

from onepass.likelihoods.affine import FlowOutput


class Flows(Protocol):
    """Flows over noise that run block by block."""

    @property
    def noise_kind(self) -> str:
        """The distribution of the noise that the flows transform: "logistic" or "normal"."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first element."""

    def advance(self, noise: tf.Tensor, state: Any, condition: Any) -> tuple[FlowOutput, Any]:
        """Return the output for the next noise [batch, n], and the state after it."""
