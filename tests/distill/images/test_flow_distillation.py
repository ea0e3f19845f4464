"""A flow distilled from a PixelCNN: the divergence is that of its samples, the run a model."""

import dataclasses
import functools

import image_runs
import made_once
import numpy as np
import pytest
import tensorflow as tf
from hostile_files import refused
from image_densities import batch_of, density_of
from image_networks import QuickInitial, image_of, output_of, pixelcnn_of
from image_runs import CLASSES, images, opened, quickly, silent, trained

from distill.images import flow, training
from distill.images.config import FlowConfig, FlowTargets
from distill.images.flow import (
    Features,
    FlowLoss,
    conditionals,
)
from onepass.foundation.card import ExportArguments, write_folder
from onepass.foundation.rules import UserError
from onepass.likelihoods import PixelMixture
from onepass.likelihoods.codec import value_of
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train
from pixelcnn import card, measures
from pixelcnn.card import join_runs
from pixelcnn.config import OutputConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity
from pixelcnn.measures import FEATURES, Classifier, make_network
from pixelcnn.model import ImageSampler
from pixelcnn.networks.layers import Condition

SIDE, ROWS, LEVELS = 4, 3, 256
NUMBERS = 3 * SIDE**2
STEPS = 20


def student_of(components=3, size=SIDE):
    output = OutputConfig(components=components)
    return density_of(size, SIDE, output, flows=(1, 1), amount=0.1)


def teacher_of(components=3, amount=0.1):
    return density_of(SIDE, output=OutputConfig(components=components), amount=amount)


def recipe_of(config, teacher):
    run = image_runs.run("multiscale")
    return training.ImageStudentRecipe("flow-smoke", config, images(), teacher, run)


def test_densities_of_levels_are_their_tables():
    """Over a bin's width; the outer levels of a table hold what lies beyond."""
    likelihood = PixelMixture(LEVELS, 3, 2)
    draws = np.random.default_rng(4)
    parameters = tf.constant(draws.normal(size=[5, likelihood.num_parameters]) * 0.7, tf.float32)
    pixels = tf.constant([[0, 10, 200], [255, 0, 3], [17, 255, 128], [80, 81, 82], [1, 254, 60]])
    before, width = value_of(pixels, LEVELS), 2.0 / (LEVELS - 1)
    other = tf.constant([[40, 41, 42]] * 5)
    for levels in (pixels, other):
        nats = likelihood.log_densities(parameters, value_of(levels, LEVELS), before)
        for c in range(3):
            known = [pixels[:, d] for d in range(c)]
            table = np.exp(likelihood.level_log_probs(parameters, known))
            fast = likelihood.level_probabilities(parameters, known)
            np.testing.assert_allclose(fast, table, atol=1e-6)
            found = width * np.exp(nats[:, c])
            for row, level in enumerate(levels[:, c].numpy()):
                if 0 < level < LEVELS - 1:
                    assert found[row] == pytest.approx(table[row, level], rel=2e-3, abs=1e-6)


MEANS, SCALE, COEFFICIENTS = (0.1, -0.2, 0.05), 0.05, (0.3, -0.2, 0.5)


def single_logistic(scale):
    """Biases of a mixture of one component that has the distribution of `MEANS` and so on."""
    (red, green, blue), (a, b, c) = MEANS, COEFFICIENTS
    own = (a, b - c * a, c)
    means = (red, green - own[0] * red, blue - own[1] * red - own[2] * green)
    return [0.0, *means, *[np.log(scale)] * 3, *np.arctanh(own)]


def equals():
    """A student whose flow is the distribution of `MEANS` and so on, and its teacher."""
    student, teacher = student_of(1), teacher_of(1)
    for weight in (*student.trainable_variables, *teacher.trainable_variables):
        weight.assign(tf.zeros_like(weight))
    bias = [*MEANS, *[np.log(SCALE)] * 3, *(SCALE * np.array(COEFFICIENTS))]
    student.multiscale.base.flows[-1].output.bias.assign(bias)
    return student, teacher


