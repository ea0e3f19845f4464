"""The acceptance of speculative sampling: how often a teacher would keep its student's draws.

A draft x_t of p_S is kept with probability min(1, p_T(x_t | x_<t) / p_S(x_t | x_<t)) (Leviathan et
al. 2023, arXiv 2211.17192, section 2.3). Its mean measures how close student and teacher are,
sample by sample; the number of drafts kept in a row bounds the gain of drafting with the student.
"""

import math

import numpy as np
import tensorflow as tf

from distill.losses.kl_divergence import Conditionals
from likelihoods.affine import FlowOutput


def acceptance(teacher: Conditionals, drawn: FlowOutput, kind: str):
    """Return the probability that each sample is kept given the student's own past, [batch, time].

    Args:
      teacher: its conditionals given `drawn.output`.
      drawn: the student's sample and its density.
      kind: of the noise, "logistic" or "normal".
    """
    theirs = teacher.log_density(drawn.output)
    return tf.exp(tf.minimum(0.0, theirs - log_density(drawn, kind)))


def log_density(drawn: FlowOutput, kind: str):
    """Return ln p_S(x_t | x_<t) of the drawn values, in nats per unit, [batch, time]."""
    z = (drawn.output - drawn.location) * tf.exp(-drawn.log_scale)
    if kind == "logistic":
        standard = -z - 2.0 * tf.math.softplus(-z)
    else:
        standard = -0.5 * (tf.square(z) + math.log(2.0 * math.pi))
    return standard - drawn.log_scale


def mean_run(kept: np.ndarray) -> float:
    """Return the mean number of consecutive samples that are kept, over all starting points.

    Args:
      kept: [time], the probability that each is.
    """
    run, total = 0.0, 0.0
    for probability in kept[::-1]:
        run = probability * (1.0 + run)
        total += run
    return total / len(kept)
