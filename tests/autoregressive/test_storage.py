"""A stored model needs no code of its own, and gives the same numbers."""

import subprocess
import sys

import causal_networks
import numpy as np
import pytest
import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.storage import load, save
from foundation.errors import UserError
from likelihoods import Gaussian
from likelihoods.distribution import Tabulated

PROGRAM = """
import sys
import numpy as np
from autoregressive.storage import load

model = load(sys.argv[1])
np.save(sys.argv[2], model.sample(2, 12, seed=5))
"""


class Triangle(Tabulated):
    """A distribution of a test: the nearer to its centre, the more probable a level is."""

    levels, num_parameters = 16, 1

    def log_prob(self, parameters, symbols):
        every = tf.range(16, dtype=tf.float32)
        centre = 8.0 + 4.0 * tf.tanh(parameters)
        table = tf.nn.log_softmax(-tf.abs(every - centre))
        return tf.reduce_sum(tf.one_hot(symbols, 16) * table, -1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    model = Autoregressive(causal_networks.convolved(1, 1), Triangle())
    folder = tmp_path_factory.mktemp("stored") / "model"
    return model, save(model, folder, sample_rate_hz=8000)


@pytest.mark.integration
def test_another_process_draws_the_same_without_the_code(stored, tmp_path):
    model, folder = stored
    result = tmp_path / "drawn.npy"
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(result)], check=True)
    np.testing.assert_array_equal(np.load(result), model.sample(2, 12, seed=5))


class Modeless(Triangle):
    """A distribution whose most probable level nobody knows."""

    def mode(self, parameters):
        raise NotImplementedError


@pytest.mark.slow
def test_a_distribution_without_a_mode_is_stored(tmp_path):
    model = Autoregressive(causal_networks.Gated(1), Modeless())
    loaded = load(save(model, tmp_path))
    np.testing.assert_array_equal(loaded.sample(2, 9, seed=1), model.sample(2, 9, seed=1))
    with pytest.raises(NotImplementedError, match="`mode` must be a method of Modeless"):
        loaded.distribution.mode(tf.zeros([1, 1, 1]))


def test_what_cannot_be_stored_is_named(tmp_path):
    def network(x):
        h = tf.py_function(lambda y: 2.0 * y, [x], tf.float32)
        return tf.ensure_shape(h, x.shape) * tf.ones([2])

    model = Autoregressive(network, Gaussian(levels=64))
    with pytest.raises(UserError, match=r"cannot be stored: .* runs Python code"):
        save(model, tmp_path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="contains no model that `save` wrote"):
        load(tmp_path / "nothing")


def test_what_is_loaded_is_the_model_with_its_sample_rate(stored, tmp_path):
    model, folder = stored
    loaded = load(folder)
    assert loaded.sample_rate_hz == 8000
    for options in ({}, {"prefix": model.sample(2, 3, seed=4), "temperature": [0.5, 1.0]}):
        drawn = model.sample(2, 9, seed=5, **options)
        np.testing.assert_array_equal(loaded.sample(2, 9, seed=5, **options), drawn)
    with pytest.raises(ValueError, match=r"`sample_rate_hz` must be .* at least 1, got -1"):
        save(model, tmp_path / "wrong", sample_rate_hz=-1)


def test_a_stored_model_in_float64_can_be_stored_again(tmp_path):
    inputs = causal_networks.FLOAT64
    model = Autoregressive(causal_networks.Dilated(2), Gaussian(levels=16), inputs=inputs)
    again = load(save(load(save(model, tmp_path / "one", sample_rate_hz=8000)), tmp_path / "two"))
    assert again.sample_rate_hz == 8000
    rows = {"temperature": [1.0, 0.0]}  # the second takes modes
    np.testing.assert_array_equal(again.sample(2, 9, 1, **rows), model.sample(2, 9, 1, **rows))


def test_a_stored_network_steps_through_several_times_at_once(tmp_path):
    model = Autoregressive(causal_networks.two_inputs(), Gaussian(levels=64))
    stepped = load(save(model, tmp_path)).network
    generator = np.random.default_rng(0)
    inputs, condition = (
        tf.constant(generator.normal(size=[3, 5, channels]), tf.float32) for channels in (1, 2)
    )
    state = stepped.initial_state(3)
    first, state = stepped.step(inputs[:, :4], state, condition[:, :4])
    last, _ = stepped.step(inputs[:, 4:], state, condition[:, 4:])
    whole = stepped(inputs, condition)
    np.testing.assert_allclose(tf.concat([first, last], 1), whole, rtol=1e-5, atol=1e-5)
