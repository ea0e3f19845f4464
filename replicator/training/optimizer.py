"""Adam as a pure function of its state, with gradient clipping and a Polyak average.

Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1:

    m <- b1 m + (1 - b1) g,     v <- b2 v + (1 - b2) g^2
    w <- w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
"""

import dataclasses
import math
from typing import Literal

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How weights follow their gradients."""

    learning_rate: float = 1e-3
    """Peak step size of Adam."""
    warmup_steps: int = 200
    """Steps over which the rate rises linearly from 0."""
    decay: Literal["constant", "cosine", "halve"] = "constant"
    """What the rate does afterwards: stay, fall to 0 at the last step, or halve now and then."""
    halve_every_steps: int = 200_000
    """Steps between halvings when `decay` is halve."""
    beta1: float = 0.9
    """Decay of Adam's average of gradients."""
    beta2: float = 0.999
    """Decay of Adam's average of squared gradients."""
    epsilon: float = 1e-8
    """Added to the root of that average, in units of the gradient."""
    clip_norm: float = 10.0
    """Global norm that a gradient is clipped to; 0: never."""
    average_decay: float = 0.999
    """Decay of the Polyak average of the weights, which samples and evaluations use."""
    accumulate: int = 1
    """Parts of a batch whose gradients are added up one after another, so that a step needs the
    memory of one part alone; the step is the same."""

    def __post_init__(self):
        """Raises ValueError, naming the field, for a rate or decay out of range."""
        for name in ("learning_rate", "epsilon"):
            self._require(name, "positive and finite", 0 < getattr(self, name) < math.inf)
        for name in ("beta1", "beta2", "average_decay"):
            self._require(name, "in [0, 1)", 0 <= getattr(self, name) < 1)
        for name in ("warmup_steps", "clip_norm"):
            self._require(name, "0 or more", getattr(self, name) >= 0)
        for name in ("halve_every_steps", "accumulate"):
            self._require(name, "at least 1", getattr(self, name) >= 1)

    def _require(self, name: str, rule: str, holds: bool) -> None:
        if not holds:
            raise ValueError(f"`{name}` must be {rule}, got {getattr(self, name)}.")

    def rate(self, step, num_steps: int):
        """The learning rate, float32 [], of the update that follows `step` (int32 [])."""
        step = tf.cast(step, tf.float32)
        rate = self.learning_rate * tf.minimum(1.0, (step + 1.0) / max(self.warmup_steps, 1))
        if self.decay == "cosine":
            rate *= 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(step / num_steps, 1.0)))
        if self.decay == "halve":
            rate *= 0.5 ** tf.floor(step / self.halve_every_steps)
        return rate


def clip_by_global_norm(gradients, limit: float):
    """The gradients scaled down to the global norm `limit`, and the norm that they had."""
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    if not limit:
        return gradients, norm
    scale = limit / tf.maximum(norm, limit)
    return [g * scale for g in gradients], norm


def adam(config: OptimizerConfig, rate, step, weights, gradients, first, second):
    """The weights, first and second moments after one Adam update.

    Args:
      config: betas and epsilon.
      rate: float32 [], the learning rate.
      step: int32 [], updates made before this one.
      weights, gradients, first, second: lists of tensors, one entry a variable.
    """
    count = tf.cast(step + 1, tf.float32)
    first = [
        config.beta1 * m + (1 - config.beta1) * g for m, g in zip(first, gradients, strict=True)
    ]
    second = [
        config.beta2 * v + (1 - config.beta2) * tf.square(g)
        for v, g in zip(second, gradients, strict=True)
    ]
    first_bias = 1.0 - tf.pow(config.beta1, count)
    second_bias = 1.0 - tf.pow(config.beta2, count)
    moved = [
        w - rate * (m / first_bias) / (tf.sqrt(v / second_bias) + config.epsilon)
        for w, m, v in zip(weights, first, second, strict=True)
    ]
    return moved, first, second


def polyak(config: OptimizerConfig, step, average, weights):
    """The moving average of the weights; early steps weigh more, so that it needs no warm-up."""
    count = tf.cast(step, tf.float32)
    decay = tf.minimum(config.average_decay, (1.0 + count) / (10.0 + count))
    return [decay * a + (1.0 - decay) * w for a, w in zip(average, weights, strict=True)]