def test_a_flow_that_equals_its_teacher_is_at_no_distance():
    student, teacher = equals()
    loss = FlowLoss(student, teacher, FlowTargets(draws=256))
    teacher.pixelcnn.output.bias.assign(single_logistic(SCALE))
    assert np.abs(loss.divergences(batch_of(SIDE, ROWS))["4"]).max() / NUMBERS < 3e-3
    teacher.pixelcnn.output.bias.assign(single_logistic(2 * SCALE))
    found = loss.divergences(batch_of(SIDE, ROWS))["4"] / NUMBERS
    np.testing.assert_allclose(found, [logistic_kl(2.0)] * ROWS, rtol=0.05)


def logistic_kl(ratio):
    """KL(logistic of scale 1 || logistic of scale `ratio`), nats."""
    z = np.linspace(-40, 40, 400_001)
    own = -z - 2 * np.logaddexp(0, -z)
    other = -z / ratio - 2 * np.logaddexp(0, -z / ratio) - np.log(ratio)
    return np.sum(np.exp(own) * (own - other)) * (z[1] - z[0])


def test_the_gradient_reaches_the_flow_alone():
    student, teacher = student_of(size=2 * SIDE), teacher_of()
    loss = FlowLoss(student, teacher, FlowTargets(draws=4, spectrum=0.1))
    weights = student.trainable_variables
    with tf.GradientTape() as tape:
        value, terms = loss(batch_of(2 * SIDE, ROWS))
    gradients = tape.gradient(value, weights)
    of_base = {w.ref() for w in student.multiscale.base.trainable_variables}
    for weight, gradient in zip(weights, gradients, strict=True):
        assert (np.abs(gradient).max() > 0) == (weight.ref() in of_base)
    np.testing.assert_allclose(value, terms["kl"] + 0.1 * terms["spectrum"], rtol=1e-5)
    np.testing.assert_allclose(terms["kl"], terms["cross_entropy"] - terms["entropy"], rtol=1e-4)


def test_features_are_those_of_the_classifier():
    network = make_network(8, 3, len(CLASSES), seed=1)
    draws = np.random.default_rng(5)
    weights = [draws.uniform(0.1, 0.3, w.shape) for w in network.get_weights()]
    network.set_weights([w - 0.15 * (w.ndim > 1) for w in weights])
    known = Classifier(network, np.zeros([0, FEATURES]))
    levels = draws.integers(0, 256, [4, 8, 8, 3])
    found = Features(known)(tf.constant(levels / 127.5 - 1.0, tf.float32))
    assert found.shape == (4, FEATURES) and np.std(found) > 0.01
    np.testing.assert_allclose(found, known(levels).features, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_classifier_of_a_run_is_trained_once_on_images_of_the_bases_size(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "STEPS", 2)
    config, file = FlowConfig(FlowTargets(features=0.1), flows=(1,), units=4), tmp_path / "c.npz"
    dataset = training.dataset_for(config, image_runs.model("multiscale"), images())
    drawn = tf.fill([2, 4, 4, 1], 0.5)
    found = training.features_for(config, dataset, file)(drawn)
    monkeypatch.setattr(flow, "train_classifier", None)
    again = training.features_for(config, dataset, file)(drawn)
    np.testing.assert_array_equal(again, found)
    without = ImageDataset(dataset.config, dataclasses.replace(dataset.source, classes=()))
    with pytest.raises(UserError, match="needs images with classes"):
        training.features_for(config, without, tmp_path / "d.npz")
    assert training.features_for(FlowConfig(), dataset, file) is None


@functools.cache
def distilled(steps=STEPS):
    """A run distilled from a tiny multiscale model."""
    workdir = made_once.own_folder() / f"distilled_flow_{steps}"
    config = FlowConfig(
        targets=FlowTargets(draws=4),
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=1, average_decay=0.5),
        loop=LoopConfig(num_steps=steps, evaluate_every_steps=steps, report_every_steps=1),
        batch_size=4,
        flows=(1, 1),
        units=6,
    )
    with quickly():
        train(recipe_of(config, image_runs.model("multiscale")), workdir, silent)
    return workdir


