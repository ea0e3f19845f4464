"""Replicas and accumulation change nothing but the time, whatever a student's loss."""

import numpy as np
import pytest
import tensorflow as tf
from image_networks import QuickInitial, factor_config, image_of, perturbed
from marks import some_slow
from shares import assert_cuts_change_nothing
from students import clips, objective_of

from distill.config import LossConfig
from distill.images.config import FlowTargets, GuidedTargets
from distill.images.flow import Features, FlowLoss
from distill.images.training import GuidedLoss
from pixelcnn.config import (
    ConditioningConfig,
    DataConfig,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
    PixelCNNConfig,
    PixelCNNTrainConfig,
)
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.measures import FEATURES, Classifier, make_network

ROWS, SIDE = 8, 4
EVERY = dict(kl=1.0, squared=0.5, magnitude=0.5, multi=1.0, feature=0.3, style=0.3, contrastive=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "likelihood"), [("speakers", "logistic"), ("plain", "gaussian")])
def test_every_term_of_a_sound_student_is_that_of_the_whole_batch(kind, likelihood):
    loss = objective_of(kind, likelihood, LossConfig(**EVERY, draws=2))
    student = loss.student
    assert_cuts_change_nothing(loss, clips(student), student.trainable_variables, {"level_db"})


def density_of(flows=(), dropout=0.0, size=SIDE, crop=0):
    """A density of images of three classes: a PixelCNN, or a multiscale model of such a base."""
    config = dict(
        output=OutputConfig(components=2),
        conditioning=ConditioningConfig("class", 3, dropout=0.2 if dropout else 0.0),
        data=DataConfig(size, 3, batch_size=ROWS),
    )
    base = PixelCNNConfig(1, 6, 8, dropout)
    if size == SIDE and not flows:
        return perturbed(ImageDensity(PixelCNNTrainConfig(**config, network=base), QuickInitial(0)))
    network = MultiscaleConfig(SIDE, base, factor_config("A", dropout=dropout), crop, flows)
    return perturbed(ImageDensity(MultiscaleTrainConfig(**config, network=network)), 0.2)


def images(size=SIDE):
    seeds = tf.stack([tf.range(ROWS), tf.fill([ROWS], 9)], -1)
    levels = image_of(ROWS, size, size, 3, 256)
    return {"levels": levels, "label": tf.range(ROWS) % 3, "seed": seeds}


def features():
    """Return the features of a classifier that is not trained."""
    network = make_network(SIDE, 3, 3, seed=1)
    return Features(Classifier(network, np.zeros([0, FEATURES])))


TARGETS = {
    "kl": FlowTargets(draws=2),
    "means": FlowTargets(kl=0.0, spectrum=1.0, features=1.0, draws=2),
    "likelihood": FlowTargets(kl=0.0, likelihood=1.0),
    "forward": FlowTargets(kl=0.0, forward=1.0, guidance=1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("term", "dropout"),
    [("kl", 0.0), ("means", 0.0), ("means", 0.5), ("likelihood", 0.0), ("forward", 0.0)],
)
def test_every_term_of_a_flow_over_images_is_that_of_the_whole_batch(term, dropout):
    student = density_of((1, 1), dropout)
    loss = FlowLoss(student, density_of(), TARGETS[term], features())
    base = student.multiscale.base
    assert_cuts_change_nothing(loss, images(), base.trainable_variables)


@pytest.mark.slow
def test_guidance_distilled_is_that_of_the_whole_batch():
    student, teacher = density_of(size=2 * SIDE, dropout=0.3), density_of(size=2 * SIDE)
    loss = GuidedLoss(student, teacher, GuidedTargets(likelihood=0.5), table_side=2)
    assert_cuts_change_nothing(loss, images(2 * SIDE), student.trainable_variables)


@pytest.mark.parametrize("size", some_slow([SIDE, 2 * SIDE, 4 * SIDE], (2 * SIDE, 4 * SIDE)))
def test_the_likelihood_of_images_is_that_of_the_whole_batch(size):
    """The larger ones are cropped, each by its own seed."""
    density = density_of(size=size, dropout=0.3, crop=2 * SIDE)
    loss = ImageLoss(density)
    assert_cuts_change_nothing(loss, images(size), density.trainable_variables)
