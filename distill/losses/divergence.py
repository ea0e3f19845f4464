"""The terms that use the teacher: KL from the teacher, and repulsion from wrong conditions."""

import dataclasses
from typing import Any

import tensorflow as tf

from distill.losses.kl_divergence import (
    Divergence,
    divergence,
    entropy,
    gaussian_divergence,
    scales_apart,
    standard_draws,
)
from distill.losses.terms import Draw, Weighted
from onepass.likelihoods import noise as counter_noise
from onepass.replicator import Replicator

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

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict[str, tf.Tensor]:
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
