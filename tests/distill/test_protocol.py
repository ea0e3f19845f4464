"""Every student samples, streams, has a density, and drafts or says why not; and its laws."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from image_densities import model_of
from image_networks import QuickInitial, perturbed
from students import student_of

from distill import model as models
from distill.any_teacher import flow_student
from distill.config import DistillConfig
from onepass.foundation.rules import UserError
from onepass.likelihoods import Gaussian, LogisticMixture, noise
from onepass.model import Autoregressive
from onepass.trained import Trained
from pixelcnn.density import ImageDensity
from pixelcnn.model import ImageFront, ImageSampler
from pixelcnn.networks.layers import Condition
from wavenet.config import DataConfig
from wavenet.front import SoundFront


def of_any_teacher(distribution):
    def network(x):
        return tf.concat([0.5 * x] * distribution.num_parameters, -1)

    student = flow_student(Autoregressive(network, distribution), num_flows=2, channels=4)
    draws = np.random.default_rng(0)
    for weight in (w for each in student.networks for w in each.trainable_weights):
        weight.assign(0.08 * draws.normal(size=weight.shape))
    return student


def of_sound(kind):
    network = student_of(kind)
    front = SoundFront(DataConfig(sample_rate_hz=4000), network.config.hop_samples, 0.0, ())
    sampler = models.StudentSampler(network, DistillConfig(student=network.config))
    return Trained(sampler, front, {"kind": "parallel-wavenet"})


# What is this small is drawn sooner than a program that draws it is traced.
untraced = pytest.mark.usefixtures("eager")


def volume(draw, z):
    """Return -log|det dx/dz| of one sequence by its Jacobian, which is triangular."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        output = draw(z).output
    jacobian = tape.jacobian(output, z, experimental_use_pfor=False)[0, :, 0]
    assert np.all(np.triu(jacobian, 1) == 0.0)
    return -np.log(np.diag(jacobian))


def standard(z, kind):
    z = np.float64(z)
    if kind == "logistic":
        return -z - 2 * np.logaddexp(0, -z)
    return -0.5 * (z**2 + np.log(2 * np.pi))


@pytest.mark.parametrize("distribution", [Gaussian(levels=256), LogisticMixture(256, 2)])
def test_the_density_is_that_of_the_noise_over_the_volume(distribution):
    student = of_any_teacher(distribution)
    z = student.noise(3, tf.range(1), 12)
    expected = standard(z[0], student.noise_kind) + volume(student.draw, z)
    np.testing.assert_allclose(student.log_density(1, 12, 3)[0], expected, rtol=1e-3, atol=1e-3)


def test_the_density_of_sound_is_that_of_the_noise_over_the_volume():
    student = of_sound("residual, bunches")
    frames = np.full([1, 7], 0.5, np.float32)
    given, _ = student.network.condition(tf.constant(frames[np.newaxis]), None, 12)
    drawn = student.network.noise(3, [0], 0, 12)
    expected = standard(drawn[0], student.network.noise_kind)
    expected = expected + volume(lambda z: student.network.draw(z, given), drawn)
    found = student.log_density(1, 12, 3, frames)
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-3)
    made = student.sample(1, 12, 3, frames, method="tensorflow")
    drawn = student.network.draw(drawn, given).output
    np.testing.assert_allclose(made, np.clip(drawn, -1, 1), atol=1e-5)


@functools.cache
def of_images(flows):
    """A tiny multiscale model, as both kinds of distillation of images make them."""
    teacher = model_of("multiscale A, colour")
    if not flows:
        return teacher
    network = dataclasses.replace(teacher.config.network, base_flows=(1, 1))
    config = dataclasses.replace(teacher.config, network=network)
    density = perturbed(ImageDensity(config, QuickInitial(0)), 0.1)
    return Trained(ImageSampler(density), ImageFront(config, teacher.front.classes), teacher.spec)


@untraced
def test_the_density_of_drawn_images_is_their_probability():
    student, rows = of_images(False), ["cat", "eel"]
    drawn = student.sample(2, None, 5, rows)
    found = student.log_density(2, None, 5, rows)
    np.testing.assert_allclose(found, student.log_prob(drawn, rows), rtol=1e-6)


def test_the_density_of_a_flow_is_that_of_the_noise_over_the_volume():
    flow = of_images(True).network.multiscale.base
    words = noise.words(3, [0], 0, 4, flow.noise_words)
    words, given = tf.reshape(words, [1, 2, 2, -1]), Condition(tf.ones([1, 3]), None)
    z = noise.logistic_from_bits(words)
    with tf.GradientTape() as tape:
        tape.watch(z)
        output = tf.reshape(flow(z, given).output, [-1])
    jacobian = np.float64(tf.reshape(tape.jacobian(output, z), [len(output), -1]))
    expected = standard(z, "logistic").sum() - np.linalg.slogdet(jacobian)[1]
    expected += len(output) * np.log(2 / 255)  # of a level's width
    np.testing.assert_allclose(flow.drawn_nats(words, given)[0], expected, rtol=1e-4)


@untraced
def test_the_density_of_images_of_a_flow_does_not_depend_on_their_number():
    student = of_images(True)
    both = student.log_density(2, None, 5, "cat")
    assert np.all(np.isfinite(both))
    np.testing.assert_allclose(student.log_density(1, None, 5, "cat"), both[:1], rtol=1e-5)


@pytest.mark.parametrize("flows", [False, True])
def test_students_of_images_draft_for_none_and_say_so_in_one_line(flows):
    student = of_images(flows)
    with pytest.raises(UserError, match=r"^`draft` must [^\n]*$"):
        student.as_draft(student)
