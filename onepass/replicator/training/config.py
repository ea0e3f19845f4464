"""Settings of a training run, and options of all verbs that train; without TensorFlow."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from onepass.foundation.rules import (
    Checked,
    Count,
    Natural,
    NonNegative,
    Positive,
    Share,
    UserError,
    complete_settings,
    dataclass_from,
)

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Preset(Generic[Config]):
    """A configuration with a description: its purpose, expected result and cost."""

    about: str
    config: Config


def read_presets(file: Path, *kinds: type[Config]) -> dict[str, Preset[Config]]:
    """Read the presets of a family.

    Args:
      file: TOML file with a table for each preset: `about`, the settings, and either `like`, an
        earlier preset whose settings it takes where it has none of its own, or `kind`.
      *kinds: classes of the configurations; if there are several, each has a name `kind`.
    """
    known = {getattr(of, "kind", None): of for of in kinds}
    presets: dict[str, Preset[Config]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, table in tomllib.loads(file.read_text()).items():
        about = table.pop("about")
        settings[name] = complete_settings(table, settings.get(table.pop("like", None), {}))
        values = dict(settings[name])
        kind: Any = known[values.pop("kind", None)]
        presets[name] = Preset(about, dataclass_from(kind, values))
    return presets


@dataclasses.dataclass(frozen=True)
class LoopConfig(Checked):
    """Length of training and frequency of evaluations; may change when a run is resumed."""

    num_steps: Count = 10_000
    """Total number of updates, including those before a resume. A cosine decay ends here."""
    max_minutes: NonNegative = 0.0
    """Stop after this many minutes, including the last evaluation if an earlier one was timed; 0:
    no limit."""
    report_every_steps: Count = 20
    """Steps between lines of metrics."""
    evaluate_every_steps: Count = 1000
    """Steps between evaluations on the dev set; the last step is evaluated, too."""
    patience: Natural = 0
    """End training after this many consecutive evaluations without a new best score, including
    evaluations before a run was resumed; 0: never."""
    save_every_minutes: NonNegative = 5.0
    """Minutes between checkpoints, in addition to those at evaluations and at the end."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints to keep, in addition to the best on the dev set."""
    jit_compile: bool = False
    """Compile the step with XLA."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Checked):
    """Settings of Adam and the schedule of its learning rate."""

    learning_rate: Positive = 1e-3
    """Peak step size of Adam."""
    warmup_steps: Natural = 200
    """Steps over which the rate increases linearly from 0."""
    decay: Literal["constant", "cosine", "halve", "cooldown"] = "constant"
    """Schedule of the rate afterwards: constant, a cosine to 0, halvings at intervals, or constant
    with a linear decay to 0 over the last `cooldown_steps` (cooldown). A run with a cooldown can be
    extended exactly before these steps start."""
    cooldown_steps: Count = 1_000
    """Length of the final decay in steps if `decay` is cooldown."""
    halve_every_steps: Count = 200_000
    """Steps between halvings if `decay` is halve."""
    beta1: Share = 0.9
    """Decay of Adam's average of gradients."""
    beta2: Share = 0.999
    """Decay of Adam's average of squared gradients."""
    epsilon: Positive = 1e-8
    """Added to the root of that average, in units of the gradient."""
    clip_norm: NonNegative = 10.0
    """Largest global norm of a gradient, above which it is scaled down; 0: no limit."""
    average_decay: Share = 0.999
    """Decay of the Polyak average of the weights, which samples and evaluations use."""
    accumulate: Count = 1
    """Number of microbatches whose gradients are accumulated one after another, so a step needs the
    memory of one microbatch; the update is the same."""
    rematerialise: bool = False
    """Recompute intermediate results of layers for the gradient instead of storing them: less
    memory, more time; the update is the same."""


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
