"""Closeness of a student to its teacher, measured by the teacher's density of a drawn sound.

A sample x_t drafted from p_S is accepted with probability min(1, p_T(x_t | x_<t) / p_S(x_t | x_<t))
(Leviathan et al. 2023, arXiv 2211.17192, section 2.3). The mean of this probability measures how
close student and teacher are, sample by sample; the number of consecutive accepted samples bounds
the speed-up of speculative sampling with the student's drafts.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from distill.losses import kl_divergence
from distill.losses.kl_divergence import ElementDensities
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity
from onepass.likelihoods.affine import FlowOutput


def acceptance(teacher: ElementDensities, drawn: FlowOutput, kind: str) -> tf.Tensor:
    """Return the probability that each sample is accepted, given its past, [batch, time].

    Args:
      teacher: the teacher's conditionals given the student's samples.
      drawn: the student's samples, with their location and log scale, [batch, time].
      kind: the student's noise, "logistic" or "normal".
    """
    teacher_density = teacher.log_density(drawn.output)
    return tf.exp(tf.minimum(0.0, teacher_density - kl_divergence.log_density(drawn, kind)))


def mean_run(kept: np.ndarray) -> float:
    """Return the expected number of consecutive accepted samples, averaged over starts.

    `kept` are the acceptance probabilities, [time].
    """
    run, total = 0.0, 0.0
    for probability in kept[::-1]:
        run = probability * (1.0 + run)
        total += run
    return total / len(kept)


DRAWS = 32  # values drawn per sample to estimate the cross-entropy


class Closeness(NamedTuple):
    """Divergence, entropy and acceptance probabilities of one sound.

    Attributes:
      kl: KL(P_S || P_T), in nats per sample.
      entropy: H(P_S), in nats per sample.
      kept: [samples], the probability that the teacher accepts each sample.
    """

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

    Args:
      student: the student's network, which draws the sound.
      teacher: the teacher's density, which accepts or rejects samples.
      frames: the sound's frames [1, frames, channels], or None.
      speaker: int32 [1], or None.
      length: number of samples of the sound.
      seed: seed of the noise, an integer in [0, 2^64).
      row: index of the sound's noise under the seed. Sounds that are averaged need different rows,
        as the confidence interval of their mean treats them as independent.
    """
    kind = student.noise_kind
    condition, _ = student.condition(frames, speaker, length)
    drawn = student.draw(student.noise(seed, [row], 0, length), condition)
    given = teacher.conditionals(drawn.output, teacher.condition(frames, speaker, length))
    draws = kl_divergence.standard_draws(kind, seed, 1, length, DRAWS, [row])
    apart = kl_divergence.divergence(given, drawn, draws, kind)
    kept = acceptance(given, drawn, kind).numpy()[0]
    return Closeness(float(apart.kl), float(apart.entropy), kept)
