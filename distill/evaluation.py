"""How good a student is: beside its teacher and two baselines that speak from the same frames."""

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from distill.losses import kl_divergence
from distill.model import StudentModel, untrained
from distill.student import Condition
from distill.teacher import WaveNetDensity
from replicator.runs.intervals import Measure, finite_mean, weighted_mean
from replicator.runs.progress import Progress
from wavenet.data import Corpus, audio
from wavenet.evaluation_callback import dev_recordings
from wavenet.features import MelConvention, mel_spectrogram
from wavenet.features.mel_inversion import griffin_lim
from wavenet.measures import measure
from wavenet.model import SpeechModel

SPOKEN_SECONDS = 3
DRAWS = 32
Speak = Callable[[dict, int], np.ndarray]


def evaluate(
    model: StudentModel,
    teacher: SpeechModel,
    corpus: Corpus,
    spoken: int | None = None,
    seed: int = 0,
) -> dict:
    """The figures of a student on the dev recordings of a corpus, as `evaluate --json` prints them.

    Args:
      model, teacher: at the corpus's rate, features and level.
      spoken: dev recordings (their first three seconds) spoken again; None: all.
      seed: of the noise.

    Returns a dict with kl_nats (nats a sample), real_time_factor (seconds of computing a second of
    sound, batch 1), measures {name: {mean, low, high}} of the student, against {"teacher",
    "griffin_lim", "untrained", "draft": {"measures", "real_time_factor"}}, codec {"flac": bits per
    sample} and dev, what it was measured on.

    Raises UserError if no dev recording is of a speaker that the model knows.
    """
    features = teacher.config.data.features
    items = dev_recordings(teacher.network, corpus, features, model.known_speakers)[:spoken]
    convention = corpus.mel or MelConvention(model.sample_rate_hz)
    heard = {
        name: _evaluate_system(name, speak, items, convention, seed)
        for name, speak in systems(model, teacher, convention, seed).items()
    }
    student = heard.pop("student")
    samples = np.array([len(item["waveform"]) for item in items], np.float64)
    flac = [audio.flac_bits_per_sample(i["samples"], corpus.sample_rate_hz) for i in items]
    return {
        "kl_nats": dataclasses.asdict(_kl(model, teacher, items, seed)),
        **student,
        "against": heard,
        "codec": {"flac": float(np.average(flac, weights=samples))},
        "dev": {
            "recordings": len(items),
            "seconds": float(sum(_length(item, model) for item in items)) / model.sample_rate_hz,
        },
    }


def systems(
    model: StudentModel, teacher: SpeechModel, convention: MelConvention, seed: int
) -> dict[str, Speak]:
    """What speaks, by name: functions from a dev recording and a length to a sound."""
    speaking: dict[str, Speak] = {
        "student": functools.partial(_spoken, model, seed),
        "teacher": functools.partial(_spoken, teacher, seed),
        "untrained": functools.partial(_spoken, untrained(model), seed),
    }
    if model.network.drafter is not None:
        speaking["draft"] = functools.partial(_drafted, model)
    if reads_mel(model):
        speaking["griffin_lim"] = functools.partial(_griffin_lim, convention, seed)
    return speaking


def reads_mel(model: StudentModel) -> bool:
    """Whether the student speaks from mel frames, as Griffin and Lim's algorithm does."""
    return "mel" in model.data.features


def in_words(figures: dict) -> str:
    """The figures as lines of text, a column for each system."""
    names = ["student", *figures["against"]]
    systems_ = [figures, *figures["against"].values()]
    lines = [
        f"{figures['model']}, step {figures['step']}, on {figures['dev']['recordings']} dev "
        f"recordings ({figures['dev']['seconds']:.0f} s) of {figures['data']}",
        f"KL from the teacher {figures['kl_nats']['mean']:.3f} nats a sample "
        f"(95%: {figures['kl_nats']['low']:.3f} to {figures['kl_nats']['high']:.3f})",
        "",
        f"{'':32s}" + "".join(f"{name.replace('_', ' '):>26s}" for name in names),
    ]
    for name in figures["measures"]:
        cells = "".join(f"{_cell(system['measures'][name]):>26s}" for system in systems_)
        lines.append(f"{name.replace('_', ' '):32s}{cells}")
    factors = "".join(f"{system['real_time_factor']:>26.3f}" for system in systems_)
    lines.append(f"{'real-time factor':32s}{factors}")
    lines.append("\nMeans with 95% bootstrap intervals over recordings.")
    return "\n".join(lines)


