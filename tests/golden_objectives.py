"""Objectives of students by name, each with a fixed batch and the variables that it trains."""

import functools

import numpy as np
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
