"""Measurements of a WaveNet, bits per sample and likeness to the recordings, and its card."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.card import (
    ExportArguments,
    Measured,
    in_two_columns,
    measure_table,
    training_lines,
)
from onepass.foundation.files import count_noun
from onepass.foundation.measures import EXPLAINED, format_measure, weighted_mean
from onepass.foundation.progress import show_progress
from onepass.foundation.rules import UserError, changed_flags, require
from onepass.likelihoods import Codec
from onepass.trained import Trained
from wavenet.config import PRESETS, TrainConfig, config_from
from wavenet.copy_synthesis import (
    SoundsCallback,
    at_temperatures,
    baselines,
    compare,
    extra_temperatures,
    model_system,
    real_time_factor,
    table,
)
from wavenet.data import audio
from wavenet.data.corpus import Corpus
from wavenet.density import Density
from wavenet.dev_parts import DevPart
from wavenet.dev_recordings import dev_recordings
from wavenet.features.frames import MelConvention
from wavenet.linear_prediction import ORDER, measure_untrained_bits
from wavenet.model import load
from wavenet.optional_packages import describe_unavailable, list_unavailable
from wavenet.training import prepare_corpus, scan_folder

SIXTEEN_BITS = 65536  # levels of the samples that FLAC and mel-LPC code


def evaluate(
    model: Trained,
    corpus: Corpus,
    copies: int = 4,
    seed: int = 0,
    part: DevPart = "report",
    temperatures: Sequence[float] = (),
    on_sounds: SoundsCallback | None = None,
) -> dict:
    """Evaluate a model on dev recordings.

    If the model reads frames, it and the baselines resynthesise `copies` of them, evenly spaced by
    name (the first three seconds of each). The model does so at temperature 1, at its default
    temperature, and at the `temperatures`.

    Returns:
      A dict with:
      - bits_per_sample, and measures {name: `Measure`};
      - real_time_factor: seconds of computing time per second of audio, at batch size 1;
      - codec {"flac": bits per sample}, empty unless the model codes 16-bit samples;
      - dev {part, recordings, seconds}, and not_measured {extra: names of measures};
      - against {system: {measures, real_time_factor}}, if the model reads frames;
      - untrained_predictor {order, bits_per_sample: `Measure`}, for mel frames and 16-bit levels.
    """
    require(copies >= 1, "copies", "at least 1", copies)
    features = model.config.data.features
    items = dev_recordings(model.network, corpus, features, model.front.speakers, part)
    shown = show_progress(items, "evaluating", "recording")
    lengths = Density(model.network).code_lengths(shown)
    mean_bits = weighted_mean(lengths.bits_per_element, lengths.sizes)
    spread = items[:: max(1, len(items) // copies)][:copies]
    sixteen_bit = codes_16_bit_samples(model.network.codec)
    system, rate_hz = model_system(model, seed), model.front.sample_rate_hz
    compared: dict[str, Any] = {}
    if model.front.conditional:
        convention = model.front.mel or MelConvention(rate_hz, model.front.hop_samples)
        cooler = at_temperatures(model, seed, extra_temperatures(model, temperatures))
        systems = {"model": system, **cooler, **baselines(convention, seed)}
        against = compare(systems, spread, convention, on_sounds)
        compared = {**against.pop("model"), "against": against}
    else:
        compared = {"real_time_factor": real_time_factor(system, spread, rate_hz), "measures": {}}
    measures = {"bits_per_sample": dataclasses.asdict(mean_bits), **compared.pop("measures")}
    untrained, mel = {}, model.front.mel
    if sixteen_bit and mel is not None:
        order = model.config.network.prediction_order or ORDER
        bits, samples = measure_untrained_bits(items, mel, order)
        mean = dataclasses.asdict(weighted_mean(bits, samples))
        untrained = {"untrained_predictor": {"order": order, "bits_per_sample": mean}}
    return {
        "bits_per_sample": mean_bits.mean,
        "measures": measures,
        **compared,
        **untrained,
        **describe_dev_set(items, part, float(lengths.sizes.sum()) / corpus.sample_rate_hz, corpus),
        **({} if sixteen_bit else {"codec": {}}),
    }


def describe_dev_set(items: list[dict], part: DevPart, seconds: float, corpus: Corpus) -> dict:
    """Return the entries "codec", "dev" and "not_measured" of an evaluation's result."""
    flac = [audio.flac_bits_per_sample(i["samples"], corpus.sample_rate_hz) for i in items]
    samples = [len(item["waveform"]) for item in items]
    return {
        "codec": {"flac": float(np.average(flac, weights=samples))},
        "dev": {"part": part, "recordings": len(items), "seconds": seconds},
        "not_measured": list_unavailable(),
    }


