"""Terms that compare the student's sound with the recording, by spectra or features."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from distill.losses.terms import Draw
from replicator import Replicator


@dataclasses.dataclass(frozen=True)
class Spectral:
    """A distance of sound and recording.

    Attributes:
      name: of the term.
      loss: of float32 [batch, time] sound and recording, []. It may have `energies(recording)`:
        what a share must know of the whole batch, as its further argument.
    """

    name: str
    loss: Callable[..., tf.Tensor]

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the distance, []."""
        energies = draw.batch.get(f"{self.name}_energies")
        known = () if energies is None else (energies,)
        return self.loss(draw.output.output, draw.recorded, *known)

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict[str, tf.Tensor]:
        """Return the energies of the whole batch, if the loss has them."""
        energies = getattr(self.loss, "energies", None)
        if energies is None:
            return {}
        means = {f"{self.name}_energies": energies(batch["waveform"])}
        return dict(replicator.all_reduce(means, "mean"))
