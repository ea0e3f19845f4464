"""Options that all verbs that train share."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from foundation.errors import UserError
from replicator.training.config import Preset


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of every verb that trains, in addition to its data and its configuration."""

    workdir: Path
    """Run directory; one that holds the same configuration is resumed."""
    portable: Path | None = None
    """Export the step, its weights and its data to this folder instead of training, for `python
    DIR/run.py` on a machine with JAX and without TensorFlow."""
    adopt: Path | None = None
    """First copy the weights that `run.py` trained in this folder into the run directory."""
    strategy: str = "auto"
    """Devices to train on: auto (by TF_CONFIG and the GPUs), single (one device), local (every
    GPU), local:N (N devices; logical CPUs if there are no GPUs), multi_worker or parameter_server
    (the cluster of TF_CONFIG), sharded:2x2 (weights and batches in shards, batch x model), tpu or
    tpu:ADDRESS. A run may be resumed with another strategy."""


def parse_training(
    kind: Callable[..., Any],
    words: Sequence[str],
    arguments: list[str],
    parse: Callable[..., Any],
    preset: Preset,
) -> Any:
    """Return the options of a verb that trains.

    Args:
      kind: the class of the options, a `TrainingOptions` whose first two fields are the data (or
        teacher) and the config.
      words: the verb and the preset's name.
      arguments: the other words of the command line.
      parse: reads a dataclass from words.
      preset: gives the default config and a description.
    """
    default = kind(tyro.MISSING, preset.config, workdir=tyro.MISSING)
    return parse(kind, arguments, " ".join(["onepass", *words]), default, preset.about)


def check_outside(workdir: Path, data: Path | str, things: str) -> None:
    """Raise UserError if a run would write into its own data: a folder of `things`."""
    if Path(workdir).resolve().is_relative_to(Path(data).resolve()):
        raise UserError(
            f"The run directory {workdir} must be outside the data folder {data}: its samples "
            f"would be mistaken for {things}."
        )
