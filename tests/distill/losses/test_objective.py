"""Names and values of the terms of a loss."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from students import clips, objective_of

from distill.config import LossConfig
from distill.losses import divergence, objective
from onepass.foundation.errors import UserError
from onepass.foundation.settings import stored_config, to_json


@pytest.mark.parametrize("likelihood", ["gaussian", "logistic"])
def test_the_logged_divergence_is_the_divergence_and_no_term_is_ignored(likelihood):
    """A normal student's: in closed form, and regularised, where its teacher is a Gaussian."""
    config = LossConfig(kl=2.0, multi=0.0, contrastive=0.3, regularisation=5.0, draws=4)
    loss_of = objective_of("plain", likelihood, config)
    loss, values = loss_of(clips(loss_of.student))
    expected = 2.0 * (values["kl"] - 0.3 * values["contrastive"])
    if likelihood == "gaussian":
        expected += 2.0 * 5.0 * values["regularisation"]
        assert values["regularisation"] > 0
    else:
        assert "regularisation" not in values
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(values["kl"], values["cross_entropy"] - values["entropy"], rtol=1e-3)
    assert float(values["contrastive"]) != float(values["kl"])


def test_the_closed_form_is_what_draws_estimate():
    config = LossConfig(kl=1.0, multi=0.0)
    loss_of = objective_of("plain", "gaussian", config)
    batch = clips(loss_of.student)
    closed = loss_of(batch)[1]["kl"]
    draw = loss_of.draw(batch)
    draws = divergence.standard_draws("normal", 9, 8, batch["waveform"].shape[1], 20)
    given = draw.teacher, draw.output, draws, "normal", batch["mask"]
    estimated = divergence.divergence(*given).kl
    np.testing.assert_allclose(estimated, closed, rtol=0.02)


TOY = """
import tensorflow as tf
from distill.losses.objective import register

@register("toy")
def toy(config, parts):
    return lambda draw: tf.reduce_mean(tf.abs(draw.output.output))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A term in a file of its own."""
    monkeypatch.setattr(objective, "TERMS", dict(objective.TERMS))
    (tmp_path / "toy.py").write_text(TOY)
    spec = importlib.util.spec_from_file_location("toy", tmp_path / "toy.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_term_is_one_file_with_one_registration(toy):
    config = LossConfig(kl=0.0, multi=1.0, others=("toy=0.5",))
    loss_of = objective_of("plain", "gaussian", config)
    batch = clips(loss_of.student)
    with tf.GradientTape() as tape:
        loss, values = loss_of(batch)
    assert list(values) == ["multi", "toy", "level_db"]
    np.testing.assert_allclose(loss, values["multi"] + 0.5 * values["toy"], rtol=1e-6)
    drawn = loss_of.draw(batch).output.output
    np.testing.assert_allclose(values["toy"], np.abs(drawn).mean(), rtol=1e-6)
    assert all(g is not None for g in tape.gradient(loss, loss_of.student.trainable_variables))
    assert stored_config(LossConfig, to_json(config)) == config


def test_a_term_may_be_the_only_one(toy):
    loss_of = objective_of("plain", "gaussian", LossConfig(kl=0.0, multi=0.0, others=("toy=2",)))
    loss, values = loss_of(clips(loss_of.student))
    np.testing.assert_allclose(loss, 2 * values["toy"], rtol=1e-6)


def test_a_stored_loss_without_others_is_read():
    stored = to_json(LossConfig(draws=8))
    del stored["others"]
    assert stored_config(LossConfig, stored) == LossConfig(draws=8)


@pytest.mark.parametrize(
    ("others", "error"),
    [
        (("unheard=1",), "`loss.others` must be of kl, .*, got unheard"),
        (("toy",), "`others` must be NAME=WEIGHT of at least 0 each, got 'toy'"),
        (("toy=-1",), "`others` must be NAME=WEIGHT of at least 0 each, got 'toy=-1'"),
        (("toy=nan",), "`others` must be NAME=WEIGHT of at least 0 each, got 'toy=nan'"),
    ],
)
def test_a_weight_of_no_term_is_refused(others, error):
    with pytest.raises(UserError, match=error):
        objective_of("plain", "gaussian", LossConfig(others=others))
