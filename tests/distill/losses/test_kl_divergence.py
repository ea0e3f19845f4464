"""Probability density distillation: the divergence, its parts, and what they train."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from networks import condition_of, network_of

from distill.losses import divergence
from distill.losses.divergence import TeacherConditionals
from distill.teacher import WaveNetDensity, freeze
from onepass.likelihoods import noise as counter_noise
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
    """x_t = DECAY x_{t-1} + SCALE z_t, with z logistic or normal; a `Density`."""

    kind: str = "logistic"

    def conditionals(self, x, condition=None) -> Located:
        """p(x_t | x_{t-1})."""
        before = tf.pad(x, [[0, 0], [1, 0]])[:, :-1]
        log_scale = tf.fill(tf.shape(x), tf.constant(math.log(SCALE), x.dtype))
        return Located(DECAY * before, log_scale, self.kind)


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


KINDS = ("logistic", "normal")


def noise_of(kind: str, seed: int, batch: int, length: int):
    draw = counter_noise.logistic if kind == "logistic" else counter_noise.normal
    return draw(seed, tf.range(batch), 0, length)[..., 0]


def divergence_of(student, teacher, kind: str, seed: int = 0, draws: int = 400, batch: int = 8):
    drawn = student.draw(noise_of(kind, seed, batch, 24))
    given = teacher.conditionals(drawn.output)
    standard = divergence.standard_draws(kind, seed + 1, batch, 24, draws)
    return divergence.divergence(given, drawn, standard, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_of_a_student_that_equals_its_teacher_is_zero_and_so_is_its_gradient(kind):
    student, teacher = Filter(), Autoregression(kind)
    with tf.GradientTape() as tape:
        kl = divergence_of(student, teacher, kind).kl
    gradients = tape.gradient(kl, [student.decay, student.log_scale])
    assert abs(float(kl)) < 5e-3
    assert np.all(np.abs(np.array(gradients)) < 2e-2)


def test_divergence_between_normals_is_the_closed_form():
    drawn = Filter(decay=0.3, scale=0.5).draw(noise_of("normal", 0, 8, 24))
    given = Autoregression("normal").conditionals(drawn.output)
    draws = divergence.standard_draws("normal", 3, 8, 24, 300)
    estimated = divergence.divergence(given, drawn, draws, "normal").kl
    exact = divergence.gaussian_divergence(drawn, given.location, given.log_scale)
    np.testing.assert_allclose(estimated, tf.reduce_mean(exact), rtol=0.03)


@pytest.mark.parametrize(
    ("kind", "nats"), [("logistic", 2.0), ("normal", 0.5 * math.log(2 * math.pi * math.e))]
)
def test_entropy_is_that_of_the_noise_and_the_log_scale(kind, nats):
    drawn = Filter().draw(noise_of(kind, 0, 1, 24))
    total = tf.reduce_sum(divergence.entropy(drawn, kind))
    np.testing.assert_allclose(total, tf.reduce_sum(drawn.log_scale) + nats * 24, rtol=1e-5)


def test_cross_entropy_is_unbiased_against_numerical_integration():
    teacher = network_of("mixture, predicting, amplified")
    drawn = Filter(decay=0.5, scale=0.02, samples=8).draw(noise_of("logistic", 0, 1, 8))
    given = WaveNetDensity(teacher).conditionals(drawn.output, None)
    exact = _integrated(given, drawn)

    @tf.function(autograph=False)
    def estimate(seed):
        draws = divergence.standard_draws("logistic", seed, 1, 8, count=3)
        return divergence.cross_entropy(given, drawn, draws)[0]

    estimates = np.stack([estimate(tf.constant([0, seed])) for seed in range(300)])
    error = estimates.std(0) / math.sqrt(len(estimates))
    assert np.all(np.abs(estimates.mean(0) - exact) < 5 * error + 1e-3)


def test_mask_leaves_padding_out():
    drawn = Filter().draw(noise_of("logistic", 0, 2, 24))
    given = Autoregression().conditionals(drawn.output)
    draws = divergence.standard_draws("logistic", 1, 2, 24, 4)
    mask = tf.concat([tf.ones([2, 10]), tf.zeros([2, 14])], 1)
    short = FlowOutput(*(part[:, :10] for part in drawn))
    front = Located(given.location[:, :10], given.log_scale[:, :10], given.kind)
    np.testing.assert_allclose(
        divergence.divergence(given, drawn, draws, "logistic", mask).kl,
        divergence.divergence(front, short, draws[..., :10], "logistic").kl,
        rtol=1e-5,
    )


def test_gradient_flows_through_the_past_into_the_teacher_and_stops_at_its_variables():
    teacher = network_of("gaussian, frames")
    freeze(teacher)
    condition = condition_of(teacher, 1, 32)
    x = tf.Variable(0.1 * noise_of("normal", 0, 1, 32))
    with tf.GradientTape(persistent=True) as tape:
        given = WaveNetDensity(teacher).conditionals(x, condition)
        last = tf.reduce_sum(given.log_density(tf.stop_gradient(x))[:, -1])
    assert np.all(tape.gradient(last, x).numpy()[0, -1] == 0.0)
    assert np.any(tape.gradient(last, x).numpy()[0, -9:-1] != 0.0)
    assert all(gradient is None for gradient in tape.gradient(last, teacher.variables))


def _integrated(given: TeacherConditionals, drawn: FlowOutput) -> np.ndarray:
    """-integral p_S log p_T at every place, by the trapezoidal rule over quantiles."""
    z = np.linspace(-25.0, 25.0, 20001, dtype=np.float32)
    values = z[:, None, None] * np.exp(drawn.log_scale) + drawn.location
    log_teacher = given.log_density(tf.constant(values, tf.float32)).numpy()
    weight = np.exp(-z - 2.0 * np.logaddexp(0.0, -z))[:, None, None]
    return -np.trapezoid(weight * log_teacher, z, axis=0)[0]
