"""Options of all verbs that train."""

import dataclasses
from pathlib import Path

from onepass.foundation.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of every verb that trains, besides its data and configuration."""

    workdir: Path
    """Run directory; an existing run with the same configuration is resumed."""
    portable: Path | None = None
    """Export the step, its weights and its data to this folder instead of training, for `python
    DIR/run.py` on a machine with JAX and without TensorFlow."""
    adopt: Path | None = None
    """Before training, copy weights that `run.py` trained in this folder to the run directory."""
    strategy: str = "auto"
    """Devices to train on: auto (by TF_CONFIG and the GPUs), single (one device), local (every
    GPU), local:N (N devices; logical CPUs if there are no GPUs), multi_worker or parameter_server
    (the cluster of TF_CONFIG), sharded:2x2 (weights and batches in shards, batch x model), tpu or
    tpu:ADDRESS. A run may be resumed with a different strategy."""


def check_outside(workdir: Path, data: Path | str, things: str) -> None:
    """Raise UserError if a run directory is inside its data folder, which contains `things`."""
    if Path(workdir).resolve().is_relative_to(Path(data).resolve()):
        raise UserError(
            f"The run directory {workdir} must be outside the data folder {data}: its samples "
            f"would be mistaken for {things}."
        )
