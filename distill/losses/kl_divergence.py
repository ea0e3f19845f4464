"""Probability density distillation: KL(P_S || P_T) = H(P_S, P_T) - H(P_S).

van den Oord et al. 2017, "Parallel WaveNet" (arXiv 1711.10433). One sample of the
student determines all x_<t; one pass of the teacher gives every p_T(. | x_<t); many cheap draws of
x_t from the student's own conditional estimate

    H(P_S, P_T) = sum_t E_{x_<t ~ P_S} H( p_S(x_t | x_<t), p_T(x_t | x_<t) )        (equation 11)
    H(P_S) = E_z[ sum_t ln s(z_<t) ] + 2 T,                                         (equation 9)

where 2 nats are the entropy of a standard logistic. Gradients flow through x_t and, through x_<t,
into the teacher, whose weights are frozen. This applies to any teacher with `ElementDensities` and
any student that returns `FlowOutput`; elements may be audio samples, pixels or anything ordered.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.distribution import Continuous, normal_parameters

# Entropy of the noise that a student transforms, in nats per element.
ENTROPY = {"logistic": 2.0, "normal": 0.5 * math.log(2.0 * math.pi * math.e)}


class ElementDensities(Protocol):
    """The distribution of each element given the elements before it, which get a gradient."""

    def log_density(self, values: tf.Tensor) -> tf.Tensor:
        """Return the log density of values [..., batch, elements...], in nats per unit, float32."""


@dataclasses.dataclass(frozen=True)
class TeacherConditionals:
    """Conditional distributions of a likelihood with parameters [batch, time, parameters]."""

    likelihood: Continuous
    parameters: tf.Tensor

    def log_density(self, values: tf.Tensor) -> tf.Tensor:
        """Return the log density of values [..., batch, time], float32, in nats per unit."""
        return self.likelihood.log_density(self.parameters, values)

    @property
    def normal(self) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Mean and log scale, each [batch, time], if the conditionals are normal; else None."""
        return normal_parameters(self.likelihood, self.parameters)


class Divergence(NamedTuple):
    """A KL and its parts in nats per element, scalars: kl = cross_entropy - entropy."""

    kl: tf.Tensor
    cross_entropy: tf.Tensor
    entropy: tf.Tensor


def divergence(
    teacher: ElementDensities,
    drawn: FlowOutput,
    draws: tf.Tensor,
    kind: str,
    mask: tf.Tensor | None = None,
    counted: tf.Tensor | None = None,
) -> Divergence:
    """Return an unbiased estimate of the KL of the student from the teacher.

    Args:
      mask: 1 for each element that counts, [batch, elements...]; None: all count.
      counted: number of elements to divide by; None: the sum of the mask.
    """
    cross = mean_of(cross_entropy(teacher, drawn, draws), mask, counted)
    own = mean_of(entropy(drawn, kind), mask, counted)
    return Divergence(cross - own, cross, own)


def cross_entropy(teacher: ElementDensities, drawn: FlowOutput, draws: tf.Tensor) -> tf.Tensor:
    """Estimate H(p_S(x_t | x_<t), p_T(x_t | x_<t)) from the draws, nats [batch, elements...]."""
    values = draws * tf.exp(drawn.log_scale) + drawn.location
    return -tf.reduce_mean(teacher.log_density(values), 0)


def entropy(drawn: FlowOutput, kind: str) -> tf.Tensor:
    """Return H(p_S(x_t | x_<t)), nats [batch, elements...]: ln s + 2, or ln s + ln(2 pi e) / 2."""
    return drawn.log_scale + ENTROPY[kind]


def log_density(drawn: FlowOutput, kind: str) -> tf.Tensor:
    """Return ln p_S(x_t | x_<t) of the drawn values, in nats per unit, [batch, time]."""
    z = (drawn.output - drawn.location) * tf.exp(-drawn.log_scale)
    if kind == "logistic":
        standard = -z - 2.0 * tf.math.softplus(-z)
    else:
        standard = -0.5 * (tf.square(z) + math.log(2.0 * math.pi))
    return standard - drawn.log_scale


def standard_draws(
    kind: str,
    seed: int | tf.Tensor,
    batch: int,
    length: int,
    count: int,
    rows: Sequence[int] | tf.Tensor | None = None,
) -> tf.Tensor:
    """Return standard noise for `cross_entropy`, float32 [count, batch, length].

    Logistic draws are stratified: draw m is the quantile (m + u) / count with one uniform u per
    element, so that together they cover the distribution evenly. Their mean is unbiased and varies
    much less than the mean of independent draws.

    Args:
      seed: an integer in [0, 2^64), or keys, uint32 [2] for all rows or [rows, 2].
      rows: int32 [batch], the index of each row in its seed's sequence of rows; None: 0, 1, ... A
        share of a larger batch uses the indices in the whole batch.
    """
    rows = tf.range(batch) if rows is None else rows
    if kind == "normal":
        lanes = [counter_noise.normal(seed, rows, 0, length, lane) for lane in range(count)]
        return tf.stack([lane[..., 0] for lane in lanes])
    within = counter_noise.uniform(seed, rows, 0, length)[..., 0]
    strata = tf.reshape(tf.range(count, dtype=tf.float32), [count, 1, 1])
    # u may round to 0 or 1, whose quantiles are infinite, so it is clipped.
    u = tf.clip_by_value((strata + within) / count, 1e-7, 1.0 - 1e-7)
    return tf.math.log(u) - tf.math.log1p(-u)


def gaussian_divergence(drawn: FlowOutput, mean: tf.Tensor, log_scale: tf.Tensor) -> tf.Tensor:
    """Return KL(q || p) of normals in closed form, nats [batch, elements...].

    ln(sp / sq) + (sq^2 - sp^2 + (mp - mq)^2) / (2 sp^2): Ping et al. 2018 (1807.07281), equation 6.
    """
    ratio = log_scale - drawn.log_scale
    apart = tf.square((mean - drawn.location) * tf.exp(-log_scale))
    return ratio + 0.5 * (tf.exp(-2.0 * ratio) - 1.0 + apart)


def scales_apart(drawn: FlowOutput, log_scale: tf.Tensor) -> tf.Tensor:
    """Return ClariNet's regularisation (equation 7), (ln sp - ln sq)^2, [batch, elements...]."""
    return tf.square(log_scale - drawn.log_scale)


def mean_of(
    values: tf.Tensor, mask: tf.Tensor | None = None, counted: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the mean of values where the mask is 1, or of all, a scalar.

    `counted` is the divisor: for a share of a batch, the shares' mean count; None: the mask's sum.
    """
    if mask is None:
        return tf.reduce_mean(values)
    counted = tf.reduce_sum(mask) if counted is None else counted
    return tf.reduce_sum(values * mask) / tf.maximum(counted, 1.0)
