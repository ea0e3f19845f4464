"""Passes until nothing changes end at what every other method draws, or say that they do not."""

import keras
import numpy as np
import one_length_networks as networks
import pytest
import tensorflow as tf
from one_length_networks import LEVELS

import onepass
from onepass.foundation.rules import UserError
from onepass.likelihoods import Categorical
from onepass.model import Autoregressive
from onepass.networks.causality import MOST, rows_above
from onepass.networks.symbols import RasterOrder
from onepass.samplers.fixed_point import ACTIVE, FEW, by_windows, fixed_point, settings_of

layers = keras.layers
SHAPE = (30, 4, 1)


@pytest.fixture(scope="module")
def model():
    """A model whose pixels depend strongly on those before."""
    keras.utils.set_random_seed(2)
    network = networks.pixel_cnn(None)
    for variable in network.trainable_variables:
        variable.assign(4.0 * variable)
    return Autoregressive(network, Categorical(LEVELS), order="raster")


@pytest.fixture(scope="module")
def naive(model):
    return model.sample(3, SHAPE, 1, method="naive")


def test_windows_change_no_pixel(model, naive, tmp_path):
    assert model.symbol_network.rows_above == 3  # of 5 x 5 taps, then of 3 x 3
    assert settings_of(model.symbol_network, SHAPE[0]) == {"active_rows": ACTIVE, "few": FEW}
    assert settings_of(model.symbol_network, ACTIVE) == {}
    np.testing.assert_array_equal(model.sample(2, SHAPE, 1), naive[:2])
    stored = onepass.load(onepass.save(model, tmp_path / "stored"))
    assert stored.symbol_network.rows_above == 3


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_window_of_too_few_rows_changes_no_pixel(rows, model, naive, monkeypatch):
    monkeypatch.setattr(RasterOrder, "rows_above", rows)
    fresh = Autoregressive.of_symbols(
        model.symbol_network, model.distribution, model.codec, "raster"
    )  # which has compiled nothing
    np.testing.assert_array_equal(fresh.sample(1, SHAPE, 1, method="fixed-point"), naive[:1])


@pytest.mark.parametrize("slots", [None, 1])
def test_windows_of_enough_rows_leave_no_pixel_to_settle(slots, model, naive):
    """Only passes over windows are made, none over whole images."""
    noise = model.layout.noise(model.distribution, 1, 3, SHAPE)
    given = model.symbol_network, model.distribution, noise
    draw = tf.function(lambda: by_windows(*given, active_rows=ACTIVE, slots=slots))
    found = draw()
    np.testing.assert_array_equal(found.levels, naive)
    assert len(set(found.passes.numpy())) > 1 or slots is None
    total = found.passes.numpy().sum() if slots else found.passes.numpy().max()
    assert found.batch_passes == total


def below(values, rows):
    return tf.pad(values, [[0, 0], [rows, 0], [0, 0], [0, 0]])[:, : tf.shape(values)[1]]


FIELDS = {
    "one row above": (lambda x: below(x, 1), 1),
    "far": (lambda x: below(x, MOST), MOST),
    "further": (lambda x: below(x, MOST + 1), None),
    "all rows above": (lambda x: below(tf.cumsum(x, 1), 1), None),
    "its own row": (lambda x: 0.0 * x + tf.range(4.0)[:, None], 0),
    "the place of a row": (
        lambda x: below(x, 1) + tf.cast(tf.range(tf.shape(x)[1]), x.dtype)[:, None, None],
        None,
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_rows_above_are_found_by_evaluation(name):
    call, rows = FIELDS[name]
    assert rows_above(call, tf.TensorSpec([None, None, None, 1])) == rows
    assert rows_above(call, tf.TensorSpec([None, 28, 28, 1])) is None


LENGTH = 20


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
