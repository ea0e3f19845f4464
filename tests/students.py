"""Small students of every kind, with weights far enough from zero to matter."""

import numpy as np
import tensorflow as tf
from networks import moved

from distill.config import LossConfig, StudentConfig
from distill.losses.discriminators import Discriminators
from distill.losses.objective import Objective, Parts
from distill.losses.perceptual import UnitClassifier, UnitConfig
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from wavenet.config import MelConvention, WaveNetConfig
from wavenet.network import WaveNet

HOP, FRAMES = 20, 40
CLIP_FRAMES, CLIPS = 64, 8
MEL = MelConvention(4000, HOP, 64, 64, bands=7)
SMALL = dict(
    flows=(2, 3), filter_width=2, residual_channels=12, gate_channels=10, front_width=3,
    feature_channels=7, condition_channels=8, upsample_factors=(4, 5), sample_rate_hz=4000,
    initial_scale=0.1,
)  # fmt: skip
KINDS = {
    "plain": dict(filter_width=3, noise="normal"),
    "speakers": dict(speakers=2, speaker_channels=3),
    "residual": dict(
        domain="residual", source="pulses", prediction_order=6, conditioner_units=9, subframes=4,
        initial_scale=0.01,
    ),
}  # fmt: skip
KINDS["residual, bunches"] = {**KINDS["residual"], "bunch_samples": 4, "front_width": 9}


def student_of(kind: str, **options) -> ParallelWaveNet:
    """A student of a kind, every variable of it moved off its initial value."""
    return moved(ParallelWaveNet(StudentConfig(**(SMALL | KINDS[kind] | options)), mel=MEL), 0.05)


def clips(student):
    """Eight clips of different loudness, three of them padded, with frames and F0."""
    draws, samples = np.random.default_rng(0), CLIP_FRAMES * HOP
    louder = np.exp(draws.normal(-2.0, 1.0, [CLIPS, 1]))
    lengths = np.array([samples] * 5 + [samples // 2, 100, 700])[:, None]
    f0 = np.stack(
        [draws.normal(size=[CLIPS, CLIP_FRAMES]), draws.integers(0, 2, [CLIPS, CLIP_FRAMES])], -1
    )
    f0[2, :, 1] = 0.0
    batch = {
        "waveform": louder * draws.normal(size=[CLIPS, samples]),
        "mask": np.arange(samples) < lengths,
        "frames": np.concatenate([draws.uniform(0, 1, [CLIPS, CLIP_FRAMES, 7]), f0], -1),
    }
    batch = {name: tf.constant(value, tf.float32) for name, value in batch.items()}
    return batch | {"speaker": tf.range(CLIPS) % 2}


def objective_of(
    kind: str, likelihood: str, config: LossConfig, opponent: Discriminators | None = None
) -> Objective:
    """The objective of a student of a kind under a small teacher of its frames."""
    student = student_of(kind)
    teacher = WaveNetConfig(
        likelihood=likelihood, components=2, layers=2, stacks=1, filter_width=2,
        residual_channels=6, gate_channels=6, skip_channels=6, feature_channels=7,
        condition_channels=4, upsample_factors=(4, 5), speakers=student.config.speakers,
    )  # fmt: skip
    classifier = UnitClassifier(UnitConfig(MEL, num_units=4, channels=6), seed=1)
    density, step = WaveNetDensity(WaveNet(teacher)), tf.Variable(3, trainable=False)
    return Objective(student, density, config, 0, Parts(step, classifier, MEL, opponent))
