"""Measurements of a student against its teacher and baselines of the same frames, and its card.

A sample x_t drafted from p_S is accepted with probability min(1, p_T(x_t | x_<t) / p_S(x_t | x_<t))
(Leviathan et al. 2023, arXiv 2211.17192, section 2.3). The mean of this probability measures how
close student and teacher are, sample by sample; the number of consecutive accepted samples bounds
the speed-up of speculative sampling with the student's drafts.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distill.cpu import kernels
from distill.losses import divergence
from distill.losses.divergence import ElementDensities
from distill.model import load_student, random_student, teacher_of
from distill.residual import LEVEL
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity, digest, load_teacher
from onepass.foundation import model_folders
from onepass.foundation.card import ExportArguments, Measured, measure_table, training_lines
from onepass.foundation.measures import EXPLAINED, format_measure, weighted_mean
from onepass.foundation.rules import UserError
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.trained import Trained
from wavenet import model as wavenet_model
from wavenet.config import MelConvention
from wavenet.copy_synthesis import (
    SoundsCallback,
    System,
    at_temperatures,
    baselines,
    compare,
    extra_temperatures,
    model_system,
    row_of,
    synthesised_samples,
    table,
)
from wavenet.data.corpus import Corpus
from wavenet.dev_parts import DevPart
from wavenet.dev_recordings import dev_recordings
from wavenet.evaluation import data_facts, data_lines, describe_dev_set, dev_corpus, heading
from wavenet.optional_packages import describe_unavailable


def acceptance(teacher: ElementDensities, drawn: FlowOutput, kind: str) -> tf.Tensor:
    """Return the acceptance probability of each sample in `drawn` given its past, [batch, time]."""
    teacher_density = teacher.log_density(drawn.output)
    return tf.exp(tf.minimum(0.0, teacher_density - divergence.log_density(drawn, kind)))


def mean_run(kept: np.ndarray) -> float:
    """Return the mean over starts of the expected run of accepted samples; `kept` is [time]."""
    run, total = 0.0, 0.0
    for probability in kept[::-1]:
        run = probability * (1.0 + run)
        total += run
    return total / len(kept)


DRAWS = 32  # values drawn per sample to estimate the cross-entropy


class Closeness(NamedTuple):
    """Divergence and entropy of one sound in nats, and each sample's acceptance probability."""

    kl: float
    entropy: float
    kept: np.ndarray


def measure_closeness(
    student: ParallelWaveNet,
    teacher: WaveNetDensity,
    frames: tf.Tensor | None,
    speaker: tf.Tensor | None,
    length: int,
    seed: int,
    row: int = 0,
) -> Closeness:
    """Draw one sound with the student, and measure how close the student is to its teacher.

    Sounds that are averaged need different rows, the indices of their noise under the seed.
    """
    kind = student.noise_kind
    condition, _ = student.condition(frames, speaker, length)
    drawn = student.draw(student.noise(seed, [row], 0, length), condition)
    given = teacher.conditionals(drawn.output, teacher.condition(frames, speaker, length))
    draws = divergence.standard_draws(kind, seed, 1, length, DRAWS, [row])
    apart = divergence.divergence(given, drawn, draws, kind)
    kept = acceptance(given, drawn, kind).numpy()[0]
    return Closeness(float(apart.kl), float(apart.entropy), kept)


