"""Rows of different lengths: their log-probabilities, and training on them."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_models import ADAM, WAVES, trained, untrained

import onepass
from onepass.likelihoods import Categorical, Gaussian
from onepass.model import Autoregressive
from onepass.networks.elements import Layout
from onepass.training.batches import Batches
from onepass.training.fit import fit, negative_log_likelihood

layers = keras.layers
TIME = Layout("time")
LENGTHS = [40, 1, 0, 7, 33, 40, 12, 2, 25, 40, 3, 18]
ROWS = [row[:length] for row, length in zip(WAVES, LENGTHS, strict=True)]


def masked(fill):
    """WAVES with something else after the end of every row."""
    is_real = np.arange(40) < np.array(LENGTHS)[:, None]
    return np.where(is_real, WAVES, np.float32(fill))


# --- log-probabilities


def test_a_row_has_its_own_log_probabilities_and_zeros_after_them():
    model = untrained()
    nats = model.log_prob(masked(np.nan), lengths=LENGTHS).numpy()
    whole = model.log_prob(WAVES).numpy()
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(nats[row, :length], whole[row, :length], rtol=1e-5)
        np.testing.assert_array_equal(nats[row, length:], 0.0)


def test_rows_in_a_list_have_their_own_lengths():
    model = untrained()
    expected = model.log_prob(masked(0.0), lengths=LENGTHS)
    np.testing.assert_array_equal(model.log_prob(ROWS), expected)
    ragged = tf.RaggedTensor.from_row_lengths(np.concatenate(ROWS), LENGTHS)
    np.testing.assert_array_equal(model.log_prob(ragged), expected)
    equal = model.log_prob(list(WAVES))
    np.testing.assert_array_equal(equal, model.log_prob(WAVES))


def test_rows_of_tokens_in_plain_lists():
    network = keras.Sequential([keras.Input([None], dtype="int32"), layers.Embedding(5, 5)])
    model = Autoregressive(network, Categorical(5))
    nats = model.log_prob([[1, 4, 2], [0]])
    np.testing.assert_allclose(nats[1, :1], model.log_prob([[0]])[0], rtol=1e-6)
    np.testing.assert_array_equal(nats[1, 1:], 0.0)


def test_lengths_within_a_function_of_tensorflow():
    model = untrained()
    function = tf.function(lambda x, n: model.log_prob(x, lengths=n), autograph=False)
    found = function(tf.constant(masked(np.nan)), tf.constant(LENGTHS))
    expected = model.log_prob(masked(0.0), lengths=LENGTHS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("eager")
def test_a_condition_is_padded_with_its_elements():
    inputs, given = keras.Input([None, 1]), keras.Input([None, 2])
    joined = layers.Concatenate()([inputs, given])
    model = Autoregressive(keras.Model([inputs, given], layers.Dense(2)(joined)), Gaussian(16))
    condition = np.random.default_rng(0).normal(size=[12, 40, 2]).astype(np.float32)
    nats = model.log_prob(masked(0.0), condition, lengths=LENGTHS)
    alone = model.log_prob(WAVES[4:5, :33], condition[4:5, :33])
    np.testing.assert_allclose(nats[4:5, :33], alone, rtol=1e-5)
    parts = [part[:length] for part, length in zip(condition, LENGTHS, strict=True)]
    outcome = fit(model, (ROWS, parts), steps=2, optimizer=ADAM, batch_size=4)
    assert outcome.step == 2


BAD = {
    "too long": ([41, *LENGTHS[1:]], "12 integers from 0 to 40, one per row, got \\[41, 1,"),
    "negative": ([-1, *LENGTHS[1:]], "12 integers from 0 to 40, one per row, got \\[-1, 1,"),
    "floats": (np.full(12, 4.0), "12 integers .*, got float64 \\[12\\]"),
    "too few": ([4], "12 integers .*, got int64 \\[1\\]"),
    "one number": (4, "12 integers .*, got int64 \\[\\]"),
}


@pytest.mark.parametrize("kind", BAD)
def test_lengths_that_mean_nothing_are_named(kind):
    lengths, text = BAD[kind]
    with pytest.raises(ValueError, match="^`lengths` must be " + text):
        untrained().log_prob(WAVES, lengths=lengths)
    if np.ndim(lengths):
        with pytest.raises(ValueError, match=r"^`lengths` must"):
            trained(batches={"elements": WAVES, "lengths": lengths})


def test_elements_before_the_end_are_checked():
    for wrong in (np.nan, 3.0):
        waves = WAVES.copy()
        waves[0, 39] = wrong
        with pytest.raises(ValueError, match=r"`elements` must be .*\[0, 39\]"):
            untrained().log_prob(waves, lengths=LENGTHS)
        with pytest.raises(ValueError, match=r"`elements` must be .*\[0, 39\]"):
            trained(batches=[waves[0], *ROWS[1:]])


def test_images_have_no_lengths():
    def network(images):
        return tf.concat([0.0 * images, 0.0 * images], -1)

    model = Autoregressive(network, Gaussian(8), order="raster")
    images = np.zeros([2, 3, 3, 1], np.int32)
    with pytest.raises(ValueError, match="`lengths` needs a model in time order"):
        model.log_prob(images, lengths=[1, 2])
    with pytest.raises(ValueError, match="`lengths` needs `elements` in time order"):
        fit(model, {"elements": images, "lengths": np.array([1, 2])}, steps=1)
    with pytest.raises(ValueError, match=r"images of one size|rows of one length"):
        fit(model, [images[0], images[1, :2]], steps=1)


# --- training


def loss_and_gradient(model, batch):
    with tf.GradientTape() as tape:
        loss = negative_log_likelihood(model, batch)[0]
    return float(loss), tape.gradient(loss, model.network.kernel).numpy()


FEW = [0, 1, 2, 3, 9]  # of the rows: 40, 1, 0, 7 and 40 elements
SOURCES = {
    "list": [ROWS[row] for row in FEW],
    "dict": {"elements": [ROWS[row] for row in FEW]},
    "padded": {"elements": masked(np.nan)[FEW], "lengths": [LENGTHS[row] for row in FEW]},
}


def test_the_loss_is_that_of_the_rows_one_by_one_weighted_by_their_lengths():
    model = untrained()
    rows = [ROWS[row] for row in FEW if len(ROWS[row])]
    alone = [loss_and_gradient(model, {"elements": tf.constant(row[None])}) for row in rows]
    weights = np.array([len(row) for row in rows]) / sum(map(len, rows))
    expected = sum(w * each for w, (each, _) in zip(weights, alone, strict=True))
    slope = sum(w * each for w, (_, each) in zip(weights, alone, strict=True))
    for source in SOURCES.values():
        (batch,) = Batches(source, model.codec, TIME, rows=12, seed=0).parts()
        loss, gradient = loss_and_gradient(model, batch)
        assert loss == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("eager")
def test_rows_of_one_length_are_an_array():
    np.testing.assert_array_equal(trained(batches=list(WAVES))[0], trained()[0])


@pytest.mark.usefixtures("eager")
def test_padding_changes_nothing_and_microbatches_give_the_weights_of_one_batch():
    expected, _ = trained(batches=ROWS)
    given = {"elements": masked(np.nan), "lengths": LENGTHS}
    np.testing.assert_allclose(trained(batches=given)[0], expected, rtol=1e-5, atol=1e-6)
    found, _ = trained(batches=ROWS, optimizer=dataclasses.replace(ADAM, accumulate=2))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("eager")
def test_an_evaluation_counts_every_element_once():
    model = untrained()
    nats = np.asarray(model.log_prob(ROWS), np.float64)
    outcome = fit(
        *(model, WAVES),
        steps=1,
        optimizer=dataclasses.replace(ADAM, learning_rate=1e-12),
        evaluate=ROWS,
        batch_size=5,
    )
    assert outcome.best_score == pytest.approx(-nats.sum() / sum(LENGTHS), rel=1e-5)


def test_a_batch_of_empty_rows_has_no_loss():
    model = untrained()
    loss, gradient = loss_and_gradient(
        model, next(iter(Batches([ROWS[2], ROWS[0]], model.codec, TIME, 1, 0).parts()))
    )
    assert loss == 0.0 and not gradient.any()


def test_few_lengths_are_compiled():
    rows = [np.zeros(length, np.float32) for length in range(1, 401)]
    codec = untrained().codec
    batches = Batches(rows, codec, TIME, rows=1, seed=0).starting_at(0)
    shapes = {batch["elements"].shape[1] for batch, _ in zip(batches, range(200), strict=False)}
    assert shapes == {64, 128, 256, 400}
    calls = [{"elements": [row, row[:1]]} for row in rows[1:]]
    shapes = {b["elements"].shape[1] for b in Batches(calls, codec, TIME, 2, 0).parts()}
    assert shapes == {64, 128, 256, 512}


@pytest.mark.usefixtures("eager")
def test_a_network_with_a_table_of_positions_is_trained_on_rows():
    tokens = keras.Input([None], dtype="int32")
    h = layers.Embedding(5, 4)(tokens)

    class Positions(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(70, 4), initializer="normal")

        def call(self, inputs):
            return inputs + self.table[: tf.shape(inputs)[1]]

    model = Autoregressive(keras.Model(tokens, layers.Dense(5)(Positions()(h))), Categorical(5))
    draws = np.random.default_rng(0)
    rows = [{"elements": [draws.integers(0, 5, n) for n in (66, 70, 3)]}]
    assert fit(model, rows, steps=2, optimizer=ADAM).step == 2


def test_a_student_is_not_distilled_on_padding():
    with pytest.raises(ValueError, match="`data` must have rows of one length to be distilled"):
        onepass.distill(untrained(), ROWS, steps=1, batch_size=2)


def test_rows_and_lengths_are_not_given_together():
    with pytest.raises(ValueError, match="`lengths` must be left out where `elements` are rows"):
        trained(batches={"elements": ROWS, "lengths": LENGTHS})
