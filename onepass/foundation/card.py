"""Model cards of exported runs: provenance and measurements."""

import dataclasses
import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike

from onepass.foundation.files import write_text
from onepass.foundation.measures import format_interval, format_measure
from onepass.foundation.metrics import training_seconds
from onepass.foundation.model_folders import ROOT, SPEC_FILE, save
from onepass.foundation.progress import in_time
from onepass.foundation.run_directory import RunDirectory
from onepass.foundation.runtime import machine_name

LOCATIONS = ("data_folder", "teacher", "start_from")  # keys of paths, of which only names are kept


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Options for writing a model folder: model.json, weights.npz (averaged) and card.md."""

    run: Path
    """Run directory."""
    out: Path
    """Folder to write; created if missing."""
    parts_from: tuple[Path, ...] = ()
    """Runs or model folders with other parts of the same multiscale model."""
    data_licence: str = "unknown"
    """Licence and owner of the training data, for the card."""
    note: str = ""
    """Additional note on the training, for the card."""
    machine: str | None = None
    """Machine that the model was trained on; None: this machine."""
    temperature: float | None = None
    """Default sampling temperature of an audio model; None: 1."""
    refine: int | None = None
    """Default number of passes that fit a student's audio to its mel spectrogram; None: 0."""
    float16: bool = False
    """Round the weights of an image model to half precision, and measure the rounded model."""


def origin(given: ExportArguments, data: Path | str, network: tf.Module, command: str) -> dict:
    """Return the provenance of a network's weights for model.json; of `data`, only the name."""
    seconds = [_seconds(run) for run in (given.run, *given.parts_from)]
    return {
        "data": Path(data).name,
        "data_licence": given.data_licence,
        "weights": int(sum(np.prod(v.shape) for v in network.trainable_variables)),
        "training_seconds": max(1, round(sum(seconds))) if all(seconds) else 0,  # 0: unknown
        "machine": given.machine or machine_name(),
        "command": command,
        "note": given.note,
        "git_revision": git_revision(),
    }


def _seconds(path: Path) -> float:
    if (path / SPEC_FILE).exists():
        return float(json.loads((path / SPEC_FILE).read_text())["training_seconds"])
    return training_seconds(path)


def git_revision() -> str:
    """Return this checkout's git revision; `unknown` without one, even in another repository."""
    command = ["git", "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    top, _, revision = done.stdout.strip().rpartition("\n")
    is_own = done.returncode == 0 and Path(top).resolve() == ROOT
    return revision if is_own else "unknown"


class Measured(NamedTuple):
    """A run and its measurements on the dev set."""

    given: ExportArguments
    model: Any
    stored: dict
    facts: dict
    summary: str
    flags: str = ""
    dtype: DTypeLike = np.float32


def write_folder(
    given: ExportArguments,
    measure: Callable[[ExportArguments, dict], Measured],
    card: Callable[[dict], str],
) -> str:
    """Measure a run on the dev set, write its model folder and card, and return the summary.

    `measure` reads the options and the run's config.json, `card` the contents of model.json.
    """
    found = measure(given, RunDirectory.open(given.run).config())
    given, network, data = found.given, found.model.network, found.stored["data_folder"]
    names = {key: Path(found.stored[key]).name for key in LOCATIONS if found.stored.get(key)}
    stored = found.stored | names
    teacher = f" --teacher {stored['teacher']}" if "teacher" in stored else ""
    made = f"{'distill' if teacher else 'train'} {stored['preset']}{teacher}"
    folder = shlex.quote(stored["data_folder"])
    command = f"onepass {made} --data {folder} --workdir run{found.flags}"
    spec = {**found.model.spec, **origin(given, data, network, command), **found.facts}
    save(network, spec, stored, given.out, found.dtype)
    write_text(Path(given.out) / "card.md", card(spec))
    return found.summary


def training_lines(spec: dict) -> str:
    """Return a model's training time, command and git revision as items of a Markdown list."""
    steps = "several runs" if spec["step"] is None else f"{spec['step']:,} steps"
    return (
        f"- Training: {steps}{in_time(spec['training_seconds'])} on {spec['machine']}.\n"
        f"- Command: `{spec['command']}` {spec['note']}\n"
        f"- Revision when this folder was written: {spec['git_revision']}"
    )


def measure_table(
    systems: Mapping[str, Mapping[str, dict]], cell: Callable[[dict], str] = format_measure
) -> str:
    """Return several systems' measures as rows of a Markdown table, one row per measure."""
    names: Sequence[str] = list(next(iter(systems.values())))
    rows = ([n.replace("_", " "), *(cell(each[n]) for each in systems.values())] for n in names)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_two_columns(measured: dict) -> str:
    """Return a measure as two cells of a Markdown table: its mean, and its interval with n."""
    return f"{measured['mean']:.3f} | {format_interval(measured)}"
