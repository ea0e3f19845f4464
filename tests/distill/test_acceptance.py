"""Acceptance against its definition, and its two ends: a student equal to its teacher, and not."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distill import evaluation
from distill.evaluation import Closeness, acceptance, mean_run
from distill.losses.divergence import log_density
from onepass.likelihoods.affine import FlowOutput

SHAPE = (2, 4000)


class Equal:
    """A teacher whose conditionals are the student's, but for a shift of the mean."""

    def __init__(self, drawn, kind, shift=0.0):
        self.drawn, self.kind, self.shift = drawn, kind, shift

    def log_density(self, values):
        return log_density(self.drawn._replace(output=values - self.shift), self.kind)


def drawn(kind):
    generator = np.random.default_rng(0)
    draw = generator.logistic if kind == "logistic" else generator.normal
    z, location, log_scale = draw(size=SHAPE), *generator.normal(size=(2, *SHAPE))
    values = (z * np.exp(log_scale) + location, location, log_scale)
    return FlowOutput(*(tf.constant(v, tf.float32) for v in values))


@pytest.mark.parametrize("kind", ["logistic", "normal"])
def test_a_student_equal_to_its_teacher_is_always_kept_and_otherwise_what_both_share(kind):
    made = drawn(kind)
    np.testing.assert_allclose(acceptance(Equal(made, kind), made, kind), 1.0, atol=1e-5)
    z = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    made = made._replace(log_scale=tf.zeros(SHAPE), output=made.location + z)
    shared = 0.6171  # 2 Phi(-1/2), of normals one deviation apart
    kept = acceptance(Equal(made, "normal", shift=1.0), made, "normal")
    assert abs(float(tf.reduce_mean(kept)) - shared) < 0.01


def test_runs_are_those_of_a_coin():
    assert mean_run(np.zeros(10)) == 0.0
    assert mean_run(np.ones(3)) == pytest.approx((3 + 2 + 1) / 3)
    assert mean_run(np.full(100_000, 0.75)) == pytest.approx(3.0, rel=1e-3)


def test_every_recording_has_noise_of_its_own(monkeypatch):
    noises = []

    def measured(student, teacher, frames, speaker, length, seed, row):
        noises.append((seed, row))
        return Closeness(float(row), 0.0, np.full(length, 0.5))

    monkeypatch.setattr(evaluation, "measure_closeness", measured)
    monkeypatch.setattr(evaluation, "WaveNetDensity", lambda network: network)
    front = SimpleNamespace(sample_rate_hz=10, conditional=False, speakers=())
    model = SimpleNamespace(network=None, front=front)
    items = [{"waveform": np.zeros(20)}] * 3
    kl_nats = evaluation.closeness(model, model, items, seed=4)["kl_nats"]
    assert noises == [(4, 0), (4, 1), (4, 2)]
    assert (kl_nats["mean"], kl_nats["n"]) == (1.0, 3)
    assert kl_nats["low"] < 0.0 and kl_nats["high"] > 2.0
