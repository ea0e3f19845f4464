"""Names and values of the terms of a loss."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from students import clips, objective_of

from distill.config import LossConfig
from distill.losses import objective
from onepass.foundation.rules import UserError, stored_config, to_json

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
