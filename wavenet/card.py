"""Export of a run as a folder: weights, conventions of the features, level, and a model card."""

import dataclasses
import json
import shlex
from pathlib import Path

import tensorflow as tf

from foundation.card import (
    ExportArguments,
    in_two_columns,
    measure_table,
    origin,
    training_lines,
    write,
)
from foundation.intervals import EXPLAINED
from foundation.run_directory import RunDirectory
from foundation.stored_config import changed_flags
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.model import SpeechModel, load
from wavenet.presets import PRESETS, TrainConfig
from wavenet.speech_model import TrainedSpeechModel
from wavenet.training import config_from, scan_folder

COPIES = 20  # dev recordings at most that the distances of the card are measured on


def export(given: ExportArguments) -> str:
    """Evaluate a run's WaveNet on dev, write the folder, and return the figures as text."""
    # What bfloat16 saves in training it does not save in sampling, where float32 is exact.
    stored, model = RunDirectory.open(given.run).config(), load(given.run, "float32")
    data = Path(stored["data_folder"])
    if stored.get("start_from"):
        stored["start_from"] = Path(stored["start_from"]).name
    command = f"onepass train {stored['preset']} --data {shlex.quote(data.name)} --workdir run"
    command += _settings(stored)
    network = {**stored["network"], "compute_dtype": "float32"}
    stored = {**stored, "network": network, "data_folder": data.name}
    if given.temperature is not None:
        model = dataclasses.replace(model, spec={**model.spec, "temperature": given.temperature})
    figures = _measured(model, data)
    facts = frame_statistics(model) | provenance(given, data, model.config, model.network, command)
    write(given.out, model.network, {**model.spec, **facts, "quality": figures}, stored, card)
    return f"{figures['bits_per_sample']:.3f} bits per sample on dev"


def _measured(model: SpeechModel, data: Path) -> dict:
    """Return the figures of `evaluate`; of several speakers also "by_speaker", {name: measures}."""
    figures = evaluate(model, dev_corpus(model, data), copies=COPIES)
    if len(model.known_speakers) < 2:
        return figures
    corpora = {name: dev_corpus(model, data, name) for name in model.known_speakers}
    each = {name: evaluate(model, corpora[name], copies=COPIES)["measures"] for name in corpora}
    return {**figures, "by_speaker": each}


def frame_statistics(model: TrainedSpeechModel) -> dict:
    """Return the statistics of frames for model.json, as `frames`; {} where they are unknown."""
    known = model.frame_statistics
    return {} if known is None else {"frames": known.to_dict()}


def _settings(stored: dict) -> str:
    preset = PRESETS.get(stored["preset"])
    if preset is None:
        return ""
    return changed_flags(preset.config.resolved(len(stored["speakers"])), config_from(stored))


def provenance(
    given: ExportArguments, data: Path, config: TrainConfig, network: tf.Module, command: str
) -> dict:
    """Return the provenance of a model of speech for model.json: `origin`, and minutes of train."""
    train = scan_folder(data, config).of("train")
    minutes = sum(r.measured.seconds for r in train) / 60
    return origin(given, data, network, command) | {"train_minutes": round(minutes, 1)}


def data_lines(spec: dict) -> str:
    """Return the data and inputs of a model of speech as items of a Markdown list."""
    mel = spec["features"]["mel"]
    return (
        f"- Data: {spec['data']}, {spec['train_minutes']} minutes of training. "
        f"{spec['data_licence']}\n"
        f"- Level: recordings are amplified by {spec['gain_db']:+.2f} dB before anything else.\n"
        f"- Features: {json.dumps(mel) if mel else 'none'}; the network reads 1 - mel / log(floor)."
    )


def card(spec: dict) -> str:
    """Return the model card, Markdown, of a model.json."""
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
    """Return FLAC's row of the table, for a model of the same 16-bit samples; "" for another."""
    return f"| FLAC at its best, bits per sample | {codec['flac']:.3f} | |\n" if codec else ""


def _speakers_table(by_speaker: dict) -> str:
    if not by_speaker:
        return ""
    rows = measure_table(by_speaker)
    return f"""
Of each speaker's recordings alone:

| | {" | ".join(by_speaker)} |
|---|{"---|" * len(by_speaker)}
{rows}
"""
