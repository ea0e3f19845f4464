"""The distance of a student from its teacher, in the teacher's own terms, on one condition."""

from typing import NamedTuple

import numpy as np

from distill.acceptance import acceptance
from distill.losses import kl_divergence
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity

DRAWS = 32  # of each sample, for the cross-entropy


class Closeness(NamedTuple):
    """Divergence, entropy and acceptance of one sound.

    Attributes:
      kl: KL(P_S || P_T), nats per sample.
      entropy: H(P_S), nats per sample.
      kept: [samples], the probability that the teacher accepts each.
    """

    kl: float
    entropy: float
    kept: np.ndarray


def measure_closeness(
    student: ParallelWaveNet,
    teacher: WaveNetDensity,
    frames,
    speaker,
    length: int,
    seed: int,
    row: int = 0,
) -> Closeness:
    """Return the closeness over one sound that the student draws.

    Args:
      student: to measure.
      teacher: to compare with.
      frames: float32 [1, frames, channels], or None.
      speaker: int32 [1], or None.
      length: of the sound, in samples.
      seed: of the noise.
      row: of the noise, different for every sound of a mean: its interval treats them as
        independent.
    """
    kind = student.noise_kind
    condition, _ = student.condition(frames, speaker, length)
    drawn = student.sample(student.noise(seed, [row], 0, length), condition)
    given = teacher.conditionals(drawn.output, teacher.condition(frames, speaker, length))
    draws = kl_divergence.standard_draws(kind, seed, 1, length, DRAWS, [row])
    apart = kl_divergence.divergence(given, drawn, draws, kind)
    kept = acceptance(given, drawn, kind).numpy()[0]
    return Closeness(float(apart.kl), float(apart.entropy), kept)