def evaluate(
    model: Trained,
    teacher: Trained,
    corpus: Corpus,
    on_sounds: SoundsCallback | None = None,
    *,
    copies: int | None = None,
    seed: int = 0,
    part: DevPart = "report",
    temperatures: Sequence[float] = (),
    teacher_temperatures: Sequence[float] = (),
    peers: Mapping[str, Trained] = MappingProxyType({}),
    others: Mapping[str, System] = MappingProxyType({}),
    speculative_samples: int = 0,
) -> dict:
    """Return the metrics of a student on dev recordings, as `evaluate --json` prints them.

    Args:
      model: the student; `teacher` and `corpus` have its sample rate, features and level.
      on_sounds: function called with the sounds of every system, or None.
      copies: number of dev recordings to use, of which every system resynthesises the first three
        seconds; None: all.
      part: the part of the dev recordings: "report", "choose" (the recordings that select
        checkpoints) or "dev" (both).
      temperatures: further temperatures of the student besides 1 and its own.
      teacher_temperatures: further temperatures of the teacher besides 1.
      peers: further models to compare, by name, of the same sample rate and frames.
      others: further systems, by name, that are not models of this library.
      speculative_samples: number of samples that the teacher draws with the student's drafts; 0: do
        not measure this.

    Returns:
      A dict with kl_nats (nats per sample); acceptance (`probability` that the teacher accepts a
        sample of the student, and `run`, the number accepted in a row); real_time_factor (seconds
        to compute a second of sound, at batch size 1); measures (`intervals.Measure` of the
        student, by name); against (for every other system its measures, real_time_factor, and
        density: whether it has a known density); codec {"flac": bits per sample}; dev {part,
        recordings, seconds} of the measured recordings; not_measured {extra: names}; and, if
        `speculative_samples` is not 0, speculative (the result of `speed_of_speculation`).
    """
    _check_peers(model, peers)
    features, rate_hz = teacher.config.data.features, model.front.sample_rate_hz
    items = dev_recordings(teacher.network, corpus, features, model.front.speakers, part)[:copies]
    convention = corpus.mel or MelConvention(rate_hz)
    for other, item in itertools.product(others.values(), items):
        other(item, synthesised_samples(item, rate_hz))  # raises at once if a sound is missing
    own, its = extra_temperatures(model, temperatures), teacher_temperatures
    compared = systems(model, teacher, convention, seed, own, its, peers, others)
    exact = ("student", "teacher", "untrained", *peers)
    figures = compare(compared, items, convention, on_sounds)
    for name, each in figures.items():
        each["density"] = name in exact or name.rsplit("_at_", 1)[0] in exact
    seconds = sum(synthesised_samples(i, rate_hz) for i in items) / rate_hz
    figures_of_drafts: dict[str, Any] = {}
    if speculative_samples:
        speed = speed_of_speculation(model, teacher, items[0], speculative_samples, seed)
        figures_of_drafts = {"speculative": speed}
    return {
        **closeness(model, teacher, items, seed),
        **figures_of_drafts,
        **figures.pop("student"),
        "against": figures,
        **describe_dev_set(items, part, seconds, corpus),
    }


def _check_peers(model: Trained, peers: Mapping[str, Trained]) -> None:
    read = ("sample_rate_hz", "hop_samples", "features")
    for name, other in peers.items():
        if any(other.spec[each] != model.spec[each] for each in read):
            raise UserError(f"`--beside`: {name} has a different sample rate or different frames.")


def systems(
    model: Trained,
    teacher: Trained,
    convention: MelConvention,
    seed: int,
    temperatures: Sequence[float] = (),
    teacher_temperatures: Sequence[float] = (),
    peers: Mapping[str, Trained] = MappingProxyType({}),
    others: Mapping[str, System] = MappingProxyType({}),
) -> dict[str, System]:
    """Return the student, its teacher, the baselines and the options of `evaluate`, by name."""
    compared: dict[str, System] = {
        "student": model_system(model, seed),
        "teacher": model_system(teacher, seed),
        "untrained": model_system(random_student(model), seed),
    }
    if model.network.residual is not None:
        compared["source_filter"] = functools.partial(_source_filtered, model, seed)
    if model.front.mel is not None:
        compared |= baselines(convention, seed)
    compared |= at_temperatures(model, seed, temperatures, "student")
    compared |= at_temperatures(teacher, seed, teacher_temperatures, "teacher")
    if model.front.refine:
        plain = dataclasses.replace(model, front=dataclasses.replace(model.front, refine=0))
        own = plain.front.temperature
        compared["student_unrefined"] = model_system(plain, seed, own)
    if taken := sorted({*peers, *others} & compared.keys()):
        raise UserError(f"`--beside`: a folder must not be called {taken[0]}: that name is taken.")
    compared |= others
    for name, peer in peers.items():
        compared[name] = model_system(peer, seed)
        compared |= at_temperatures(peer, seed, temperatures, name)
    return compared


