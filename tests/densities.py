"""Densities that are known in closed form, to distil from."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from onepass.likelihoods.affine import FlowOutput

DECAY, SCALE = 0.7, 0.4


@dataclasses.dataclass(frozen=True)
class Located:
    """A location family at every place."""

    location: tf.Tensor
    log_scale: tf.Tensor
    kind: str

    def log_density(self, values):
        z = (values - self.location) * tf.exp(-self.log_scale)
        if self.kind == "normal":
            return -0.5 * tf.square(z) - 0.5 * math.log(2 * math.pi) - self.log_scale
        return -z - 2.0 * tf.nn.softplus(-z) - self.log_scale


@dataclasses.dataclass(frozen=True)
class Autoregression:
    """x_t = decay x_{t-1} + scale z_t, with z logistic or normal; a `Density`."""

    kind: str = "logistic"
    decay: float = DECAY
    scale: float = SCALE

    def conditionals(self, x, condition=None) -> Located:
        """p(x_t | x_{t-1})."""
        before = tf.pad(x, [[0, 0], [1, 0]])[:, :-1]
        log_scale = tf.fill(tf.shape(x), tf.constant(math.log(self.scale), x.dtype))
        return Located(self.decay * before, log_scale, self.kind)

    @property
    def standard_deviation(self) -> float:
        """Of x_t far from the start."""
        of_noise = 1.0 if self.kind == "normal" else math.pi / math.sqrt(3.0)
        return self.scale * of_noise / math.sqrt(1.0 - self.decay**2)


class Filter(tf.Module):
    """x = scale (z_t + sum_k decay^k z_{t-k}): the fast sampler of an `Autoregression`."""

    def __init__(self, decay: float = DECAY, scale: float = SCALE, samples: int = 24):
        super().__init__()
        self.decay = tf.Variable(decay)
        self.log_scale = tf.Variable(math.log(scale))
        self._lags = np.subtract.outer(np.arange(samples), np.arange(samples)).astype(np.float32)

    def draw(self, noise, condition=None) -> FlowOutput:
        """All samples at once, and their density given the noise before."""
        lags = tf.maximum(self._lags, 1.0)
        weights = tf.where(self._lags >= 1, tf.pow(self.decay, lags), 0.0)
        location = tf.exp(self.log_scale) * tf.matmul(noise, weights, transpose_b=True)
        log_scale = tf.fill(tf.shape(noise), 1.0) * self.log_scale
        return FlowOutput(noise * tf.exp(log_scale) + location, location, log_scale)
