"""Train the network of a voice, which draws durations and frames."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from onepass.foundation.files import Arrays
from onepass.foundation.model_folders import averages, best_or_newest
from onepass.foundation.rules import to_json
from onepass.foundation.run_directory import RunDirectory
from onepass.networks.elements import pad_rows
from onepass.replicator.training.batches import Batch
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Outcome
from onepass.replicator.training.training_run import train_network
from onepass.speech.examples import Example
from onepass.speech.network import (
    Networks,
    VoiceConfig,
    contexts,
    initial_weights,
    numbers,
    phoneme_of_frame,
    positions,
)
from onepass.speech.phonemes import PAUSES, START, Phoneme
from onepass.speech.voice import KIND, harmonics_of
from wavenet.config import MelConvention
from wavenet.features.frames import mel_filters, mel_spectrogram


class AcousticModel(tf.Module):
    """The encoder, melody and mel networks, with their weights as variables."""

    def __init__(self, config: VoiceConfig, seed: int = 0):
        super().__init__()
        values = initial_weights(config, seed)
        self.weights = {name: tf.Variable(value, name=name) for name, value in values.items()}
        self.networks = Networks(tnp, config, self.weights)

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return log-durations, melody and mel frames, given the recorded durations and pitch.

        They are [batch, phonemes]; [batch, frames, 2], log2(F0 / 200 Hz) and the logit of voicing;
        and [batch, frames, bands], in standard deviations of each band.
        """
        networks, frame_mask = self.networks, batch["frame_mask"][..., None]
        phoneme_mask = batch["phoneme_mask"][..., None]
        hidden, lengths = networks.encoder(batch["numbers"], batch["contexts"], phoneme_mask)
        spread = tf.gather(hidden, batch["phoneme_of_frame"], batch_dims=1)
        sung, drawn = (spread * batch[f"kept_by_{name}"][:, None] for name in ("melody", "mel"))
        where, harmonics = batch["positions"], batch["harmonics"]
        melody = networks.melody(sung, where, frame_mask)
        mel = networks.mel(drawn, where, batch["pitch"], harmonics, frame_mask)
        return lengths, melody, mel


@dataclasses.dataclass(frozen=True)
class AcousticLossConfig:
    """The weight of each error in the loss."""

    mel: float = 1.0
    """Weight of the mean absolute error of the mel bands, in standard deviations of each band."""
    duration: float = 0.5
    """Weight of the mean absolute error of the log-durations."""
    pitch: float = 1.0
    """Weight of the mean absolute error of F0, in octaves, over voiced frames."""
    voicing: float = 0.2
    """Weight of the cross-entropy of voicing, in nats."""


