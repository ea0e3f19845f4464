"""A stored model needs no code of its own, and gives the same numbers."""

import subprocess
import sys

import attention_networks
import causal_networks
import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow

from autoregressive.model import Autoregressive
from autoregressive.storage import load, save
from foundation.errors import UserError
from likelihoods import Categorical, Gaussian, LogisticMixture
from likelihoods.codec import Integers, MuLaw
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
    model = Autoregressive(causal_networks.Gated(1), Triangle())
    return model, save(model, tmp_path_factory.mktemp("stored") / "model")


@pytest.mark.integration
def test_another_process_draws_the_same_without_the_code(stored, tmp_path):
    model, folder = stored
    result = tmp_path / "drawn.npy"
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(result)], check=True)
    np.testing.assert_array_equal(np.load(result), model.sample(2, 12, seed=5))


def test_what_is_loaded_gives_the_same_numbers(stored):
    model, folder = stored
    loaded = load(folder)
    drawn = model.sample(2, 12, seed=5)
    np.testing.assert_allclose(loaded.log_prob(drawn), model.log_prob(drawn), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        loaded.conditionals(drawn), model.conditionals(drawn), rtol=1e-5, atol=1e-5
    )
    for num in (1, 2):  # a stored step, and one of more rows
        for method in ("cached", "fixed-point"):
            np.testing.assert_array_equal(
                loaded.sample(num, 12, seed=5, method=method), drawn[:num]
            )


def test_what_is_loaded_continues_prefixes_at_temperatures_of_the_rows(stored):
    model, folder = stored
    options = {"prefix": model.sample(2, 3, seed=4), "temperature": [0.5, 1.0]}
    drawn = model.sample(2, 9, seed=5, **options)
    np.testing.assert_array_equal(load(folder).sample(2, 9, seed=5, **options), drawn)


def test_what_is_loaded_can_be_stored_again(stored, tmp_path):
    model, folder = stored
    again = load(save(load(folder), tmp_path / "again"))
    np.testing.assert_array_equal(again.sample(1, 12, seed=5), model.sample(1, 12, seed=5))


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


def test_images_are_stored(tmp_path):
    distribution = LogisticMixture(levels=4096, components=2)
    network = causal_networks.MaskedImage(1, distribution.num_parameters)
    model = Autoregressive(network, distribution, order="raster")
    loaded = load(save(model, tmp_path))
    drawn = model.sample(2, (4, 3, 1), seed=1)
    np.testing.assert_array_equal(loaded.sample(2, (4, 3, 1), seed=1), drawn)
    np.testing.assert_allclose(loaded.log_prob(drawn), model.log_prob(drawn), rtol=1e-5)


def test_levels_and_a_condition_are_stored(tmp_path):
    model = Autoregressive(causal_networks.embedding_of(8), Categorical(8), codec=MuLaw(8))
    np.testing.assert_array_equal(
        load(save(model, tmp_path / "a")).sample(1, 9, seed=1), model.sample(1, 9, seed=1)
    )
    model = Autoregressive(causal_networks.two_inputs(), Gaussian(levels=64))
    condition = np.ones([1, 9, 2], np.float32)
    np.testing.assert_array_equal(
        load(save(model, tmp_path / "b")).sample(1, 9, 1, condition),
        model.sample(1, 9, 1, condition),
    )


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


def test_a_sample_rate_is_stored_and_kept(stored, tmp_path):
    model, folder = stored
    assert load(folder).sample_rate_hz is None
    loaded = load(save(model, tmp_path / "rated", sample_rate_hz=8000))
    assert loaded.sample_rate_hz == 8000
    assert load(save(loaded, tmp_path / "again")).sample_rate_hz == 8000
    with pytest.raises(
        ValueError, match="`sample_rate_hz` must be an integer of at least 1, got -1"
    ):
        save(model, tmp_path / "wrong", sample_rate_hz=-1)


@pytest.mark.slow
@pytest.mark.parametrize("num", some_slow([1, 3, 8, 11], [1, 3, 8]))
def test_a_recurrent_network_is_stored_for_any_number_of_rows(num, tmp_path):
    model = Autoregressive(causal_networks.lstm_after_convolution(), Gaussian(levels=64))
    loaded = load(save(model, tmp_path))
    np.testing.assert_array_equal(loaded.sample(num, 7, seed=2), model.sample(num, 7, seed=2))
    chunks = np.concatenate(list(loaded.stream(7, seed=2, num=num, chunk=3)), 1)
    np.testing.assert_array_equal(chunks, model.sample(num, 7, seed=2))


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


def test_a_stored_model_over_tokens_takes_prompts(tmp_path):
    codec = Integers(attention_networks.TOKENS)
    live = Autoregressive(
        attention_networks.Rotary(),
        Categorical(attention_networks.TOKENS),
        codec=codec,
        inputs=attention_networks.SPEC,
    )
    save(live, tmp_path / "mine")
    found = load(tmp_path / "mine")
    options = {"prefix": [[1, 2], [3], [4, 4, 4]], "top_k": 4, "top_p": 0.9, "stop": 0}
    for given in (options, {"temperature": [0.5, 1.0, 2.0]}):
        np.testing.assert_array_equal(
            live.sample(3, 30, 5, **given), found.sample(3, 30, 5, **given)
        )
    with pytest.raises(ValueError, match=r"`prefix` must be integers in .*, got float64"):
        found.sample(1, 30, 5, prefix=[0.5])
