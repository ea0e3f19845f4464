"""Every student in time order samples, streams, has a density and drafts; and its laws."""

import numpy as np
import pytest
import tensorflow as tf
from students import MEL, student_of

from autoregressive.model import Autoregressive
from distill import model as models
from distill.any_teacher import flow_student
from distill.presets import DistillConfig
from distill.protocol import Student
from likelihoods import Gaussian, LogisticMixture
from wavenet.presets import DataConfig

TIME = 50


def of_any_teacher(distribution, condition_channels=0):
    def network(x, *condition):
        return tf.concat([0.5 * x] * distribution.num_parameters, -1)

    model = Autoregressive(network, distribution, condition_channels=condition_channels)
    student = flow_student(model, num_flows=2, channels=4)
    draws = np.random.default_rng(0)
    for each in student.networks:
        for weight in each.trainable_weights:
            weight.assign(0.08 * draws.normal(size=weight.shape))
    return student


def of_sound(kind):
    network = student_of(kind)
    config = DistillConfig(student=network.config)
    names = ("", "other")[: max(1, network.config.speakers)]
    data = DataConfig(sample_rate_hz=4000)
    return models.StudentModel(network, config, data, 0.0, names, {"kind": "parallel-wavenet"})


@pytest.mark.parametrize("channels", [0, 2])
def test_parts_of_a_stream_are_the_sample(channels):
    student = of_any_teacher(Gaussian(levels=256), channels)
    condition = np.random.default_rng(1).normal(size=[2, TIME, channels]) if channels else None
    whole = student.sample(2, TIME, 5, condition, temperature=0.8)
    parts = list(student.stream(TIME, 5, condition, num=2, chunk=16, temperature=0.8))
    assert [part.shape[1] for part in parts] == [16, 16, 16, 2]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=2.1 / 255)


def volume(draw, noise):
    """Return -log|det dx/dz| of one sequence by its Jacobian, which is triangular."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(noise)
        output = draw(noise).output
    jacobian = tape.jacobian(output, noise, experimental_use_pfor=False)[0, :, 0]
    assert np.all(np.triu(jacobian, 1) == 0.0)
    return -np.log(np.diag(jacobian))


def standard(noise, kind):
    z = np.float64(noise)
    if kind == "logistic":
        return -z - 2 * np.logaddexp(0, -z)
    return -0.5 * (z**2 + np.log(2 * np.pi))


@pytest.mark.parametrize("distribution", [Gaussian(levels=256), LogisticMixture(256, 2)])
def test_the_density_is_that_of_the_noise_over_the_volume(distribution):
    student = of_any_teacher(distribution)
    noise = student.noise(3, tf.range(1), 12)
    expected = standard(noise[0], student.noise_kind) + volume(student.draw, noise)
    np.testing.assert_allclose(student.log_density(1, 12, 3)[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["plain", "residual, bunches"])
def test_the_density_of_sound_is_that_of_the_noise_over_the_volume(kind):
    student = of_sound(kind)
    frames = np.full([1, 7], 0.5, np.float32)
    given, _ = student.network.condition(tf.constant(frames[np.newaxis]), None, 20)
    noise = student.network.noise(3, [0], 0, 20)
    kind = student.network.noise_kind
    expected = standard(noise[0], kind) + volume(lambda z: student.network.draw(z, given), noise)
    found = student.log_density(1, 20, 3, frames)
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-3)
    made = student.sample(1, 20, 3, frames, backend="tensorflow")
    drawn = student.network.draw(noise, given).output
    np.testing.assert_allclose(made, np.clip(drawn, -1, 1), atol=1e-5)
    parts = student.stream(frames, seed=3, num_samples=20, backend="tensorflow")
    np.testing.assert_allclose(np.concatenate(list(parts), 1), made, atol=1e-5)


def test_both_are_students():
    for student in (of_any_teacher(Gaussian(levels=256)), of_sound("plain")):
        assert isinstance(student, Student)
    assert not isinstance(MEL, Student)