def acoustic_loss(
    model: AcousticModel, config: AcousticLossConfig, batch: Batch
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted sum of a model's errors on a batch, and each error by name."""
    lengths, melody, mel = model(batch)
    voiced, frames = batch["pitch"][..., 1], batch["frame_mask"]
    logit = melody[..., 1]
    parts = {
        "mel": _mean(tf.reduce_mean(tf.abs(mel - batch["mel"]), axis=-1), frames),
        "duration": _mean(tf.abs(lengths - batch["log_durations"]), batch["duration_mask"]),
        "pitch": _mean(tf.abs(melody[..., 0] - batch["pitch"][..., 0]), frames * voiced),
        "voicing": _mean(tf.nn.softplus(logit) - voiced * logit, frames),
    }
    loss = tf.add_n([getattr(config, name) * value for name, value in parts.items()])
    return loss, parts


def _mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


LOW_HZ, HIGH_HZ = 90.0, 450.0
STEPS_PER_OCTAVE = 48
PERIODS = 16  # hops by which a pulse train is longer than three windows
DEEPEST, HIGHEST = -3.0, 3.0  # nats
BUCKET_FRAMES = 80
SILENCE_FRAMES = 30  # the silence added at either end of a recording is shorter than this


def harmonics_table(mel: MelConvention) -> np.ndarray:
    """Return the result of `pulses` for F0 from LOW_HZ to HIGH_HZ or above, float32 [steps, bands].

    Row s is for F0 = LOW_HZ * 2^(s / STEPS_PER_OCTAVE). The table depends only on the mel settings.
    """
    steps = int(np.ceil(np.log2(HIGH_HZ / LOW_HZ) * STEPS_PER_OCTAVE)) + 1
    rows = [pulses(LOW_HZ * 2.0 ** (step / STEPS_PER_OCTAVE), mel) for step in range(steps)]
    return np.stack(rows).astype(np.float32)


def pulses(f0_hz: float, mel: MelConvention) -> np.ndarray:
    """Return a pulse train's log-mel relative to a flat spectrum, in nats, float [bands].

    The median over the upper half of the bands is subtracted, and the result is clipped to the
    range from DEEPEST to HIGHEST.
    """
    rate_hz, window = mel.sample_rate_hz, mel.window_samples
    time = np.arange(3 * window + PERIODS * mel.hop_samples) / rate_hz
    orders = np.arange(1, int(0.5 * rate_hz / f0_hz) + 1)
    train = np.cos(2.0 * np.pi * f0_hz * orders[:, None] * time).sum(axis=0) / len(orders)
    frames = mel_spectrogram(train.astype(np.float32), mel)
    whole = -(-window // mel.hop_samples)
    level = frames[whole:-whole].mean(axis=0) * (np.log(10.0) if mel.log == "log10" else 1.0)
    flat = np.log(mel_filters(mel).sum(axis=0))
    relative = level - flat
    return np.clip(relative - np.median(relative[len(relative) // 2 :]), DEEPEST, HIGHEST)


@dataclasses.dataclass(frozen=True)
class SpeechConfig:
    """Training settings of a voice."""

    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(decay="cosine", clip_norm=1.0, average_decay=0.995)
    )
    loop: LoopConfig = dataclasses.field(
        default_factory=lambda: LoopConfig(2600, evaluate_every_steps=200, save_every_minutes=3.0)
    )
    loss: AcousticLossConfig = dataclasses.field(default_factory=AcousticLossConfig)
    batch_frames: int = 2400
    """Approximate number of frames per batch."""
    mel_dropout: float = 0.1
    """Dropout rate of the encoder's channels, per recording, at the input of the mel network."""
    melody_dropout: float = 0.4
    """Dropout rate at the melody network's input; without it, the network memorises melodies."""
    seed: int = 0
    """Seed of the initial weights and of the batches."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """Statistics of the training recordings, computed before training.

    `table` has the lowest F0 and the resolution of `harmonics`, and the range of frames in nats.
    """

    symbols: dict[str, int]
    weights: dict[str, np.ndarray]
    table: dict[str, float]
    silence: np.ndarray


def scale_of(train: Sequence[Example], mel: MelConvention) -> Scale:
    """Return the statistics of training recordings as a `Scale`."""
    frames = np.concatenate([e.mel for e in train])
    paused = [e.mel[[e.phonemes[i].is_pause for i in phoneme_of_frame(e.durations)]] for e in train]
    names = sorted({p.symbol for e in train for p in e.phonemes} | set(PAUSES))
    weights = {
        "harmonics": harmonics_table(mel),
        "mel_mean": frames.mean(axis=0),
        "mel_std": frames.std(axis=0),
    }
    range_nats = -mel.silence * (np.log(10.0) if mel.log == "log10" else 1.0)
    table = {
        "low_hz": LOW_HZ,
        "steps_per_octave": float(STEPS_PER_OCTAVE),
        "range_nats": float(range_nats),
    }
    symbols = {name: number + 1 for number, name in enumerate(names)}
    return Scale(symbols, weights, table, np.concatenate(paused).mean(axis=0))


def with_silence(example: Example, before: int, behind: int, scale: Scale) -> Example:
    """Return the recording with silence added to, or inserted as, its first and last pauses."""
    spoken, lengths = list(example.phonemes), example.durations.copy()
    if spoken[0].symbol != START:
        spoken.insert(0, Phoneme(START, clause=spoken[0].clause))
        lengths = np.insert(lengths, 0, 0)
        before = max(before, 1)
    if not spoken[-1].is_pause:
        last = spoken[-1].clause
        spoken.append(Phoneme(last, clause=last))
        lengths = np.append(lengths, 0)
        behind = max(behind, 1)
    lengths[0] += before
    lengths[-1] += behind
    silent = scale.silence[None]
    sound = [silent.repeat(before, 0), example.mel, silent.repeat(behind, 0)]
    pitch = np.pad(example.pitch, ((before, behind), (0, 0)), mode="edge")
    pitch[:before, 1] = 0.0
    pitch[len(pitch) - behind :, 1] = 0.0
    return dataclasses.replace(
        example, phonemes=tuple(spoken), durations=lengths, mel=np.concatenate(sound), pitch=pitch
    )


def network_inputs(example: Example, scale: Scale) -> dict[str, np.ndarray]:
    """Return a recording's inputs and targets, named as in `batches`, without dropout factors."""
    lengths, weights = example.durations, scale.weights
    spoken = [not p.is_pause for p in example.phonemes]
    return {
        "numbers": numbers(example.phonemes, scale.symbols),
        "contexts": contexts(example.phonemes),
        "phoneme_mask": np.ones(len(lengths), np.float32),
        "duration_mask": np.array(
            [s or 0 < n < len(spoken) - 1 for n, s in enumerate(spoken)], np.float32
        ),
        "log_durations": np.log(np.maximum(lengths, 1)).astype(np.float32),
        "phoneme_of_frame": phoneme_of_frame(lengths),
        "positions": positions(lengths),
        "frame_mask": np.ones(len(example.mel), np.float32),
        "pitch": example.pitch.astype(np.float32),
        "harmonics": harmonics_of(weights, scale.table, example.pitch[:, 0]),
        "mel": ((example.mel - weights["mel_mean"]) / weights["mel_std"]).astype(np.float32),
    }


def stack_rows(rows: Sequence[dict[str, np.ndarray]], phonemes: int, frames: int) -> dict:
    """Return the rows as one batch, padded with zeros to the lengths `phonemes` and `frames`."""
    of_phonemes = ("numbers", "contexts", "phoneme_mask", "duration_mask", "log_durations")
    return {
        name: pad_rows([row[name] for row in rows], phonemes if name in of_phonemes else frames)
        for name in rows[0]
    }


def batches(
    train: Sequence[Example], scale: Scale, config: SpeechConfig, channels: int, start_step: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """Yield endless batches, starting at `start_step`, each determined by the seed and the step.

    They are arrays by name. With shape [batch, phonemes]: "numbers", "phoneme_mask",
    "duration_mask" (0 for pauses at the ends), "log_durations" and, with a third axis, "contexts".
    With shape [batch, frames]: "phoneme_of_frame", "frame_mask" and, with a third axis,
    "positions", "pitch", "harmonics" and "mel" (in standard deviations). With shape [batch,
    channels]: "kept_by_mel" and "kept_by_melody", the dropout factors of the encoder's channels.
    """
    buckets: dict[int, list[Example]] = {}
    for example in train:
        place = (len(example.mel) + 2 * SILENCE_FRAMES) // BUCKET_FRAMES + 1
        buckets.setdefault(place, []).append(example)
    places = sorted(buckets)
    # Buckets are weighted by frames so that every frame of the data is equally likely.
    share = np.array([sum(len(e.mel) for e in buckets[p]) for p in places], np.float64)
    most = {p: max(len(e.phonemes) for e in buckets[p]) + 2 for p in places}  # 2: pauses
    for step in itertools.count(start_step):
        random = np.random.default_rng([config.seed, step])
        place = places[random.choice(len(places), p=share / share.sum())]
        members, frames = buckets[place], place * BUCKET_FRAMES
        count = max(1, config.batch_frames // frames)
        chosen = random.choice(len(members), count, replace=count > len(members))
        silence = random.integers(1, SILENCE_FRAMES, (count, 2))
        rows = [
            network_inputs(with_silence(members[n], before, behind, scale), scale)
            for n, (before, behind) in zip(chosen, silence.tolist(), strict=True)
        ]
        batch = stack_rows(rows, most[place], frames)
        for name, rate in (("mel", config.mel_dropout), ("melody", config.melody_dropout)):
            kept = random.random((count, channels)) >= rate
            # Scaled so that a channel keeps the mean that it has without dropout.
            batch[f"kept_by_{name}"] = (kept / (1.0 - rate)).astype(np.float32)
        yield batch


def train(
    examples: dict[str, list[Example]], scale: Scale, config: SpeechConfig, workdir: Path
) -> tuple[AcousticModel, Outcome]:
    """Train, or resume training, in a run directory; return the model and the outcome."""
    bands = len(scale.weights["mel_mean"])
    sizes = VoiceConfig(len(scale.symbols) + 1, bands)
    model, channels = AcousticModel(sizes, config.seed), sizes.encoder_channels
    rows = [network_inputs(with_silence(e, 4, 10, scale), scale) for e in examples["dev"]]
    dev = stack_rows(rows, max(len(r["numbers"]) for r in rows), max(len(r["mel"]) for r in rows))
    everything = np.ones((len(rows), channels), np.float32)
    outcome = train_network(
        model,
        functools.partial(acoustic_loss, model, config.loss),
        config.optimizer,
        config.loop,
        lambda step, *_: batches(examples["train"], scale, config, channels, step),
        dev=dev | {"kept_by_mel": everything, "kept_by_melody": everything},
        workdir=workdir,
        stored={"kind": KIND, **to_json(config), "sizes": to_json(sizes)},
    )
    return model, outcome


def read_trained_weights(workdir: Path) -> tuple[Arrays, int]:
    """Return the averaged weights of a run's best checkpoint, by name, and its step."""
    arrays = best_or_newest(RunDirectory.open(workdir))
    weights = {name.removeprefix("weights/"): v for name, v in averages(arrays).items()}
    return weights, int(arrays["step"])
