"""Export of a student's run as a model folder, with a card that compares it with its teacher."""

import json
from pathlib import Path

from distill.evaluation import evaluate
from distill.model import StudentModel, teacher_of
from distill.teacher import digest, load_teacher
from replicator.runs.progress import duration
from replicator.runs.run_directory import RunDirectory
from wavenet import card as wavenet_card
from wavenet import model as wavenet_model
from wavenet.evaluation import dev_corpus
from wavenet.training import scan_folder


def export(given: wavenet_card.ExportArguments, model: StudentModel) -> str:
    """Evaluates a run's student and its teacher on dev, writes the folder; returns a line on it."""
    stored = RunDirectory.open(given.run).config()
    teacher = load_teacher(teacher_of(model))
    data = Path(stored["data_folder"])
    name = _shipped_name(stored)
    stored = {**stored, "data_folder": data.name, "teacher": name}
    figures = evaluate(model, teacher, dev_corpus(teacher, data))
    report = scan_folder(data, teacher.config)
    command = (
        f"onepass distill {stored['preset']} --teacher {name} --data {data.name} --workdir run"
    )
    facts = wavenet_card.provenance(given, data, report, model.network, command)
    spec = {**model.spec, **facts, "teacher": name, "quality": figures}
    wavenet_card.write(given.out, model.network, spec, stored, card)
    distance = figures["measures"]["log_mel_distance_db"]["mean"]
    return f"log-mel distance {distance:.2f} dB on dev"


def _shipped_name(stored: dict) -> str:
    """Returns the teacher's public name: the shipped one's, else the name of its folder."""
    shipped = wavenet_model.load(Path(wavenet_model.SHIPPED))
    if digest(shipped.network) == stored["teacher_weights"]:
        return wavenet_model.SHIPPED
    return Path(stored["teacher"]).name


def card(spec: dict) -> str:
    """Returns the model card, Markdown, of a model.json."""
    quality, mel = spec["quality"], spec["features"]["mel"]
    kl = quality["kl_nats"]
    systems = {"student": quality, **quality["against"]}
    measures = "\n".join(
        f"| {name.replace('_', ' ')} | "
        + " | ".join(_cell(system["measures"][name]) for system in systems.values())
        + " |"
        for name in quality["measures"]
    )
    factors = " | ".join(f"{system['real_time_factor']:.3f}" for system in systems.values())
    return f"""# {spec["preset"]}

A Parallel WaveNet for {spec["sample_rate_hz"]:,} Hz speech, {spec["weights"]:,} weights: inverse
autoregressive flows{", conditioned on mel spectrograms" if mel else ""}, distilled from the teacher
`{spec["teacher"]}` (weights {spec["teacher_weights"]}).

- Data: {spec["data"]}, {spec["train_minutes"]} minutes of training. {spec["data_licence"]}
- Level: recordings are amplified by {spec["gain_db"]:+.2f} dB before anything else.
- Features: {json.dumps(mel) if mel else "none"}; the network reads 1 - mel / log(floor).
- Training: {spec["step"]:,} steps in {duration(spec["training_seconds"])} on {spec["machine"]}.
- Command: `{spec["command"]}` {spec["note"]}
- Revision when this folder was written: {spec["git_revision"]}

Measured on {quality["dev"]["recordings"]} dev recordings ({quality["dev"]["seconds"]:.0f} s) that
it was not trained on, from the same mel for all; means with 95% bootstrap intervals.
KL from the teacher: {kl["mean"]:.3f} nats a sample ({kl["low"]:.3f} to {kl["high"]:.3f}).

| | {" | ".join(name.replace("_", " ") for name in systems)} |
|---{"|---" * len(systems)}|
{measures}
| real-time factor | {factors} |
"""


def _cell(measured: dict) -> str:
    return f"{measured['mean']:.3f} ({measured['low']:.3f} to {measured['high']:.3f})"
