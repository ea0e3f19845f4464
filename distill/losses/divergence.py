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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow as tf

from distill.losses.terms import Draw, Weighted, mean_of
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.distribution import Continuous, with_normal

if TYPE_CHECKING:
    from onepass.replicator import Replicator

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
        normal = with_normal(self.likelihood)
        return None if normal is None else normal.normal(self.parameters)


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

    The `mask` [batch, elements...] is 1 for each element that counts; `counted`, their number, is
    by default its sum.
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

    `seed` is an integer in [0, 2^64), or keys, uint32 [2] for all rows or [rows, 2]; `rows`, int32
    [batch], are the indices in its seed's sequence of rows, by default 0, 1, ... A share of a
    larger batch uses the indices in the whole batch.
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


DRAWS = 1  # folded into the seed of a step to get the key of the draws


@dataclasses.dataclass(frozen=True)
class KL:
    """KL divergence of the student from the teacher, in nats per element.

    Attributes:
      weight: factor of the term.
      draws: number of values drawn per element to estimate the KL. Between two normal
        distributions, the KL is computed in closed form without draws.
      regularisation: between two normal distributions, factor of the squared difference of their
        log scales, which is added to the KL.
    """

    weight: float = 1.0
    draws: int = 16
    regularisation: float = 4.0

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the weighted term, a scalar."""
        normal = normal_of(draw, draw.teacher)
        if normal is None:
            return self.weight * measure_divergence(draw, draw.teacher, self.draws).kl
        mean, log_scale = normal
        apart = gaussian_divergence(draw.output, mean, log_scale)
        apart += self.regularisation * scales_apart(draw.output, log_scale)
        return self.weight * tf.reduce_mean(apart)

    def parts(self, draw: Draw) -> dict[str, Weighted]:
        """Return the KL, cross-entropy and entropy by name and, for normals, the regularisation."""
        kl, cross, own = measure_divergence(draw, draw.teacher, self.draws)
        found = {
            "kl": Weighted(self.weight, kl),
            "cross_entropy": Weighted(0.0, cross),
            "entropy": Weighted(0.0, own),
        }
        normal = normal_of(draw, draw.teacher)
        if normal is not None:
            value = draw.mean(scales_apart(draw.output, normal[1]))
            found["regularisation"] = Weighted(self.weight * self.regularisation, value)
        return found


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """The negative KL from the teacher under the condition of a different batch row.

    A student that ignores its condition is as close to the teacher under any other condition; this
    term penalises that (van den Oord et al. 2017).
    """

    weight: float
    draws: int = 16

    def __call__(self, draw: Draw) -> dict[str, Weighted]:
        """Return the KL and its negative weight, by name; {} if there is no condition."""
        other = draw.teach(True)
        if other is None:
            return {}
        return {
            "contrastive": Weighted(-self.weight, measure_divergence(draw, other, self.draws).kl)
        }

    def global_inputs(self, batch: dict, replicator: "Replicator") -> dict[str, tf.Tensor]:
        """Return `frames_before` and `speaker_before`, those of a share's (cyclic) previous row."""
        last = {name: batch[name][-1] for name in ("frames", "speaker") if name in batch}
        before = (replicator.replica_id - 1) % replicator.num_replicas
        lasts = replicator.all_gather(last)
        return {f"{name}_before": rows[before][tf.newaxis] for name, rows in lasts.items()}


def normal_of(draw: Draw, given: Any) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Return the teacher's means and log scales if teacher and student are normal, else None."""
    normal: tuple[tf.Tensor, tf.Tensor] | None = getattr(given, "normal", None)
    return normal if draw.noise_kind == "normal" else None


def measure_divergence(draw: Draw, given: Any, count: int) -> Divergence:
    """Return divergence from the teacher (exact for normals), cross-entropy and entropy."""
    kind, normal = draw.noise_kind, normal_of(draw, given)
    if normal is not None:
        mean, log_scale = normal
        kl = draw.mean(gaussian_divergence(draw.output, mean, log_scale))
        own = draw.mean(entropy(draw.output, kind))
        return Divergence(kl, kl + own, own)
    shape = draw.recorded.shape
    batch, time = shape if shape.is_fully_defined() else tf.unstack(tf.shape(draw.recorded))
    key = counter_noise.fold_in(draw.seed, DRAWS)
    draws = standard_draws(kind, key, batch, time, count, draw.rows)
    mask, counted = draw.batch.get("mask"), draw.batch.get("counted")
    return divergence(given, draw.output, draws, kind, mask, counted)