def dev_corpus(model: Trained, data: Path, speaker: str | None = None) -> Corpus:
    """Return a folder's dev recordings, or only one speaker's, prepared as the model needs them."""
    report = scan_folder(data, model.config)
    recordings = report.of("dev")
    if speaker is not None:
        model.front.speaker_number(speaker)
        recordings = tuple(r for r in recordings if r.speaker == speaker)
        if not recordings:
            raise UserError(f"No dev recording in {data} is of {speaker}.")
    report = dataclasses.replace(report, recordings=recordings)
    config = dataclasses.replace(model.config, pitch_steps=0)  # no pitch reader is trained
    return prepare_corpus(report, config, None, gain_db=model.front.gain_db)


def format_report(figures: dict) -> str:
    """Return the result of `evaluate`, with "model", "step" and "data" added, as lines of text."""
    bits = figures["measures"]["bits_per_sample"]
    why = "the model's levels are not those of 16-bit samples"
    compared = f"  FLAC               not compared: {why}"
    if flac := figures["codec"].get("flac"):
        change = f"{100 * (bits['mean'] / flac - 1):+.1f}%"
        compared = f"  FLAC at its best   {flac:.3f}   on the same 16-bit samples ({change})"
    lines = [
        f"{figures['model']}, step {figures['step']}, on {heading(figures)}",
        f"  bits per sample    {format_measure(bits)}",
        compared,
    ]
    if predictor := figures.get("untrained_predictor"):
        lines.append(
            f"  mel-LPC, untrained {format_measure(predictor['bits_per_sample'])}, order "
            f"{predictor['order']}, from the same mel"
        )
    lines.append(
        f"  real-time factor   {figures['real_time_factor']:.2f}   "
        "(seconds of computing for a second of sound, batch 1)"
    )
    if "against" in figures:
        measures = {n: m for n, m in figures["measures"].items() if n != "bits_per_sample"}
        lines += ["", *table({"model": {**figures, "measures": measures}, **figures["against"]})]
    return "\n".join([*lines, *filter(None, [describe_unavailable()])])


def codes_16_bit_samples(codec: Codec) -> bool:
    """Return whether a codec's levels are 16-bit PCM, so that bits can be compared with FLAC's."""
    lowest = codec.decode(tf.range(4)).numpy().astype(np.float64)
    steps = np.diff(lowest) * SIXTEEN_BITS
    return codec.levels == SIXTEEN_BITS and bool(np.all(np.abs(steps - 2.0) < 0.1))


def heading(figures: dict) -> str:
    """Return a line of text that says which recordings were evaluated."""
    dev = figures["dev"]
    part = "dev" if dev["part"] == "dev" else f"`{dev['part']}` dev"
    count = count_noun(dev["recordings"], f"{part} recording")
    return f"{count} ({dev['seconds']:.0f} s) of {figures['data']}"


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
    figures = evaluate(model, dev_corpus(model, data), copies=COPIES)
    if len(model.front.speakers) > 1:
        corpora = {name: dev_corpus(model, data, name) for name in model.front.speakers}
        each = {name: evaluate(model, own, copies=COPIES) for name, own in corpora.items()}
        figures["by_speaker"] = {name: own["measures"] for name, own in each.items()}
    network = {**stored["network"], "compute_dtype": "float32"}
    facts = data_facts(model, data, model.config) | {"quality": figures}
    summary = f"{figures['bits_per_sample']:.3f} bits per sample on dev"
    settings, preset = "", PRESETS.get(stored["preset"])
    if preset is not None:
        usual = preset.config.resolve_settings(len(stored["speakers"]))
        settings = changed_flags(usual, config_from(stored))
    return Measured(given, model, stored | {"network": network}, facts, summary, settings)


def data_facts(model: Trained, data: Path, config: TrainConfig) -> dict:
    """Return the entries of model.json about the data: "train_minutes" and, if known, "frames"."""
    known = model.front.statistics
    seconds = sum(r.measured.seconds for r in scan_folder(data, config).of("train"))
    frames = {} if known is None else {"frames": dataclasses.asdict(known)}
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
    codec = quality["codec"]
    flac = f"| FLAC at its best, bits per sample | {codec['flac']:.3f} | |\n" if codec else ""
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
{flac}| real-time factor | {quality["real_time_factor"]:.2f} | |
{_speakers_table(quality.get("by_speaker", {}))}"""


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
