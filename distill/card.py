"""Measurements of a trained student, and its model card, which compares it with its teacher."""

import dataclasses
from pathlib import Path

from distill.evaluation import evaluate
from distill.model import load_student, teacher_of
from distill.teacher import digest, load_teacher
from onepass import shipped
from onepass.foundation.card import ExportArguments, Measured, measure_table, training_lines
from onepass.foundation.measures import EXPLAINED, format_measure
from wavenet import model as wavenet_model
from wavenet.card import data_facts, data_lines
from wavenet.evaluation import dev_corpus


def measure(given: ExportArguments, stored: dict) -> Measured:
    """Evaluate a run's student on dev recordings; `stored` is the content of its config.json."""
    model = load_student(given.run)
    teacher = load_teacher(teacher_of(model))
    data, name = Path(stored["data_folder"]), _shipped_name(stored)
    chosen = {"temperature": given.temperature, "refine": given.refine}
    chosen = {option: value for option, value in chosen.items() if value is not None}
    front = dataclasses.replace(model.front, **chosen)
    model = dataclasses.replace(model, front=front, spec={**model.spec, **chosen})
    figures = evaluate(model, teacher, dev_corpus(teacher, data))
    facts = data_facts(model, data, teacher.config) | {"teacher": name, "quality": figures}
    distance = figures["measures"]["log_mel_distance_db"]["mean"]
    summary = f"log-mel distance {distance:.2f} dB on dev"
    return Measured(given, model, stored | {"teacher": name}, facts, summary)


def _shipped_name(stored: dict) -> str:
    for name in shipped.names_in("wavenet"):
        if digest(wavenet_model.load(Path(name)).network) == stored["teacher_weights"]:
            return name
    return Path(stored["teacher"]).name


def card(spec: dict) -> str:
    """Return the model card in Markdown for the content of a model.json."""
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