@pytest.mark.slow
def test_the_run_is_an_ordinary_model_that_draws_its_base_in_one_pass():
    model = opened(distilled())
    assert model.network.multiscale.has_flow and model.spec["kind"] == "multiscale"
    with quickly():
        drawn = model.sample(condition="dog", num=2, seed=3)
        assert drawn.shape == (2, 8, 8, 1) and len(np.unique(drawn)) > 3
        np.testing.assert_array_equal(model.sample(condition="dog", num=1, seed=3), drawn[:1])
        assert np.isfinite(model.log_prob(drawn, "dog")).all()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_flow_is_joined_with_newer_parts_in_place_of_its_teachers(tmp_path, is_first):
    """It has trained its base alone, and is the base of whoever trained none."""
    newer = image_runs.config_of("multiscale", num_steps=2)
    trained(dataclasses.replace(newer, parts=("8",), seed=5), images(), tmp_path)
    runs = [distilled(2), tmp_path] if is_first else [tmp_path, distilled(2)]
    stored, model = join_runs(runs[0], runs[1:])
    assert model.network.multiscale.has_flow and model.network.whole
    assert ("teacher" in stored) == is_first
    found, factors = model.network.multiscale, opened(tmp_path).network.multiscale.factors
    assert found.factors.keys() == factors.keys()
    pairs = [(found.factors[part], factor) for part, factor in factors.items()]
    for made, of in [(found.base, opened(distilled(2)).network.multiscale.base), *pairs]:
        for weight, own in zip(made.trainable_variables, of.trainable_variables, strict=True):
            np.testing.assert_array_equal(weight, own)


@pytest.mark.slow
def test_the_card_says_which_terms_made_the_flow(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "evaluate", lambda *_: image_runs.figures("multiscale"))
    monkeypatch.setattr(card, "load", opened)
    given = ExportArguments(distilled(), tmp_path / "model", machine="an abacus")
    write_folder(given, card.measure, card.card)
    text = (tmp_path / "model" / "card.md").read_text()
    assert "conditioned on class, its base drawn in one pass by flows." in text
    assert ") by the terms kl 1. The probability of an image is a bound from below.\n" in text
    assert "`onepass distill flow-smoke --teacher " in text


def test_only_what_has_a_pixelcnn_with_a_density_is_distilled(tmp_path):
    known = image_runs.model("multiscale")
    output = output_of("softmax", 1, 256)
    softmax = ImageDensity(dataclasses.replace(known.config, output=output), QuickInitial(0))
    other = dataclasses.replace(known, model=ImageSampler(softmax))
    for teacher, line in (
        (opened(distilled(2)), "The teacher's base is already a flow"),
        (other, "A softmax over levels has no gradient"),
    ):
        recipe = recipe_of(FlowConfig(flows=(1,), units=4), teacher)
        assert refused(train, recipe, tmp_path / "run", silent).startswith(line)


def test_a_teacher_reads_beyond_the_outer_levels_as_these():
    network = pixelcnn_of(output_of("logistic", 3, LEVELS))
    values = tf.constant(np.random.default_rng(1).normal(size=[1, 3, 3, 3]) * 1.5, tf.float32)
    clipped = tf.clip_by_value(values, -1.0, 1.0)
    given, inside = (conditionals(network, v, Condition()) for v in (values, clipped))
    np.testing.assert_array_equal(given.before, clipped)
    np.testing.assert_array_equal(given.parameters, inside.parameters)
    levels = image_of(1, 3, 3, 3, LEVELS)
    on_levels = conditionals(network, value_of(levels, LEVELS), Condition())
    expected = network.output.parameters(network(levels, Condition()))
    np.testing.assert_allclose(on_levels.parameters, expected, atol=1e-5)
