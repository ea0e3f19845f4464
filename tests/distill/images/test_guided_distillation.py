"""Guidance distilled: the loss is the divergence from guided tables, the run an ordinary model."""

import functools
import itertools
import json

import image_densities
import image_runs
import made_once
import numpy as np
import pytest
import tensorflow as tf
from hostile_files import refused
from image_networks import output_of
from image_runs import CLASSES, images, opened, quickly, silent
from scipy import special

import onepass
from distill.images import config, training
from distill.images.config import GuidedConfig, GuidedTargets
from distill.images.training import GuidedLoss
from onepass.foundation.metrics import read_metrics
from onepass.likelihoods import PixelMixture
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train
from pixelcnn import card
from pixelcnn.networks.layers import NULL_FLOOR

SIDE, ROWS = 8, 2
KINDS = ["pixelcnn", "A", "B"]
STEPS = 12


@functools.cache
def density_of(kind, likelihood="logistic", seed=0):
    """A density of three classes, its weights far enough from the start for these to matter."""
    base = {} if kind == "pixelcnn" else {"base": 4, "factor": kind}
    output = output_of(likelihood, 3, 256)
    return image_densities.density_of(SIDE, output=output, amount=1.0, seed=seed, **base)


def batch_of(labels=(0, 2)):
    return image_densities.batch_of(SIDE, ROWS) | {"label": tf.constant(labels)}


