"""Small students of every kind, with weights far enough from zero to matter."""

import numpy as np
import tensorflow as tf

from distill.config import StudentConfig
from distill.student import ParallelWaveNet
from likelihoods import noise
from wavenet.features import MelConvention

HOP, FRAMES = 20, 40
MEL = MelConvention(4000, HOP, 64, 64, bands=7)
SMALL = dict(
    flows=(2, 3),
    filter_width=2,
    residual_channels=12,
    gate_channels=10,
    front_width=3,
    feature_channels=7,
    condition_channels=8,
    upsample_factors=(4, 5),
    sample_rate_hz=4000,
    initial_scale=0.1,
)
KINDS = {
    "plain": dict(filter_width=3, noise="normal"),
    "draft": dict(draft_passes=2),
    "speakers": dict(speakers=2, speaker_channels=3),
    "residual": dict(
        domain="residual",
        source="pulses",
        prediction_order=6,
        conditioner_units=9,
        subframes=4,
        initial_scale=0.01,
    ),
}


KINDS["residual, bunches"] = {**KINDS["residual"], "bunch_samples": 4, "front_width": 9}


def student_of(kind: str, **options) -> ParallelWaveNet:
    """A student of a kind, every variable of it moved off its initial value."""
    student = ParallelWaveNet(StudentConfig(**(SMALL | KINDS[kind] | options)), mel=MEL)
    for i, variable in enumerate(student.trainable_variables):
        size = int(np.prod(variable.shape))
        draws = noise.normal(noise.fold_in(99, i), [0], 0, size)[0, :, 0]
        variable.assign_add(0.05 * tf.reshape(draws, variable.shape))
    return student
