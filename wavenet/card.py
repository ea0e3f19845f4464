"""A run exported as a folder: weights, conventions of the features, level, and a model card."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from replicator.runs.atomic_files import replacing
from replicator.runs.model_folder import save
from replicator.runs.progress import duration
from replicator.runs.provenance import git_revision, machine_name, training_seconds
from replicator.runs.run_directory import RunDirectory
from wavenet.data.recordings import ScanReport
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.model import load
from wavenet.training import scan_folder

COPIES = 20  # dev recordings at most that the distances of the card are measured on


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """What to write a model folder from: model.json, weights.npz (average weights) and card.md."""

    run: Path
    """Run directory."""
    out: Path
    """Folder to write; made if missing."""
    data_licence: str = "unknown"
    """Licence of the recordings, and whose they are, for the card."""
    note: str = ""
    """Anything else that the card shall say of the training."""
    machine: str | None = None
    """What it was trained on; None: this machine."""


def export(given: ExportArguments) -> str:
    """Measures a run's WaveNet on dev and writes the folder; what was measured, in words."""
    # What bfloat16 saves in training it does not save in sampling, where float32 is exact.
    stored, model = RunDirectory.open(given.run).config(), load(given.run, "float32")
    data = Path(stored["data_folder"])
    network = {**stored["network"], "compute_dtype": "float32"}
    stored = {**stored, "network": network, "data_folder": data.name}
    figures = evaluate(model, dev_corpus(model, data), copies=COPIES)
    report = scan_folder(data, model.config)
    command = f"onepass train {stored['preset']} --data {data.name} --workdir run"
    facts = provenance(given, data, report, model.network, command) | {"quality": figures}
    write(given.out, model.network, {**model.spec, **facts}, stored, card)
    return f"{figures['bits_per_sample']:.3f} bits per sample on dev"


def provenance(
    given: ExportArguments, data: Path, report: ScanReport, network: tf.Module, command: str
) -> dict:
    """Where a model comes from, as model.json says it.

    Args:
      given: the command line. data, report: what it was trained on. network: its weights.
      command: that made the run.
    """
    minutes = sum(r.measured.seconds for r in report.of("train")) / 60
    return {
        "data": data.name,
        "data_licence": given.data_licence,
        "train_minutes": round(minutes, 1),
        "weights": int(sum(np.prod(v.shape) for v in network.trainable_variables)),
        "training_seconds": round(training_seconds(given.run)),
        "machine": given.machine or machine_name(),
        "command": command,
        "note": given.note,
        "git_revision": git_revision(),
    }


def write(
    folder: Path, network: tf.Module, spec: dict, stored: dict, card: Callable[[dict], str]
) -> None:
    """Writes a model folder and the card of what its model.json says."""
    save(network, spec, stored, folder)
    with replacing(Path(folder) / "card.md") as temporary:
        temporary.write_text(card(spec))


def card(spec: dict) -> str:
    """The card, Markdown, of what model.json says."""
    quality = spec["quality"]
    measures = "\n".join(
        f"| {name.replace('_', ' ')} | {m['mean']:.3f} | {m['low']:.3f} to {m['high']:.3f} |"
        for name, m in quality["measures"].items()
    )
    mel = spec["features"]["mel"]
    dev = quality["dev"]
    part = f", the half `{dev['part']}`" if dev.get("part") in ("choose", "report") else ""
    return f"""# {spec["preset"]}

A WaveNet for {spec["sample_rate_hz"]:,} Hz speech, {spec["weights"]:,} weights, receptive field
{spec["receptive_field_samples"]} samples{", conditioned on mel spectrograms" if mel else ""}.

- Data: {spec["data"]}, {spec["train_minutes"]} minutes of training. {spec["data_licence"]}
- Level: recordings are amplified by {spec["gain_db"]:+.2f} dB before anything else.
- Features: {json.dumps(mel) if mel else "none"}; the network reads 1 - mel / log(floor).
- Training: {spec["step"]:,} steps in {duration(spec["training_seconds"])} on {spec["machine"]}.
- Command: `{spec["command"]}` {spec["note"]}
- Revision when this folder was written: {spec["git_revision"]}

Measured on {dev["recordings"]} dev recordings ({dev["seconds"]:.0f} s{part}) that
it was not trained on; the intervals are 95% bootstrap intervals over recordings:

| | mean | interval |
|---|---|---|
{measures}
| FLAC at its best, bits per sample | {quality["codec"]["flac"]:.3f} | |
| real-time factor | {quality["real_time_factor"]:.2f} | |
"""
