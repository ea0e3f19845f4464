"""Images drawn in windows of rows are those of every other method."""

import keras
import numpy as np
import one_length_networks as networks
import pytest
import tensorflow as tf
from one_length_networks import LEVELS

import onepass
from onepass.likelihoods import Categorical
from onepass.model import Autoregressive
from onepass.networks.causality import MOST, rows_above
from onepass.networks.symbols import RasterOrder
from onepass.samplers.fixed_point import ACTIVE, FEW, by_windows, settings_of

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
