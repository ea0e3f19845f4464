"""Measurements of a trained WaveNet, and its model card."""

import dataclasses
import json
from pathlib import Path

from onepass.foundation.card import (
    ExportArguments,
    Measured,
    in_two_columns,
    measure_table,
    training_lines,
)
from onepass.foundation.measures import EXPLAINED
from onepass.foundation.stored_config import changed_flags
from onepass.trained import Trained
from wavenet.config import PRESETS, TrainConfig, config_from
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.model import load
from wavenet.training import scan_folder

COPIES = 20  # maximum number of dev recordings that are resynthesised for the card


def measure(given: ExportArguments, stored: dict) -> Measured:
    """Evaluate a run's WaveNet for its card; `stored` is the content of the run's config.json."""
    # bfloat16 saves time in training but not in sampling, where float32 is exact.
    model, data = load(given.run, "float32"), Path(stored["data_folder"])
    if stored.get("start_from"):
        stored["start_from"] = Path(stored["start_from"]).name
    if given.temperature is not None:
        front = dataclasses.replace(model.front, temperature=given.temperature)
        spec = {**model.spec, "temperature": given.temperature}
        model = dataclasses.replace(model, front=front, spec=spec)
    figures = _measure_model(model, data)
    network = {**stored["network"], "compute_dtype": "float32"}
    facts = data_facts(model, data, model.config) | {"quality": figures}
    summary = f"{figures['bits_per_sample']:.3f} bits per sample on dev"
    return Measured(given, model, stored | {"network": network}, facts, summary, _settings(stored))


def _measure_model(model: Trained, data: Path) -> dict:
    figures = evaluate(model, dev_corpus(model, data), copies=COPIES)
    if len(model.front.speakers) < 2:
        return figures
    corpora = {name: dev_corpus(model, data, name) for name in model.front.speakers}
    each = {name: evaluate(model, corpora[name], copies=COPIES)["measures"] for name in corpora}
    return {**figures, "by_speaker": each}


def _settings(stored: dict) -> str:
    preset = PRESETS.get(stored["preset"])
    if preset is None:
        return ""
    return changed_flags(
        preset.config.resolve_settings(len(stored["speakers"])), config_from(stored)
    )


def data_facts(model: Trained, data: Path, config: TrainConfig) -> dict:
    """Return the entries of model.json about the data: "train_minutes" and, if known, "frames"."""
    known = model.front.statistics
    seconds = sum(r.measured.seconds for r in scan_folder(data, config).of("train"))
    frames = {} if known is None else {"frames": known.to_dict()}
    return frames | {"train_minutes": round(seconds / 60, 1)}


def data_lines(spec: dict) -> str:
    """Return Markdown list items that describe a speech model's training data and inputs."""
    mel = spec["features"]["mel"]
    read = f"{json.dumps(mel)}; the network reads 1 - mel / log(floor)" if mel else "none"
    return (
        f"- Data: {spec['data']}, {spec['train_minutes']} minutes of training. "
        f"{spec['data_licence']}\n"
        f"- Level: recordings are amplified by {spec['gain_db']:+.2f} dB before anything else.\n"
        f"- Features: {read}."
    )


def card(spec: dict) -> str:
    """Return the model card, as Markdown; `spec` is the content of model.json."""
    quality = spec["quality"]
    dev = quality["dev"]
    part = f", the half `{dev['part']}`" if dev.get("part") in ("choose", "report") else ""
    mel = ", conditioned on mel spectrograms" if spec["features"]["mel"] else ""
    return f"""# {spec["preset"]}

A WaveNet for {spec["sample_rate_hz"]:,} Hz speech, {spec["weights"]:,} weights, receptive field
{spec["receptive_field_samples"]} samples{mel}.

{data_lines(spec)}
{training_lines(spec)}

Measured on {dev["recordings"]} dev recordings ({dev["seconds"]:.0f} s{part}) that
it was not trained on. Over recordings, {EXPLAINED}:

| | mean | interval |
|---|---|---|
{measure_table({"model": quality["measures"]}, in_two_columns)}
{_codec_line(quality["codec"])}| real-time factor | {quality["real_time_factor"]:.2f} | |
{_speakers_table(quality.get("by_speaker", {}))}"""


def _codec_line(codec: dict) -> str:
    return f"| FLAC at its best, bits per sample | {codec['flac']:.3f} | |\n" if codec else ""


def _speakers_table(by_speaker: dict) -> str:
    if not by_speaker:
        return ""
    rows = measure_table(by_speaker)
    return f"""
For each speaker separately:

| | {" | ".join(by_speaker)} |
|---|{"---|" * len(by_speaker)}
{rows}
"""
