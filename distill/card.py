"""Export of a student's run as a model folder, with a card that compares it with its teacher."""

import dataclasses
import shlex
from pathlib import Path

from distill.evaluation import evaluate
from distill.model import load_student, teacher_of
from distill.teacher import digest, load_teacher
from foundation.card import ExportArguments, measure_table, training_lines, write
from foundation.intervals import EXPLAINED, format_measure
from foundation.run_directory import RunDirectory
from wavenet import model as wavenet_model
from wavenet import shipped as teachers
from wavenet.card import data_lines, frame_statistics, provenance
from wavenet.evaluation import dev_corpus


def export(given: ExportArguments) -> str:
    """Evaluate a run's student and its teacher on dev, write the folder, and return a summary."""
    stored, model = RunDirectory.open(given.run).config(), load_student(given.run)
    teacher = load_teacher(teacher_of(model))
    data = Path(stored["data_folder"])
    name = _shipped_name(stored)
    stored = {**stored, "data_folder": data.name, "teacher": name}
    chosen = {"temperature": given.temperature, "refine": given.refine}
    chosen = {option: value for option, value in chosen.items() if value is not None}
    model = dataclasses.replace(model, spec={**model.spec, **chosen})
    figures = evaluate(model, teacher, dev_corpus(teacher, data))
    command = (
        f"onepass distill {stored['preset']} --teacher {name} --data {shlex.quote(data.name)} "
        "--workdir run"
    )
    facts = frame_statistics(model) | provenance(
        given, data, teacher.config, model.network, command
    )
    spec = {**model.spec, **facts, "teacher": name, "quality": figures}
    write(given.out, model.network, spec, stored, card)
    distance = figures["measures"]["log_mel_distance_db"]["mean"]
    return f"log-mel distance {distance:.2f} dB on dev"


def _shipped_name(stored: dict) -> str:
    """Return the teacher's public name: that of a shipped one, else the name of its folder."""
    for name in teachers.FOLDERS:
        if digest(wavenet_model.load(Path(name)).network) == stored["teacher_weights"]:
            return name
    return Path(stored["teacher"]).name


def card(spec: dict) -> str:
    """Return the model card as Markdown, from the content of a model.json."""
    quality, kl = spec["quality"], spec["quality"]["kl_nats"]
    mel = ", conditioned on mel spectrograms" if spec["features"]["mel"] else ""
    systems = {"student": quality, **quality["against"]}
    measures = {name: system["measures"] for name, system in systems.items()}
    factors = " | ".join(f"{system['real_time_factor']:.3f}" for system in systems.values())
    return f"""# {spec["preset"]}

A Parallel WaveNet for {spec["sample_rate_hz"]:,} Hz speech, {spec["weights"]:,} weights: inverse
autoregressive flows{mel}, distilled from the teacher
`{spec["teacher"]}` (weights {spec["teacher_weights"]}).

{data_lines(spec)}
{training_lines(spec)}

Measured on {quality["dev"]["recordings"]} dev recordings ({quality["dev"]["seconds"]:.0f} s) that
it was not trained on, from the same mel for all. Over recordings, {EXPLAINED}.
KL from the teacher: {format_measure(kl)} nats per sample.

| | {" | ".join(name.replace("_", " ") for name in systems)} |
|---{"|---" * len(systems)}|
{measure_table(measures)}
| real-time factor | {factors} |
"""
