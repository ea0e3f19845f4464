"""`evaluate` takes the data that `fit` takes, and measures the same of every form of it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.foundation.rules import UserError

ROWS = np.random.default_rng(0).integers(0, 16, [10, 6]).astype(np.int32)
CONDITION = np.random.default_rng(1).normal(size=[10, 6, 3]).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    tokens = keras.Input([None], dtype="int32")
    hidden = keras.layers.Embedding(16, 4)(tokens)
    network = keras.Model(tokens, keras.layers.Dense(16)(hidden))
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(16))


@pytest.fixture(scope="module")
def conditioned():
    keras.utils.set_random_seed(2)
    tokens, rate = keras.Input([None], dtype="int32"), keras.Input([None, 3])
    hidden = keras.layers.Concatenate()([keras.layers.Embedding(16, 4)(tokens), rate])
    network = keras.Model([tokens, rate], keras.layers.Dense(16)(hidden))
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(16))


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])


FORMS = {
    "list": lambda: list(ROWS),
    "dict": lambda: {"elements": ROWS},
    "pair of one": lambda: (ROWS,),
    "examples": lambda: dataset(ROWS),
    "batches": lambda: dataset(ROWS).batch(4),
    "named": lambda: tf.data.Dataset.from_tensor_slices({"elements": ROWS}).batch(3),
    "list of batches": lambda: [ROWS[:3], ROWS[3:]],
    "generator": lambda: (part for part in (ROWS[:7], ROWS[7:])),
    "generator of examples": lambda: (row for row in ROWS),
    "tensor": lambda: tf.constant(ROWS),
    "tuple of examples": lambda: tuple(ROWS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_has_the_same_measure(model, form):
    expected = -np.asarray(model.log_prob(ROWS), np.float64).mean(1)
    found = onepass.evaluate(model, FORMS[form](), batch_size=4)
    assert (found.nats.n, found.elements) == (10, 60)
    np.testing.assert_allclose(found.nats.mean, expected.mean(), rtol=1e-6)


CONDITIONED = {
    "argument": lambda: (ROWS, CONDITION),
    "pair": lambda: ((ROWS, CONDITION), None),
    "dict": lambda: ({"elements": ROWS, "condition": CONDITION}, None),
    "batches": lambda: (dataset(ROWS, CONDITION).batch(4), None),
    "examples": lambda: (dataset(ROWS, CONDITION), None),
    "generator": lambda: (zip(ROWS, CONDITION, strict=True), None),
    "argument of batches": lambda: (dataset(ROWS).batch(4), CONDITION),
}


@pytest.mark.parametrize("form", CONDITIONED)
def test_conditions_go_with_their_rows(conditioned, form):
    expected = -np.asarray(conditioned.log_prob(ROWS, CONDITION), np.float64).mean()
    found = onepass.evaluate(conditioned, *CONDITIONED[form](), batch_size=3)
    np.testing.assert_allclose(found.nats.mean, expected, rtol=1e-6)


def test_padded_rows_count_the_elements_before_their_ends(model):
    lengths = np.array([6, 1, 2, 3, 4, 5, 6, 1, 2, 3])
    listed = [row[:length] for row, length in zip(ROWS, lengths, strict=True)]
    expected = onepass.evaluate(model, listed)
    found = onepass.evaluate(model, {"elements": ROWS, "lengths": lengths}, batch_size=4)
    assert found.elements == expected.elements == lengths.sum()
    np.testing.assert_allclose(found.nats.mean, expected.nats.mean, rtol=1e-6)


def test_data_without_an_end_is_refused_or_cut_and_said(model):
    with pytest.raises(UserError, match="`data` must be data that ends, got a dataset that rep"):
        onepass.evaluate(model, dataset(ROWS).repeat())
    expected = onepass.evaluate(model, np.concatenate([ROWS, ROWS[:5]]))
    for endless in (itertools.cycle(ROWS), itertools.cycle([ROWS])):
        with pytest.warns(UserWarning, match="`data` may have no end: only its first 15 rows"):
            found = onepass.evaluate(model, endless, most_rows=15)
        assert found == expected
    whole = onepass.evaluate(model, iter(np.tile(ROWS, [2, 1])), most_rows=None)
    assert (
        whole.nats.n == onepass.evaluate(model, dataset(ROWS).repeat(2), most_rows=1).nats.n == 20
    )


def test_two_conditions_or_none_are_named(conditioned):
    for data in ((ROWS, CONDITION), dataset(ROWS, CONDITION)):
        with pytest.raises(UserError, match="`condition` must be None where `data` has condi"):
            onepass.evaluate(conditioned, data, CONDITION)
    with pytest.raises(UserError, match="`condition` must have 10 rows, got 9"):
        onepass.evaluate(conditioned, (ROWS, CONDITION[:9]))
    with pytest.raises(UserError, match="`condition` must have 10 rows, got 11"):
        onepass.evaluate(conditioned, dataset(ROWS), np.concatenate([CONDITION, CONDITION[:1]]))
    with pytest.raises(UserError, match="`condition` must have a row for each example, got 9"):
        onepass.evaluate(conditioned, dataset(ROWS), CONDITION[:9])
    with pytest.raises(UserError, match="`data` must be data that ends, not a function"):
        onepass.evaluate(conditioned, lambda step: ROWS)


MASKED = np.ma.masked_array(ROWS, np.arange(6) > [[4]] * 10)
MASK_ERROR = "` must have no masked values, which would be read as if they were data"


@pytest.mark.usefixtures("eager")
def test_a_mask_is_refused_wherever_an_array_is_taken(model, conditioned):
    quiet = {"steps": 1, "log": lambda line: None}
    calls = {
        "log_prob": lambda: model.log_prob(MASKED),
        "log_prob of a list": lambda: model.log_prob(list(MASKED)),
        "condition": lambda: conditioned.log_prob(ROWS, np.ma.masked_less(CONDITION, 0)),
        "fit": lambda: onepass.fit(model, MASKED, **quiet),
        "validation": lambda: onepass.fit(model, ROWS, validation=MASKED, **quiet),
        "evaluate": lambda: onepass.evaluate(model, MASKED),
        "evaluate a list": lambda: onepass.evaluate(model, list(MASKED)),
        "evaluate a pair": lambda: onepass.evaluate(conditioned, (MASKED, CONDITION)),
        "prefix": lambda: model.sample(10, 8, 0, prefix=MASKED),
        "compress": lambda: onepass.compress(model, MASKED),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError) as caught:
            call()
        assert MASK_ERROR in str(caught.value) and "\n" not in str(caught.value), name
    unmasked = np.ma.masked_array(ROWS, np.zeros_like(ROWS, bool))
    np.testing.assert_array_equal(model.log_prob(unmasked), model.log_prob(ROWS))
