"""Arguments without a meaning are one ValueError at the call, also of stored models and bundles."""

import math

import keras
import numpy as np
import own_models
import pytest
import tensorflow as tf
from causal_networks import wave_network

import onepass
import serving
from onepass.bundles.errors import ServingError
from onepass.likelihoods import FromTFP, Gaussian
from onepass.model import Autoregressive
from onepass.training.fit import fit

BAD_NUMBERS = (0, -1, 1.5, 2.0, math.nan, None, "x", True, [2])
WRONG = {
    "temperature": (math.nan, math.inf, -math.inf, -1, -1e-9, "x", "1"),
    "num": BAD_NUMBERS,
    "length": (0, -1, 2.5, 4.0, math.nan, None, "x", True, (4, 4), [], [[4]], np.array([4.5])),
    "seed": (-1, 2**64, 1.5, None, "x", math.nan, [1, 2]),
    "chunk": [value for value in BAD_NUMBERS if value is not None],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


def network(num_parameters=2):
    keras.utils.set_random_seed(1)
    return wave_network(keras.layers.Dense(num_parameters))


@pytest.fixture(scope="module")
def model():
    return Autoregressive(network(), Gaussian(256))


def refusal(call, error=ValueError):
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_an_argument_without_a_meaning_is_named_at_the_call(model, name, value):
    arguments = {"num": 1, "length": 4, "seed": 0} | {name: value}
    if name != "chunk":
        assert refusal(lambda: model.sample(**arguments)).startswith(f"`{name}` must be ")
    assert refusal(lambda: model.stream(**arguments)).startswith(f"`{name}` must be ")


@pytest.mark.parametrize("name", ["temperature", "num", "length", "seed"])
def test_a_student_and_a_bundle_name_the_same(model, student, made, name):
    for value in WRONG[name]:
        arguments = {"num": 1, "length": 4, "seed": 0} | {name: value}
        line = refusal(lambda given=arguments: model.sample(**given))
        assert refusal(lambda given=arguments: student.sample(**given)) == line
        assert refusal(lambda given=arguments: made.sample(**given), ServingError) == line


@pytest.fixture(scope="module")
def student(model):
    return onepass.FlowStudent([model.network], model.codec)


@pytest.fixture(scope="module")
def made():
    return own_models.bundle("own")


def test_numbers_of_every_library_are_taken(model):
    expected = model.sample(2, 4, 2**64 - 1)
    for given in (np.int64(2), np.array(2), tf.constant(2)):
        same = model.sample(given, given * 2, np.uint64(2**64 - 1), temperature=np.float32(1.0))
        np.testing.assert_array_equal(same, expected)


EMPTY, RAGGED = np.zeros([2, 0], np.float32), [[0.0, 0.1], [0.0]]


def test_rows_without_elements_are_named(model):
    for call in (model.log_prob, model.conditionals, lambda x: fit(model, x, steps=1)):
        assert refusal(lambda of=call: of(EMPTY))[:10] in ("`elements`", "`batches` ")


@pytest.mark.parametrize("rows", [RAGGED, tf.ragged.constant(RAGGED)])
@pytest.mark.usefixtures("eager")
def test_rows_of_different_lengths_have_no_array_of_conditionals(model, rows):
    assert refusal(lambda: model.conditionals(rows)).startswith("`elements` must be an array of")
    assert model.log_prob(rows).shape == (2, 2)
    assert fit(model, rows, steps=1, log=lambda line: None).step == 1


@pytest.mark.parametrize("seed", [-1, 1.5, None, "x"])
def test_a_seed_of_fit_is_named(model, seed):
    line = refusal(lambda: fit(model, np.zeros([4, 8], np.float32), steps=1, seed=seed))
    assert line == f"`seed` must be an integer in [0, 2^64), got {seed!r}."


class Coin:
    """A distribution over 0 and 1 that answers as TensorFlow Probability's without quantile."""

    def __init__(self, logits):
        self._logits = logits

    def log_prob(self, value):
        return -tf.math.softplus(tf.where(value > 0.5, -self._logits, self._logits))

    def sample(self, seed):
        uniform = tf.random.stateless_uniform(tf.shape(self._logits), seed)
        return tf.cast(uniform < tf.sigmoid(self._logits), tf.float32)


@pytest.fixture(scope="module")
def coins():
    return Autoregressive(network(1), FromTFP(lambda p: Coin(p[..., 0]), 1, levels=2))


def test_a_temperature_is_refused_where_there_is_no_quantile(coins, tmp_path):
    stored = onepass.load(onepass.save(coins, tmp_path / "stored"))
    line = "`temperature` must be 1 without a quantile, got 0.5."
    for each in (coins, stored):
        assert refusal(lambda m=each: m.sample(1, 4, 0, temperature=0.5)) == line
        assert refusal(lambda m=each: m.stream(length=4, seed=0, temperature=0.5)) == line
    np.testing.assert_array_equal(stored.sample(1, 4, 0), coins.sample(1, 4, 0))


@pytest.mark.slow
def test_a_bundle_without_a_quantile_refuses_a_temperature_too(coins, tmp_path):
    bundle = serving.load(onepass.export(coins, tmp_path / "own" / "1", length=8))
    np.testing.assert_array_equal(bundle.sample(1, 4, 0), coins.sample(1, 4, 0))
    refused = refusal(lambda: bundle.sample(1, 4, 0, temperature=0.5), ServingError)
    assert refused.startswith("`temperature` must be ")


def test_a_class_may_declare_its_inputs_by_one_spec():
    class Declared(tf.Module):
        inputs = tf.TensorSpec([None, None, 2])

        def __call__(self, x):
            return tf.concat([0.5 * x, 0.0 * x], -1)

    model = Autoregressive(Declared(), Gaussian(256))
    assert model.layout.channels == 2
    assert model.sample(num=1, length=3, seed=1).shape == (1, 3, 2)
