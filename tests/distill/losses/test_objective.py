"""Names and values of the terms of a loss."""

import numpy as np
import pytest
from students import clips, objective_of

from distill.losses import kl_divergence
from distill.presets import LossConfig


@pytest.mark.parametrize("likelihood", ["gaussian", "logistic"])
def test_the_logged_divergence_is_the_divergence_and_no_term_is_ignored(likelihood):
    """A normal student's: in closed form, and regularised, where its teacher is a Gaussian."""
    config = LossConfig(kl=2.0, multi=0.0, contrastive=0.3, regularisation=5.0, draws=4)
    objective = objective_of("plain", likelihood, config)
    loss, values = objective(clips(objective.student))
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
    objective = objective_of("plain", "gaussian", config)
    batch = clips(objective.student)
    closed = objective(batch)[1]["kl"]
    seed = kl_divergence.counter_noise.fold_in(0, 3)
    drawn = objective._draw(batch, seed)
    samples = batch["waveform"].shape[1]
    condition = objective.teacher.condition(objective.frames(batch), None, samples)
    given = objective.teacher.conditionals(drawn.output, condition)
    draws = kl_divergence.standard_draws("normal", 9, 8, samples, 20)
    estimated = kl_divergence.divergence(given, drawn, draws, "normal", batch["mask"]).kl
    np.testing.assert_allclose(estimated, closed, rtol=0.02)