def _cell(measured: dict) -> str:
    return f"{measured['mean']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}]"


def _evaluate_system(
    name: str, speak: Speak, items: list[dict], convention: MelConvention, seed: int
) -> dict:
    """The measures and the real-time factor of one system."""
    rate_hz = convention.sample_rate_hz
    speak(items[0], min(rate_hz // 2, len(items[0]["waveform"])))  # compiles
    values, seconds, samples = [], 0.0, 0
    with Progress(len(items), name.replace("_", " "), "recording") as progress:
        for item in items:
            length = min(SPOKEN_SECONDS * rate_hz, len(item["waveform"]))
            start = time.perf_counter()
            sound = speak(item, length)
            seconds += time.perf_counter() - start
            samples += length
            values.append(measure(sound, item["waveform"][:length], rate_hz, convention))
            progress.advance()
    return {
        "real_time_factor": seconds / (samples / rate_hz),
        "measures": {
            key: dataclasses.asdict(finite_mean([v[key] for v in values], seed))
            for key in values[0]
        },
    }


def _griffin_lim(convention: MelConvention, seed: int, item: dict, length: int) -> np.ndarray:
    mel = mel_spectrogram(item["waveform"][:length], convention)
    return griffin_lim(mel, convention, length, seed=seed)


def _drafted(model: StudentModel, item: dict, length: int) -> np.ndarray:
    """What the flows were given to finish."""
    frames, speaker = _given(model, item, length)
    return np.asarray(_condition(model, frames, speaker, length).draft)[0]


def _condition(model: StudentModel, frames, speaker, length: int) -> Condition:
    return model.network.condition(frames, speaker, length)[0]


def _given(model: StudentModel, item: dict, length: int):
    """Frames and speaker of a dev recording as a batch of one, None where there are none."""
    frames = speaker = None
    if model.conditional:
        frames = tf.constant(item["frames"][None, : -(-length // model.hop_samples)])
    if model.known_speakers:
        speaker = tf.constant([item["speaker"]])
    return frames, speaker


def _spoken(model: StudentModel | SpeechModel, seed: int, item: dict, length: int) -> np.ndarray:
    known = model.known_speakers
    frames = item["frames"][: -(-length // model.hop_samples)] if model.conditional else None
    speaker = known[item["speaker"]] if known else None
    return model.generate(frames, seed=seed, num_samples=length, speaker=speaker)[0]


def _kl(model: StudentModel, teacher: SpeechModel, items: list[dict], seed: int) -> Measure:
    """KL(P_S || P_T) in nats a sample, over what the student says of each recording."""
    density, student = WaveNetDensity(teacher.network), model.network
    kind = student.noise_kind
    values = []
    for item in items:
        length = _length(item, model)
        frames, speaker = _given(model, item, length)
        noise = student.noise(seed, [0], 0, length)
        drawn = student.sample(noise, _condition(model, frames, speaker, length))
        given = density.conditionals(drawn.output, density.condition(frames, speaker, length))
        draws = kl_divergence.standard_draws(kind, seed, 1, length, DRAWS)
        values.append(float(kl_divergence.divergence(given, drawn, draws, kind).kl))
    return weighted_mean(np.array(values), np.ones(len(values)), seed)


def _length(item: dict, model: StudentModel) -> int:
    return min(SPOKEN_SECONDS * model.sample_rate_hz, len(item["waveform"]))
