"""Predictions that follow the sound: solved from its past alone, and finite for any sound."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from networks import ADAPTIVE, WINDOWS, levels_of, network_of

from onepass.bundles.sound_functions import streaming_model
from onepass.foundation.errors import UserError
from wavenet.linear_prediction import (
    PAST_FLOOR,
    PAST_WHITE_NOISE,
    PastPrediction,
    fast_size,
    weights_of,
)
from wavenet.samplers.symbols import autoregressive

BLOCK = ADAPTIVE["prediction_block"]


def test_coefficients_solve_the_normal_equations_of_each_window():
    order, windows = 6, (40, 25)
    past = np.random.default_rng(0).normal(size=50).cumsum()
    solved = PastPrediction(order, windows)(tf.constant(past)).numpy()
    for row, window in zip(solved, windows, strict=True):
        part = past[-window:] * weights_of(window)
        lags = np.array([part[k:] @ part[: window - k] for k in range(order + 1)])
        lags[0] += PAST_WHITE_NOISE * lags[0] + PAST_FLOOR**2
        expected = scipy.linalg.solve_toeplitz(lags[:-1], lags[1:])
        np.testing.assert_allclose(row[:order], expected, rtol=1e-7)
        error = lags[0] - expected @ lags[1:]
        np.testing.assert_allclose(np.exp(2 * row[order:]), [error, lags[0]], rtol=1e-7)


def test_a_whole_transform_holds_all_lags():
    for least in range(2, 3000):
        assert least <= fast_size(least) <= max(8, 1.5 * least)


def test_a_sample_is_read_until_its_window_has_passed_and_not_before_it():
    network = network_of(WINDOWS)
    levels = levels_of(network, 1, 160)
    changed = levels.copy()
    changed[0, 60] += 9000
    one, other = (network(network.inputs(tf.constant(x))).numpy()[0] for x in (levels, changed))
    differs = np.abs(one - other).max(-1) > 0
    reach = network.config.receptive_field
    assert reach == 2 * 3 + max(ADAPTIVE["prediction_windows"]) + BLOCK - 1
    assert not differs[:61].any()
    assert differs[61 : 60 + max(ADAPTIVE["prediction_windows"])].all()
    assert not differs[60 + reach + 1 :].any()


@pytest.mark.parametrize(
    "wave",
    [
        np.zeros(200),
        np.full(200, 32767),
        np.full(200, -32768),
        np.tile([32767, -32768], 100),
        np.where(np.arange(200) == 100, 32767, 0),
        np.sign(np.sin(0.1 * np.arange(200))) * 32767,
    ],
    ids=["silence", "highest", "lowest", "alternating", "click", "clipped"],
)
def test_parameters_are_finite_for_every_sound(wave):
    network = network_of(WINDOWS)
    levels = tf.constant(wave.astype(np.int32)[None] + 32768)
    parameters = network(network.inputs(levels))
    assert np.isfinite(parameters).all()
    assert np.isfinite(network.likelihood.log_prob(parameters, levels)).all()


def test_a_bundle_refuses_it_in_one_line():
    with pytest.raises(UserError, match="A bundle streams the sound of"):
        streaming_model(network_of(WINDOWS))


@pytest.mark.parametrize("name", ["sample", "stream", "log_prob"])
def test_narrow_weights_are_refused_as_predictions_are_solved_between_steps(name):
    model = autoregressive(network_of(WINDOWS))
    given = [np.zeros([1, 9])] if name == "log_prob" else [1, 9]
    with pytest.raises(UserError, match=r"^`weights` must be float32 for predictions that are "):
        getattr(model, name)(*given, weights="int8")
