"""Replicas and accumulation change nothing but the time, whatever a student's loss."""

import numpy as np
import pytest
from image_densities import batch_of, density_of
from marks import some_slow
from shares import assert_cuts_change_nothing
from students import clips, objective_of

from distill.config import LossConfig
from distill.images.config import FlowTargets, GuidedTargets
from distill.images.flow import Features, FlowLoss
from distill.images.training import GuidedLoss
from pixelcnn.density import ImageLoss
from pixelcnn.measures import FEATURES, Classifier, make_network

ROWS, SIDE = 8, 4
EVERY = dict(kl=1.0, squared=0.5, magnitude=0.5, multi=1.0, feature=0.3, style=0.3, contrastive=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "likelihood"), [("speakers", "logistic"), ("plain", "gaussian")])
def test_every_term_of_a_sound_student_is_that_of_the_whole_batch(kind, likelihood):
    loss = objective_of(kind, likelihood, LossConfig(**EVERY, draws=2))
    student = loss.student
    assert_cuts_change_nothing(loss, clips(student), student.trainable_variables, {"level_db"})


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
    student = density_of(SIDE, SIDE, flows=(1, 1), dropout=dropout)
    loss = FlowLoss(student, density_of(SIDE), TARGETS[term], features())
    base = student.multiscale.base
    assert_cuts_change_nothing(loss, batch_of(SIDE, ROWS), base.trainable_variables)


@pytest.mark.slow
def test_guidance_distilled_is_that_of_the_whole_batch():
    student, teacher = (density_of(2 * SIDE, SIDE, dropout=dropout) for dropout in (0.3, 0.0))
    loss = GuidedLoss(student, teacher, GuidedTargets(likelihood=0.5), table_side=2)
    assert_cuts_change_nothing(loss, batch_of(2 * SIDE, ROWS), student.trainable_variables)


@pytest.mark.parametrize("size", some_slow([SIDE, 2 * SIDE, 4 * SIDE], (2 * SIDE, 4 * SIDE)))
def test_the_likelihood_of_images_is_that_of_the_whole_batch(size):
    """The larger ones are cropped, each by its own seed."""
    base = None if size == SIDE else SIDE
    density = density_of(size, base, dropout=0.3, dropped_conditions=0.2, crop=2 * SIDE)
    loss = ImageLoss(density)
    assert_cuts_change_nothing(loss, batch_of(size, ROWS), density.trainable_variables)
