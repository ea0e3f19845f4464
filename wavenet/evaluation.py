"""How good a WaveNet is: bits per sample against FLAC, and how close its speech comes."""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np

from replicator.runs.errors import UserError
from replicator.runs.intervals import finite_mean, weighted_mean
from replicator.runs.progress import Progress
from wavenet.data import audio
from wavenet.data.corpus import Corpus
from wavenet.density import Density
from wavenet.evaluation_callback import condition_of, dev_recordings
from wavenet.features.mel import MelConvention
from wavenet.measures.quality import measure
from wavenet.model import SpeechModel
from wavenet.training import prepare_corpus, scan_folder


def evaluate(model: SpeechModel, corpus: Corpus, spoken: int = 4, seed: int = 0) -> dict:
    """The figures of a model on the dev recordings of a corpus, as `evaluate --json` prints them.

    Args:
      model: at the corpus's rate, features and level.
      spoken: dev recordings (their first three seconds) spoken again, at least 1; what they sound
        like is measured for a model with frames.
      seed: of the noise.

    Returns a dict with bits_per_sample, real_time_factor (seconds of computing a second of sound,
    batch 1), measures {name: {mean, low, high}}, codec {"flac": bits per sample} and dev, what it
    was measured on: {recordings, seconds}.

    Raises UserError if no dev recording is of a speaker that the model knows.
    """
    if spoken < 1:
        raise UserError(f"`spoken` must be at least 1, got {spoken}.")
    items = dev_recordings(model.network, corpus, model.config.data.features, model.known_speakers)
    bits, samples = _bits(model, items)
    measures = {"bits_per_sample": weighted_mean(bits, samples, seed)}
    heard, factor = _speak(model, items[:spoken], seed)
    for name in heard[0] if heard else ():
        measures[name] = finite_mean([h[name] for h in heard], seed)
    flac = [audio.flac_bits_per_sample(i["samples"], corpus.sample_rate_hz) for i in items]
    return {
        "bits_per_sample": measures["bits_per_sample"].mean,
        "real_time_factor": factor,
        "measures": {name: dataclasses.asdict(m) for name, m in measures.items()},
        "codec": {"flac": float(np.average(flac, weights=samples))},
        "dev": {"recordings": len(items), "seconds": float(samples.sum()) / corpus.sample_rate_hz},
    }


def dev_corpus(model: SpeechModel, data: Path) -> Corpus:
    """The dev recordings of a folder, prepared as the model needs them."""
    report = scan_folder(data, model.config)
    report = dataclasses.replace(report, recordings=report.of("dev"))
    return prepare_corpus(report, model.config, None, gain_db=model.gain_db)


def _bits(model: SpeechModel, items: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    density, bits = Density(model.network), []
    with Progress(len(items), "evaluating", "recording") as progress:
        for item in items:
            levels = model.network.likelihood.encode(item["waveform"]).numpy()
            log_prob = density.log_prob(levels, *condition_of(model.network, item))
            bits.append(-float(np.mean(log_prob, dtype=np.float64)) / math.log(2.0))
            progress.advance(bits_per_sample=bits[-1])
    return np.array(bits), np.array([len(item["waveform"]) for item in items], np.float64)


def _speak(model: SpeechModel, items: list[dict], seed: int) -> tuple[list[dict], float]:
    """Distances of re-spoken recordings, and the seconds that a second of sound took."""
    rate_hz = model.sample_rate_hz
    _spoken(model, items[0], rate_hz // 10, seed)  # compiles
    heard, seconds, samples = [], 0.0, 0
    for item in items:
        start = time.perf_counter()
        sound = _spoken(model, item, 3 * rate_hz, seed)
        seconds += time.perf_counter() - start
        samples += len(sound)
        if model.conditional:
            heard.append(_distances(model, sound, item["waveform"][: len(sound)]))
    return heard, seconds / (samples / rate_hz)


def _spoken(model: SpeechModel, item: dict, most_samples: int, seed: int) -> np.ndarray:
    """The beginning of a recording, spoken again from its frames and in its speaker's voice."""
    length = min(most_samples, len(item["waveform"]))
    known = model.known_speakers
    return model.generate(
        _frames(model, item, length),
        seed=seed,
        num_samples=length,
        speaker=known[item["speaker"]] if known else None,
    )[0]


def _frames(model: SpeechModel, item: dict, num_samples: int):
    if not model.conditional:
        return None
    return item["frames"][: -(-num_samples // model.config.network.hop_samples)]


def _distances(model: SpeechModel, sound: np.ndarray, recorded: np.ndarray) -> dict[str, float]:
    hop, rate_hz = model.config.network.hop_samples, model.sample_rate_hz
    mel = model.config.data.mel(hop) or MelConvention(rate_hz, hop)
    return measure(sound, recorded, rate_hz, mel)