def total(parts):
    return np.sum([part.numpy() for part in parts.values()], axis=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("likelihood", ["logistic", "softmax"])
def test_a_student_that_equals_its_teacher_is_at_no_distance(kind, likelihood):
    teacher = density_of(kind, likelihood)
    at = GuidedLoss(teacher, teacher, GuidedTargets(guidance=0.0)).divergences(batch_of())
    np.testing.assert_allclose(total(at), np.zeros(ROWS), atol=2e-3)
    guided = GuidedLoss(teacher, teacher, GuidedTargets(guidance=1.0)).divergences(batch_of())
    other = GuidedLoss(density_of(kind, likelihood, 1), teacher, GuidedTargets(guidance=0.0))
    assert (total(guided) > 0.05).all() and (total(other.divergences(batch_of())) > 0.5).all()


def tables(density, condition, levels, part, temperature=1.0):
    """float64 nats [pixels, channels, levels] that a density says, pixel after pixel of a part."""
    given = density.conditionals(levels, condition)[part]
    values = tf.unstack(given.levels, axis=-1)
    each = [given.output.level_log_probs(given.hidden, values[:c], temperature) for c in range(3)]
    return np.float64(tf.stack(each, -2)).reshape(-1, 3, 256)


@pytest.mark.parametrize("kind", KINDS)
def test_the_distance_is_the_sum_over_guided_tables(kind):
    """Both sides are evaluated on their own here, not in pairs."""
    teacher, student, batch = density_of(kind), density_of(kind, seed=1), batch_of((1, 1))
    temperature = {"pixelcnn": {"8": 0.8}, "A": {"4": 0.8, "8": 0.5}, "B": {"4": 0.8, "8": 0.5}}
    at = temperature[kind]
    targets = GuidedTargets(guidance=1.5, temperature=tuple(at.values()))
    found = GuidedLoss(student, teacher, targets).divergences(batch)
    condition = teacher.conditioner(batch)
    null = condition._replace(vector=tf.fill([ROWS, 3], 1 / 3))
    for part, each in found.items():
        levels, t = batch["levels"], at[part.split(".")[0]]
        given, none = (tables(teacher, c, levels, part) for c in (condition, null))
        own = tables(student, condition, levels, part)
        cooled = tables(teacher, condition, levels, part, t)
        moved = np.maximum(given, np.log(1e-30)) - np.maximum(none, np.log(NULL_FLOOR))
        nats = cooled + 1.5 / t * moved
        target = nats - special.logsumexp(nats, axis=-1, keepdims=True)
        expected = np.sum(np.exp(target) * (target - own))
        np.testing.assert_allclose(np.sum(each), expected, rtol=1e-3)


def test_a_student_that_rules_a_level_out_still_learns_it():
    """Far in the upper tail a difference of sigmoids is 0; its logarithm has a gradient."""
    mixture = PixelMixture(256, 1, 1)
    parameters = tf.constant([[0.0, -0.9, -5.5], [0.0, 0.9, -5.5]])
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        table = mixture.level_log_probs(parameters, [])
        far = table[0, 220] + table[1, 35]
    scale, half = np.exp(-5.5), 1 / 255
    edges = (2 * 220 / 255 - 1 - half + 0.9) / scale
    expected = -edges + np.log(-np.expm1(-2 * half / scale))
    np.testing.assert_allclose(table[0, 220], expected, rtol=1e-5)
    np.testing.assert_allclose(table[1, ::-1], table[0], rtol=1e-5, atol=1e-5)
    gradients = tape.gradient(far, parameters).numpy()[:, 1]
    np.testing.assert_allclose(gradients, [1 / scale, -1 / scale], rtol=1e-3)


def test_the_gradient_reaches_every_weight_of_the_student_alone():
    student, teacher = density_of("A", seed=1), density_of("A")
    loss = GuidedLoss(student, teacher, GuidedTargets(likelihood=0.5))
    with tf.GradientTape(persistent=True) as tape:
        value, terms = loss(batch_of())
    assert all(g is not None for g in tape.gradient(value, student.trainable_variables))
    assert all(g is None for g in tape.gradient(value, teacher.trainable_variables))
    nats = terms["kl_bits_per_dim"] + 0.5 * terms["bits_per_dim"]
    np.testing.assert_allclose(value, nats * np.log(2.0), rtol=1e-6)
    bits = -total(student.nats(batch_of())).mean() / student.num_dims / np.log(2.0)
    np.testing.assert_allclose(terms["bits_per_dim"], bits, rtol=1e-5)


def test_some_rows_and_columns_stand_for_all():
    """Over all corners that they may begin at, their mean is the whole."""
    student, teacher = density_of("A", seed=1), density_of("A")
    targets, batch = GuidedTargets(), batch_of()
    whole = GuidedLoss(student, teacher, targets)(batch)[1]["kl_bits_per_dim"]
    found = []
    for corner in itertools.product(range(2), range(2)):
        seeds = tf.constant([corner, (5, 5)])
        loss = GuidedLoss(student, teacher, targets, table_side=2)
        found.append(float(loss(batch | {"seed": seeds})[1]["kl_bits_per_dim"]))
    assert np.ptp(found) > 1e-3
    np.testing.assert_allclose(np.mean(found), whole, rtol=1e-5)


TARGETS = GuidedTargets(guidance=1.0, temperature=(0.5, 0.4))


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    """A run distilled from a tiny multiscale model that was trained."""
    workdir = tmp_path_factory.mktemp("distilled") / "run"
    config = GuidedConfig(
        targets=TARGETS,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=1, average_decay=0.5),
        loop=LoopConfig(num_steps=STEPS, evaluate_every_steps=STEPS // 2, report_every_steps=1),
        batch_size=8,
    )
    teacher = (image_runs.model("multiscale"), image_runs.run("multiscale"))
    recipe = training.ImageStudentRecipe("guided-smoke", config, images(), *teacher)
    with quickly():
        train(recipe, workdir, silent)
    return workdir


@pytest.mark.slow
def test_the_divergence_falls_from_that_of_the_teacher(distilled):
    teacher = image_runs.model("multiscale").network
    batch = next(iter(image_runs.dev_of("multiscale").dev(1000)))
    with quickly():
        bits = [
            np.mean(total(GuidedLoss(student, teacher, TARGETS).divergences(batch)))
            for student in (teacher, opened(distilled).network)
        ]
    name = "dev_kl_bits_per_dim"
    logged = [line[name] for line in read_metrics(distilled) if name in line]
    assert bits[1] < 0.7 * bits[0]
    assert min(logged) == pytest.approx(bits[1] / 64 / np.log(2), rel=1e-4)


@pytest.mark.slow
def test_the_run_is_an_ordinary_model_whose_card_says_what_it_was_distilled_from(
    distilled, tmp_path, monkeypatch
):
    stored = json.loads((distilled / "config.json").read_text())
    assert (stored["kind"], stored["targets"]["guidance"]) == ("multiscale", 1.0)
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
    monkeypatch.setattr(card, "load", opened)
    folder = tmp_path / "model"
    assert onepass.main(["export", str(distilled), "--bare", "--out", str(folder)]) == 0
    text = (folder / "card.md").read_text()
    name = image_runs.run("multiscale").name
    assert f"`onepass distill guided-smoke --teacher {name} --data toys --workdir run`" in text
    assert "guidance 1" in text and "no longer a density of the images" in text
    assert str(made_once.shared_folder()) not in text + (folder / "model.json").read_text()


def test_only_classes_that_the_teacher_knows_are_distilled(tmp_path):
    preset = config.PRESETS["guided-smoke"].config
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        classes = {"classes": np.array(["ape", *CLASSES[1:]])}
        np.savez(tmp_path / "data" / f"few_{split}.npz", **image_runs.toys(6, 1) | classes)
    for kind, data, line in (
        ("text", images(), "Only a model of classes can be guided"),
        ("multiscale", tmp_path / "data", "has the classes ape, dog, eel; the teacher knows cat,"),
    ):
        teacher = (image_runs.model(kind), image_runs.run(kind))
        recipe = training.ImageStudentRecipe("guided-smoke", preset, data, *teacher)
        assert line in refused(train, recipe, tmp_path / "run", silent)


def test_a_shipped_teacher_comes_without_its_images(mistake):
    words = ["distill", "guided-32", "--teacher", "shipped-digits", "--workdir", "run"]
    assert mistake(*words) == "shipped-digits comes without its images; name some with --data."


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": (1.0, 0.0)}, r"^`temperature` must be above 0"),
        ({"guidance": -1.0}, r"^`guidance` must be at least 0"),
        ({"kl": 0.0}, r"^`kl` must be above 0 if no other term is"),
    ],
)
def test_impossible_targets_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        GuidedTargets(**fields)
