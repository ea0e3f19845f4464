"""How often a teacher would keep what its student draws: the acceptance of speculative sampling.

A draft x_t of p_S is kept with probability min(1, p_T(x_t | x_<t) / p_S(x_t | x_<t)) (Leviathan et
al. 2023, arXiv 2211.17192, section 2.3). Its mean tells how close student and teacher are, sample
by sample; how many drafts are kept in a row bounds what drafting with the student could gain.
"""

import math

import numpy as np
import tensorflow as tf

from distill.losses.kl_divergence import Conditionals
from likelihoods.affine import FlowOutput


def acceptance(teacher: Conditionals, drawn: FlowOutput, kind: str):
    """The probability that each sample is kept given the student's own past, [batch, time].

    Args:
      teacher: its conditionals given `drawn.output`.
      drawn: the student's sample and its density.
      kind: of the noise, "logistic" or "normal".
    """
    theirs = teacher.log_density(drawn.output)
    return tf.exp(tf.minimum(0.0, theirs - log_density(drawn, kind)))


def log_density(drawn: FlowOutput, kind: str):
    """ln p_S(x_t | x_<t) of what was drawn, in nats per unit, [batch, time]."""
    z = (drawn.output - drawn.location) * tf.exp(-drawn.log_scale)
    if kind == "logistic":
        standard = -z - 2.0 * tf.math.softplus(-z)
    else:
        standard = -0.5 * (tf.square(z) + math.log(2.0 * math.pi))
    return standard - drawn.log_scale


def mean_run(kept: np.ndarray) -> float:
    """Samples in a row that are kept, in the mean over where the row begins.

    kept: [time], the probability that each is.
    """
    run, total = 0.0, 0.0
    for probability in kept[::-1]:
        run = probability * (1.0 + run)
        total += run
    return total / len(kept)
