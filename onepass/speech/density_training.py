"""Training of the density of a voice's mel frames."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from onepass.foundation.rules import to_json
from onepass.networks.elements import pad_rows
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Outcome
from onepass.replicator.training.training_run import train_network
from onepass.speech.evaluation import BEFORE, BEHIND
from onepass.speech.examples import Example
from onepass.speech.frame_density import (
    STATISTICS,
    conditional,
    context,
    initial_density,
    statistics,
)
from onepass.speech.network import Networks, VoiceConfig, positions
from onepass.speech.training import Scale, read_trained_weights, with_silence
from onepass.speech.voice import Voice

KIND = "speech-density"
LOG_ROOT = 0.5 * np.log(2.0 * np.pi)
Rows = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class DensityConfig:
    """Settings of the density of mel frames around the acoustic model's expected frames."""

    channels: int = 256
    """Number of hidden channels; 0: no density."""
    layers: int = 3
    """Number of gated layers."""
    past: int = 4
    """Number of preceding frames that each frame depends on."""
    temperature: float = 0.7
    """Factor applied to the noise when frames are drawn; 1 samples the density itself."""
    clips: int = 16
    """Number of clips per batch."""
    clip_frames: int = 160
    """Number of frames per clip."""
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=2e-3, decay="cosine", clip_norm=1.0, average_decay=0.998
        )
    )
    loop: LoopConfig = dataclasses.field(
        default_factory=lambda: LoopConfig(5000, evaluate_every_steps=500, save_every_minutes=3.0)
    )
    seed: int = 0
    """Seed of the initial weights and of the batches."""


class FrameDensity(tf.Module):
    """The density of `frame_density.py` with its weights as variables."""

    def __init__(self, config: VoiceConfig, seed: int = 0):
        super().__init__()
        self.config = config
        values = initial_density(config, seed)
        self.weights = {name: tf.Variable(value, name=name) for name, value in values.items()}
        self.networks = Networks(tnp, config, self.weights)

    def nats(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return the negative log density of each whitened frame, in nats, [batch, frames]."""
        past = self.config.density_past
        padded = tf.pad(batch["whitened"], [[0, 0], [past, 0], [0, 0]])
        length = tf.shape(batch["whitened"])[1]
        before = tf.concat(
            [padded[:, past - k : past - k + length] for k in range(1, past + 1)], -1
        )
        known = context(self.networks, batch["expected"], batch["pitch"], batch["positions"])
        means, log_scales = conditional(self.networks, before, known)
        standard = (batch["whitened"] - means) * tf.exp(-log_scales)
        return tf.reduce_sum(0.5 * tf.square(standard) + log_scales + LOG_ROOT, -1)

    def __call__(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the mean of `nats` per band over unpadded frames, and a dict with it."""
        mask = batch["mask"]
        nats = tf.reduce_sum(self.nats(batch) * mask) / tf.reduce_sum(mask) / self.config.bands
        return nats, {"nats": nats}


def rows_of(voice: Voice, examples: Sequence[Example], scale: Scale) -> list[Rows]:
    """Return the density's inputs for each recording; its differences are not yet whitened."""
    rows = []
    for example in examples:
        padded = with_silence(example, BEFORE, BEHIND, scale)
        _, hidden = voice.durations(padded.phonemes)
        expected = voice.expected_frames(hidden, padded.durations, padded.pitch)
        frames = (padded.mel - voice.weights["mel_mean"]) / voice.weights["mel_std"]
        rows.append(
            {
                "difference": (frames - expected).astype(np.float32),
                "expected": expected,
                "pitch": padded.pitch.astype(np.float32),
                "positions": positions(padded.durations),
            }
        )
    return rows


def whiten_difference(row: Rows, weights: dict[str, np.ndarray]) -> Rows:
    """Return the inputs of `FrameDensity` for a recording, with its differences whitened."""
    difference = (row["difference"] - weights["density_shift"]) @ weights["density_whiten"]
    inputs = {name: value for name, value in row.items() if name != "difference"}
    return {**inputs, "whitened": difference, "mask": np.ones(len(difference), np.float32)}


def batches(rows: Sequence[Rows], config: DensityConfig, start_step: int = 0) -> Iterator[Rows]:
    """Yield endless batches, starting at `start_step`, each determined by the seed and the step."""
    for step in itertools.count(start_step):
        random = np.random.default_rng([config.seed, step])
        chosen = [rows[n] for n in random.integers(0, len(rows), config.clips)]
        yield _stack_rows([_clip(row, config.clip_frames, random) for row in chosen])


def _clip(row: Rows, frames: int, random: np.random.Generator) -> Rows:
    start = random.integers(0, max(1, len(row["mask"]) - frames + 1))
    return {name: value[start : start + frames] for name, value in row.items()}


def _stack_rows(rows: Sequence[Rows]) -> Rows:
    longest = max(len(row["mask"]) for row in rows)
    names = rows[0]
    return {n: pad_rows([row[n] for row in rows], longest).astype(np.float32) for n in names}


def train_density(
    voice: Voice,
    examples: dict[str, list[Example]],
    scale: Scale,
    config: DensityConfig,
    workdir: Path,
) -> tuple[Voice, Outcome]:
    """Train, or resume training, in a run directory; return the voice with its density.

    Also return the outcome of training. If a signal stopped it, the voice is returned unchanged.
    """
    own = {f"density_{name}": getattr(config, name) for name in ("channels", "layers", "past")}
    sizes = dataclasses.replace(voice.config, **own)
    train, dev = (rows_of(voice, examples[split], scale) for split in ("train", "dev"))
    fixed = statistics(np.concatenate([row["difference"] for row in train]))
    seen, held = ([whiten_difference(row, fixed) for row in rows] for rows in (train, dev))
    density = FrameDensity(sizes, config.seed)
    outcome = train_network(
        density,
        density,
        config.optimizer,
        config.loop,
        lambda step, *_: batches(seen, config, step),
        dev=_stack_rows(held),
        workdir=workdir,
        stored={"kind": KIND, **to_json(config), "sizes": to_json(sizes)},
    )
    if outcome.exit_status:
        return voice, outcome
    learnt, _ = read_trained_weights(workdir)
    weights = {**voice.weights, **learnt, **{name: fixed[name] for name in STATISTICS}}
    spec = {**voice.spec, "config": to_json(sizes), "temperature": config.temperature}
    return dataclasses.replace(voice, config=sizes, weights=weights, spec=spec), outcome