def format_report(figures: dict) -> str:
    """Return the metrics as lines of text, with one column per system."""
    kept, speculative = figures["acceptance"], []
    if of := figures.get("speculative"):
        speculative.append(
            f"along the teacher's own samples it keeps {100 * of['acceptance']:.0f} % of its "
            f"drafts, {of['samples_per_pass']:.2f} samples per pass: "
            f"{1e3 * of['seconds_per_sample']:.2f} ms per sample, "
            f"{1e3 * of['cached_seconds_per_sample']:.2f} ms by the cached sampler"
        )
    lines = [
        f"{figures['model']}, step {figures['step']}, on {heading(figures)}",
        f"KL from the teacher, nats per sample: {format_measure(figures['kl_nats'])}",
        f"the teacher would keep {100 * kept['probability']['mean']:.0f} % of its samples, "
        f"{kept['run']['mean']:.2f} in a row",
        *speculative,
        "",
        *table({"student": figures, **figures["against"]}),
    ]
    return "\n".join([*lines, *filter(None, [describe_unavailable()])])


def speed_of_speculation(
    model: Trained, teacher: Trained, item: dict, samples: int, seed: int
) -> dict[str, float]:
    """Return how much the student's drafts speed up the teacher, at batch size 1.

    "acceptance" is the share of drafts that are accepted; the times are without compilation.
    """
    front, seconds = teacher.front, []
    asked: dict[str, Any] = {"length": samples, "seed": seed, "temperature": 1.0}  # for drafts
    asked["condition"] = item["frames"] if front.conditional else None
    asked["speaker"] = front.speakers[item["speaker"]] if front.speakers else None
    ask = functools.partial(teacher.sample, **asked)
    drafted: dict[str, Any] = {"method": "speculative", "draft": model, "acceptance": "rejection"}
    for how in (dict[str, Any](), drafted):
        ask(**how)
        start = time.perf_counter()
        ask(**how)
        seconds.append((time.perf_counter() - start) / samples)
    return {
        "acceptance": teacher.model.passes.acceptance,
        "samples_per_pass": teacher.model.passes.samples_per_pass,
        "seconds_per_sample": seconds[1],
        "cached_seconds_per_sample": seconds[0],
    }


def _source_filtered(model: Trained, seed: int, item: dict, length: int) -> np.ndarray:
    """Return a classical vocoder's sound: the source, or noise, through the linear prediction."""
    frames, speaker = _frames_and_speaker(model, item, length)
    condition, _ = model.network.condition(frames, speaker, length)
    if condition.prediction is None:
        raise ValueError("A student without a prediction filters no source.")
    noise = counter_noise.normal(seed, [row_of(item)], 0, length)[..., 0]
    source = noise
    if condition.source is not None:
        source = tf.where(condition.source == 0.0, noise, condition.source / LEVEL)
    tail = np.zeros([1, model.config.student.prediction_order], np.float32)
    row_samples = model.config.student.row_samples
    sound, _ = kernels.wave(source.numpy(), condition.prediction, tail, row_samples)
    return np.clip(sound[0], -1.0, 1.0)


def _frames_and_speaker(
    model: Trained, item: dict, length: int
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    frames = speaker = None
    if model.front.conditional:
        frames = tf.constant(item["frames"][None, : -(-length // model.front.hop_samples)])
    if model.front.speakers:
        speaker = tf.constant([item["speaker"]])
    return frames, speaker


def closeness(model: Trained, teacher: Trained, items: list[dict], seed: int) -> dict:
    """Return KL(P_S || P_T) and acceptance, averaged over the student's sound of each recording."""
    density = WaveNetDensity(teacher.network)
    values: dict[str, list[float]] = {"kl": [], "probability": [], "run": []}
    for row, item in enumerate(items):
        length = synthesised_samples(item, model.front.sample_rate_hz)
        frames, speaker = _frames_and_speaker(model, item, length)
        close = measure_closeness(model.network, density, frames, speaker, length, seed, row)
        values["kl"].append(close.kl)
        values["probability"].append(float(close.kept.mean()))
        values["run"].append(mean_run(close.kept))
    means = {
        name: dataclasses.asdict(weighted_mean(np.array(each))) for name, each in values.items()
    }
    return {"kl_nats": means.pop("kl"), "acceptance": means}


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
    for name in model_folders.names_in("wavenet"):
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
