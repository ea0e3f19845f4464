"""`check_causal` says whether a network looks ahead, and where."""

import causal_networks
import indexing_networks
import keras
import numpy as np
import one_length_networks
import pytest
import refused_networks
import tensorflow as tf

from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive
from onepass.networks.causality import (
    MOST_COMPARED,
    check_causal,
    free_time_axis,
    probe_lengths,
)
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental
from onepass.training.fit import fit


@pytest.mark.parametrize(
    ("make", "is_causal"),
    [
        (refused_networks.attention, True),
        (refused_networks.unrolled, True),
        (refused_networks.first_repeated, True),
        (refused_networks.last_subtracted, False),
        (refused_networks.repeated, False),
        (refused_networks.reversed_time, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_graph_does_not_settle_the_outputs_do(make, is_causal):
    found = check_causal(make())
    assert found.is_causal == is_causal and not found.has_step and found.message


@pytest.mark.parametrize("name", indexing_networks.WITHOUT_STEP)
def test_what_a_rule_cannot_follow_is_no_lookahead(name):
    network, spec = indexing_networks.WITHOUT_STEP[name](), indexing_networks.SPEC
    found = check_causal(network, inputs=spec)
    assert found.is_causal and not found.has_step and found.message
    with pytest.raises(UnsupportedNetworkError):
        incremental(network, inputs=spec)
    model = Autoregressive(lambda x: network(tf.tile(x, [1, 1, 4]))[..., :2], Gaussian(None))
    drawn = [model.sample(1, 6, 3, method=method) for method in ("auto", "naive")]
    np.testing.assert_allclose(*drawn, atol=1e-5)


def test_what_lies_beyond_the_lengths_of_all_calls_is_confirmed_by_longer_ones():
    far = keras.layers.Conv1D(2, 3, padding="same", dilation_rate=1500, name="far")
    found = check_causal(keras.Sequential([keras.Input([None, 1]), far]))
    assert not found.is_causal and "far pads on both sides" in found.message
    assert "input t + 1500" in found.message


def attending(initializer, causal):
    """Attention before a head of zeros, or of tiny numbers."""
    inputs = keras.Input([None, 1])
    h = keras.layers.Dense(8)(inputs)
    h = h + keras.layers.MultiHeadAttention(2, 4)(h, h, use_causal_mask=causal)
    return keras.Model(inputs, keras.layers.Dense(2, kernel_initializer=initializer)(h))


class ReZero(keras.layers.Layer):
    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros")

    def call(self, h):
        return self.gate * h


def gated():
    """A convolution that looks ahead behind a gate of zero."""
    inputs = keras.Input([None, 1])
    h = keras.layers.Conv1D(8, 1)(inputs)
    h = h + ReZero()(keras.layers.Conv1D(8, 3, padding="same")(h))
    return keras.Model(inputs, keras.layers.Dense(2)(h))


class Far(keras.layers.Layer):
    def call(self, x):
        time = tf.shape(x)[1]
        index = tf.minimum(tf.range(time) + 40, time - 1)
        shown = tf.cast(tf.range(time) + 40 < time, x.dtype)[None, :, None]
        return x + tf.gather(x, index, axis=1) * shown


class OverRows(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, 0, keepdims=True)


class FirstRow(keras.layers.Layer):
    """Rows read the first row, which itself is what it would be alone."""

    def call(self, x):
        return x + x[:1]


class Middle(keras.layers.Layer):
    """Rows from 100 on read the length."""

    def call(self, x):
        time = tf.shape(x)[1]
        late = tf.cast(tf.range(time) >= 100, x.dtype)[None, :, None]
        return x + late * tf.cast(time, x.dtype)


class OverflowingOverRows(ReZero):
    """Mixes rows, and is infinite unless its weight is close to zero."""

    def call(self, x):
        return OverRows()(x) + tf.exp(tf.exp(1e4 * self.gate**2))


def with_layer(layer):
    return causal_networks.wave_network(keras.layers.Dense(4), layer, keras.layers.Dense(2))


HIDDEN = {
    "zero head": lambda: attending("zeros", False),
    "tiny head": lambda: attending(keras.initializers.RandomNormal(stddev=1e-4), False),
    "gate": gated,
    "far": lambda: with_layer(Far()),
    "rows": lambda: with_layer(OverRows()),
    "rows, not with random weights": lambda: with_layer(OverflowingOverRows()),
    "other rows": lambda: with_layer(FirstRow()),
    "change with the length": lambda: with_layer(Middle()),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_weights_and_lengths_hide_is_found(name):
    network = HIDDEN[name]()
    text = name if isinstance(network.layers[2], FirstRow | Middle) else ""
    with pytest.raises(NotCausalError, match=f"must be causal.*{text}"):
        Autoregressive(network, Gaussian(None))
    assert not check_causal(network)


def test_a_causal_network_with_a_head_of_zeros_is_accepted():
    network = attending("zeros", True)
    found = check_causal(network)
    assert found and found.has_step and found.message == ""
    Autoregressive(network, Gaussian(None))


class Peeking(tf.Module):
    """Looks ahead at symbols above 1 only."""

    def __init__(self):
        super().__init__()
        self.table = causal_networks.variable([8, 8], 3)

    def __call__(self, x):
        h = tf.gather(self.table, x)
        later = tf.cast(x > 1, tf.float32)[..., None] * h
        return h + tf.concat([later[:, 1:], 0.0 * h[:, :1]], 1)


def test_symbols_above_one_are_tried():
    spec = tf.TensorSpec([None, None], tf.int32)
    with pytest.raises(NotCausalError):
        Autoregressive(Peeking(), Categorical(8), codec=Integers(8), inputs=spec)
    assert not check_causal(Peeking(), inputs=spec)


def test_an_unmasked_image_network_with_a_head_of_zeros_is_refused():
    inputs = keras.Input([None, None, 1])
    h = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    network = keras.Model(inputs, keras.layers.Conv2D(16, 1, kernel_initializer="zeros")(h))
    with pytest.raises(NotCausalError, match="must be masked"):
        Autoregressive(network, Categorical(16), order="raster")


def test_a_branch_on_the_length_has_no_step():
    kernel = causal_networks.variable([1, 4], 2)

    def network(x):
        h = x @ kernel
        return h if x.shape[1] is None or x.shape[1] <= 300 else tf.tanh(h) * 0.0 + h

    found = check_causal(network)
    assert found.is_causal and not found.has_step and "1031 time steps" in found.message


def test_a_network_that_training_made_look_ahead_is_refused_after_it():
    class Opened(tf.Module):
        """A frozen gate hides the next input, until it is opened."""

        def __init__(self):
            super().__init__()
            self.gate = tf.Variable(0.0, trainable=False)
            self.kernel = causal_networks.variable([1, 2], 4)

        def __call__(self, x):
            return (x + self.gate * tf.pad(x, [[0, 0], [0, 1], [0, 0]])[:, 1:]) @ self.kernel

    network = Opened()
    model = Autoregressive(network, Gaussian(None))
    network.gate.assign(1.0)
    with pytest.raises(NotCausalError, match=r"input t [+] 1"):
        fit(model, np.zeros([4, 8], np.float32), steps=1, log=lambda *_: None)


@pytest.mark.parametrize(("levels", "is_long"), [(64, True), (20_000, True), (70_000, False)])
def test_a_large_vocabulary_is_compared_on_so_many_steps_that_memory_is_bounded(levels, is_long):
    keras.utils.set_random_seed(0)
    stack = keras.layers.Embedding(levels, 4), keras.layers.Dense(levels)
    network = causal_networks.token_network(*stack)
    symbols = Autoregressive(network, Categorical(levels)).symbol_network
    _, longest = probe_lengths(symbols.call, symbols.tables, free_time_axis([symbols.inputs]))
    assert 2 * longest * levels <= MOST_COMPARED  # of both rows
    assert (longest > 500) == is_long


def test_a_masked_network_over_images_is_causal():
    found = check_causal(one_length_networks.pixel_cnn(10))
    assert found.is_causal and not found.has_step and "images" in found.message


def test_what_lies_farther_ahead_than_calls_reach_is_shown_by_the_graph():
    kernel = causal_networks.variable([2, 1, 2], 5)

    def network(x):
        h = tf.pad(x, [[0, 0], [0, 2000], [0, 0]])
        return tf.nn.convolution(h, kernel, dilations=[2000])

    found = check_causal(network)
    assert not found.is_causal and "input t + 2000" in found.message
    with pytest.raises(NotCausalError, match=r"input t \+ 2000"):
        Autoregressive(network, Gaussian(levels=8)).sample(num=1, length=4, seed=1)
