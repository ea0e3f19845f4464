"""Small students of every kind, with weights far enough from zero to matter."""

import numpy as np
import tensorflow as tf

from distill.config import StudentConfig
from distill.student import ParallelWaveNet
from likelihoods import noise

HOP, FRAMES = 20, 30
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
    "harmonics": dict(harmonics=3),
    "speakers": dict(speakers=2, speaker_channels=3),
}


def student_of(kind: str, **options) -> ParallelWaveNet:
    """A student of a kind, every variable of it moved off its initial value."""
    student = ParallelWaveNet(StudentConfig(**(SMALL | KINDS[kind] | options)))
    for i, variable in enumerate(student.trainable_variables):
        size = int(np.prod(variable.shape))
        draws = noise.normal(noise.fold_in(99, i), [0], 0, size)[0, :, 0]
        variable.assign_add(0.05 * tf.reshape(draws, variable.shape))
    return student
