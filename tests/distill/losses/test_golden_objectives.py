"""Every objective of version 0.2 on one fixed batch: its terms, their sum and its gradient."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from image_densities import batch_of, density_of
from students import clips, objective_of

from distill.any_teacher import ModelTeacher, _objective, flow_student
from distill.config import DiscriminatorConfig, LossConfig
from distill.images.config import FlowTargets, GuidedTargets
from distill.images.flow import Features, FlowLoss
from distill.images.training import GuidedLoss
from distill.losses.discriminators import Discriminators
from distill.losses.divergence import KL
from distill.losses.terms import Compared
from onepass.likelihoods import Gaussian, LogisticMixture
from onepass.model import Autoregressive
from pixelcnn.measures import FEATURES, Classifier, make_network

SPECTRA = dict(squared=0.5, magnitude=0.5, multi=1.0, feature=0.3, style=0.3)
SIDE, ROWS, TIME = 4, 3, 40


def sound(kind: str, likelihood: str, opponent: Discriminators | None = None, **weights):
    config = LossConfig(kl=1.5, draws=2, contrastive=0.3, **SPECTRA, **weights)
    loss = objective_of(kind, likelihood, config, opponent)
    others = () if opponent is None else opponent.trainable_variables
    return loss, clips(loss.student), [*loss.student.trainable_variables, *others]


def opposed():
    small = DiscriminatorConfig(spectra=(64, 128), periods=(3,), channels=4)
    weights = dict(adversarial=0.7, matching=2.0, adversarial_after=2)
    return sound("speakers", "logistic", Discriminators(small, seed=3), **weights)


def any_teacher(distribution, count: int):
    def network(x):
        return tf.concat([0.3 * (i + 1) * x - 1.0 for i in range(count)], -1)

    model = Autoregressive(network, distribution)
    student = flow_student(model, num_flows=2, channels=4)
    draws = np.random.default_rng(1)
    weights = [v for each in student.networks for v in each.trainable_weights]
    for weight in weights:
        weight.assign(0.08 * draws.normal(size=weight.shape))
    rows = draws.uniform(-1, 1, [ROWS, TIME]).astype(np.float32)
    batch = {"elements": tf.constant(rows), "row": tf.range(ROWS), "step": tf.fill([ROWS], 7)}
    loss = _objective(ModelTeacher(model), [KL(weight=1.5, draws=3), Compared(apart, 0.5)], 2)
    return functools.partial(loss, student), batch, [weight.value for weight in weights]


def apart(drawn, recorded):
    return tf.reduce_mean(tf.square(drawn - recorded), -1)


def images_of(size: int, flows=()):
    """A multiscale density of images of three classes."""
    return density_of(size, SIDE, flows=flows, dropped_conditions=0.2)


def images(size: int):
    batch = batch_of(size, ROWS)
    return batch | {"seeds": batch["seed"][tf.newaxis], "share": tf.constant(0)}


def flow():
    student, teacher = images_of(SIDE, (1, 1)), images_of(SIDE)
    classifier = Classifier(make_network(SIDE, 3, 3, seed=1), np.zeros([0, FEATURES]))
    weights = dict(kl=1.5, likelihood=0.5, forward=0.25, spectrum=0.1, features=2.0)
    targets = FlowTargets(**weights, guidance=1.5, draws=2)
    loss = FlowLoss(student, teacher, targets, Features(classifier))
    return loss, images(SIDE), student.trainable_variables


def guided():
    student, teacher = images_of(2 * SIDE), images_of(2 * SIDE)
    loss = GuidedLoss(student, teacher, GuidedTargets(kl=1.5, likelihood=0.5), table_side=2)
    return loss, images(2 * SIDE), student.trainable_variables


CASES = {
    "speakers, logistic": functools.partial(sound, "speakers", "logistic"),
    "plain, gaussian": functools.partial(sound, "plain", "gaussian"),
    "opposed": opposed,
    "any teacher, gaussian": functools.partial(any_teacher, Gaussian(levels=256), 2),
    "any teacher, logistic": functools.partial(
        any_teacher, LogisticMixture(levels=256, components=2), 6
    ),
    "flow of images": flow,
    "guided images": guided,
}
# The terms in their order.
GOLDEN = {
    "speakers, logistic": dict(
        loss=100.68, gradient_norm=6050.12, kl=3.37231, cross_entropy=3.08093, entropy=-0.291375,
        contrastive=3.3686, squared=188.896, magnitude=1.51332, multi=1.91879, feature=0.0197835,
        style=0.0269883, level_db=-1.53578,
    ),
    "plain, gaussian": dict(
        loss=9.46865, gradient_norm=248.454, kl=1.55444, cross_entropy=0.757723,
        entropy=-0.796716, regularisation=0.630453, contrastive=1.55364, squared=4.06822,
        magnitude=0.595563, multi=1.70405, feature=0.0210675, style=0.0371603, level_db=-6.8244,
    ),
    "opposed": dict(
        loss=102.428, gradient_norm=6050.25, kl=3.37231, cross_entropy=3.08093, entropy=-0.291375,
        contrastive=3.3686, squared=188.896, magnitude=1.51332, multi=1.91879, feature=0.0197835,
        style=0.0269883, adversarial=0.90099, matching=0.100672, discriminator=0.915719,
        level_db=-1.53578,
    ),
    "any teacher, gaussian": dict(
        loss=120.489, gradient_norm=813.125, kl=119.34, apart=1.14907,
    ),
    "any teacher, logistic": dict(
        loss=2447.02, gradient_norm=35295.7, kl=2443.19, apart=3.82907,
    ),
    "flow of images": dict(
        loss=13.2099, gradient_norm=57.132, kl=4.09074, cross_entropy=4.40268, entropy=0.311944,
        spectrum=1.88351, features=0.0708262, likelihood=10.0058, forward=6.9636,
    ),
    "guided images": dict(
        loss=3.80924, gradient_norm=1.63239, kl_bits_per_dim=0.0384685, bits_per_dim=10.8757,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_terms_and_gradient_are_those_of_version_0_2(name):
    loss, batch, variables = CASES[name]()
    with tf.GradientTape() as tape:
        tape.watch(variables)
        total, values = loss(batch)
    gradients = tape.gradient(total, variables)
    found = {"loss": total, "gradient_norm": tf.linalg.global_norm(gradients), **values}
    found = {term: float(value) for term, value in found.items()}
    assert list(found) == list(GOLDEN[name])
    np.testing.assert_allclose(list(found.values()), list(GOLDEN[name].values()), rtol=2e-4)
