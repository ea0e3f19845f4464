"""Passes end at the sequence of the other samplers, or say that they do not converge."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.foundation.errors import UserError
from onepass.likelihoods import Categorical
from onepass.model import Autoregressive
from onepass.samplers.fixed_point import fixed_point

layers = keras.layers
LEVELS, LENGTH = 8, 20


class Counter:
    """Counts on from symbol to symbol, and at some positions also reads those after."""

    def __init__(self, unsettled, added):
        self.added = added
        self.unsettled = tf.constant([int(t in unsettled) for t in range(LENGTH)])

    def positions(self, symbols):
        return tf.range(tf.shape(symbols)[1])[tf.newaxis]

    def parameters(self, symbols, condition):
        del condition
        before = tf.pad(symbols, [[0, 0], [1, 0]])[:, :-1]
        after = tf.cumsum(symbols, axis=1, exclusive=True, reverse=True)
        symbol = before + 1 + self.unsettled * self.added(after)
        return 1e4 * tf.one_hot(symbol % LEVELS, LEVELS)


def settled(network):
    distribution = Categorical(LEVELS)
    noise = distribution.noise(0, tf.range(2), 0, LENGTH)
    return tf.function(lambda: fixed_point(network, distribution, noise))()


def test_one_symbol_that_later_ones_change_by_rounding_is_final_like_all_others():
    drawn = settled(Counter({6}, lambda after: 1 - after % 2))  # which no symbol satisfies
    symbols = drawn.check_symbols().numpy()
    assert drawn.passes <= LENGTH + 1
    steps = np.diff(symbols, prepend=0) % LEVELS
    assert (np.delete(steps, 6, 1) == 1).all()


def test_passes_that_do_not_converge_say_how_many_symbols_still_change():
    drawn = settled(Counter(set(range(LENGTH)), lambda after: after * after // 3))
    line = rf"after {drawn.passes} passes, {drawn.moved} of 40 elements still change.*\"naive\""
    with pytest.raises(onepass.UnsupportedNetworkError, match=line):
        drawn.check_symbols()


class Filter(layers.Layer):
    """A convolution by FFT, whose rounding errors are those of the largest input."""

    def compute_output_shape(self, shape):
        return shape

    def call(self, h):
        length = tf.shape(h)[1]
        kernel = tf.exp(-0.1 * tf.cast(tf.range(length), tf.float32))
        spectrum = tf.signal.rfft(tf.transpose(h, [0, 2, 1]), [2 * length])
        spectrum *= tf.signal.rfft(kernel, [2 * length])
        convolved = tf.signal.irfft(spectrum, [2 * length])[..., :length]
        return tf.sin(tf.transpose(convolved, [0, 2, 1]))


def test_a_network_that_does_not_converge_is_neither_sampled_nor_exported_without_a_word(tmp_path):
    keras.utils.set_random_seed(1)
    tokens, embedding = keras.Input([None], dtype="int32"), layers.Embedding(LEVELS, 8)
    outputs = 5 * layers.Dense(LEVELS)(Filter()(embedding(tokens)))
    model = Autoregressive(keras.Model(tokens, outputs), Categorical(LEVELS))
    np.testing.assert_array_equal(
        model.sample(2, LENGTH, 1), model.sample(2, LENGTH, 1, method="naive")
    )
    embedding.embeddings.assign(1e8 * embedding.embeddings)
    line = r"does not converge: after \d+ passes, \d+ of 40 elements still change"
    for method in ("auto", "fixed-point"):
        with pytest.raises(onepass.UnsupportedNetworkError, match=line):
            model.sample(2, LENGTH, 1, method=method)
    assert model.sample(2, LENGTH, 1, method="naive").shape == (2, LENGTH)
    with pytest.raises(UserError, match=r"cannot be exported: .*does not converge: after"):
        onepass.export(model, tmp_path / "own" / "1", length=LENGTH)
