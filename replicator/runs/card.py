"""The model card of an exported run: where a model is from, and what was measured of it."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike

from replicator.runs.atomic_files import write_text
from replicator.runs.intervals import in_words, interval_in_words
from replicator.runs.metrics import training_seconds
from replicator.runs.model_folder import SPEC_FILE, save
from replicator.runs.progress import duration
from replicator.runs.provenance import git_revision, machine_name


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """What to write a model folder from: model.json, weights.npz (average weights) and card.md."""

    run: Path
    """Run directory."""
    out: Path
    """Folder to write; made if missing."""
    parts_from: tuple[Path, ...] = ()
    """Runs, or model folders, that trained other parts of the same multiscale model."""
    data_licence: str = "unknown"
    """Licence of the recordings or images, and whose they are, for the card."""
    note: str = ""
    """Anything else that the card shall say of the training."""
    machine: str | None = None
    """What it was trained on; None: this machine."""
    temperature: float | None = None
    """At which a model of sound speaks unless another is asked for; None: 1."""
    float16: bool = False
    """Round the weights of a model of images to half precision, in which they are also measured."""


def origin(given: ExportArguments, data: Path | str, network: tf.Module, command: str) -> dict:
    """Where a model comes from, as model.json says it.

    Args:
      given: the command line. data: what it was trained on.
      network: its weights. command: that made the run.
    """
    runs = (given.run, *given.parts_from)
    return {
        "data": Path(data).name,
        "data_licence": given.data_licence,
        "weights": int(sum(np.prod(v.shape) for v in network.trainable_variables)),
        "training_seconds": round(sum(_seconds(run) for run in runs)),
        "machine": given.machine or machine_name(),
        "command": command,
        "note": given.note,
        "git_revision": git_revision(),
    }


def _seconds(path: Path) -> float:
    """The time that a run has trained, or that a model folder says."""
    if (path / SPEC_FILE).exists():
        return float(json.loads((path / SPEC_FILE).read_text())["training_seconds"])
    return training_seconds(path)


def write(
    folder: Path,
    network: tf.Module,
    spec: dict,
    stored: dict,
    card: Callable[[dict], str],
    dtype: DTypeLike = np.float32,
) -> None:
    """Writes a model folder, see `save`, and the card of what its model.json says."""
    save(network, spec, stored, folder, dtype)
    write_text(Path(folder) / "card.md", card(spec))


def training_lines(spec: dict) -> str:
    """How a model was trained, and with which command, as items of a Markdown list."""
    steps = "several runs" if spec["step"] is None else f"{spec['step']:,} steps"
    return (
        f"- Training: {steps} in {duration(spec['training_seconds'])} on {spec['machine']}.\n"
        f"- Command: `{spec['command']}` {spec['note']}\n"
        f"- Revision when this folder was written: {spec['git_revision']}"
    )


def measure_table(
    systems: Mapping[str, Mapping[str, dict]], cell: Callable[[dict], str] = in_words
) -> str:
    """The measures of systems, by their names, as rows of a Markdown table, a column for each.

    cell: a measure's text; it may hold several columns, as `in_two_columns` does.
    """
    names: Sequence[str] = list(next(iter(systems.values())))
    return "\n".join(
        f"| {name.replace('_', ' ')} | "
        + " | ".join(cell(measures[name]) for measures in systems.values())
        + " |"
        for name in names
    )


def in_two_columns(measured: dict) -> str:
    """Return a measure as two cells of a Markdown table: its mean, and its interval with n."""
    return f"{measured['mean']:.3f} | {interval_in_words(measured)}"
