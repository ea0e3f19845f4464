"""Causal networks of several rates of time are modelled at any length."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from onepass.likelihoods import Gaussian
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.storage import load, save
from onepass.training.fit import fit

layers = keras.layers


def unet(levels=2, blur=""):
    """Strided causal convolutions, and repeats; a row of a lower rate reads its first time."""
    inputs = keras.Input([None, 1])
    h, skips = layers.Conv1D(4, 2, padding="causal")(inputs), []
    for level in range(levels):
        skips.append(h)
        h = layers.Conv1D(4, 3, strides=2, padding="causal", activation="tanh")(h)
        if blur == f"low{level}":
            h = layers.Conv1D(4, 3, padding="same", name="blur")(h)
    for skip in reversed(skips):
        h = layers.Conv1D(4, 2, padding="causal")(layers.UpSampling1D(2)(h) + skip)
    return keras.Model(inputs, layers.Dense(2)(h))


class Tiers(keras.Model):
    """A recurrent tier of frames conditions a convolution of samples, as in SampleRNN."""

    frame = 6

    def __init__(self, delay=1):
        super().__init__()
        self.tier = layers.SimpleRNN(4, return_sequences=True)
        self.repeat, self.local = layers.Dense(6 * 4), layers.Conv1D(4, 3, padding="causal")
        self.delay, self.out = delay, layers.Dense(2)

    def call(self, x):
        frames = tf.shape(x)[1] // self.frame
        h = self.tier(tf.reshape(x, [-1, frames, self.frame]))
        h = tf.pad(h, [[0, 0], [self.delay, 0], [0, 0]])[:, : tf.shape(h)[1]]
        h = tf.reshape(self.repeat(h), [-1, frames * self.frame, 4])
        return self.out(tf.tanh(h + self.local(x)))


class Within(layers.Layer):
    """Repeats the row at one phase of every block of four over the block from a phase on."""

    def __init__(self, reads, begin):
        super().__init__(name="within")
        self.reads, self.begin = reads, begin

    def call(self, x):
        blocks = tf.reshape(x, [-1, tf.shape(x)[1] // 4, 4, x.shape[-1]])
        read = blocks[:, :, self.reads : self.reads + 1]
        shown = tf.cast(tf.range(4) >= self.begin, x.dtype)[:, None]
        return x + tf.reshape(read * shown, tf.shape(x))


def within(reads, begin):
    inputs = keras.Input([None, 1])
    h = Within(reads, begin)(layers.Dense(4)(inputs))
    return keras.Model(inputs, layers.Dense(2)(h))


# Each with its period, and whether its graph shows that no row is read before it is known.
CAUSAL = {
    "u-net": (unet, 4, True),
    "tiers": (Tiers, 6, True),
    "within": (lambda: within(1, 1), 4, False),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_every_method_draws_the_same_at_any_length(name):
    keras.utils.set_random_seed(0)
    make, period, has_step = CAUSAL[name]
    network = make()
    model = Autoregressive(network, Gaussian(levels=16))
    assert model.symbol_network.call.function.period == period
    assert model.symbol_network.has_step == has_step
    length = 2 * period + 1
    drawn = model.sample(num=2, length=length, seed=1)
    np.testing.assert_array_equal(drawn, model.sample(num=2, length=length, seed=1, method="naive"))
    short = model.sample(num=2, length=length - 2, seed=1)
    np.testing.assert_array_equal(drawn[:, :-2], short)
    nats = model.log_prob(drawn)
    np.testing.assert_allclose(nats[:, :-2], model.log_prob(short), atol=1e-5)
    assert nats.shape == (2, length)
    found = check_causal(network)
    assert found.is_causal and found.has_step == has_step
    if has_step:
        chunks = model.stream(num=2, length=length, seed=1, chunk=3)
        np.testing.assert_array_equal(np.concatenate(list(chunks), 1), drawn)
    else:
        with pytest.raises(UnsupportedNetworkError, match="no step can be derived"):
            model.stream(length=length, seed=1)


@pytest.mark.usefixtures("eager")
def test_a_network_of_several_rates_is_trained_and_stored(tmp_path):
    keras.utils.set_random_seed(0)
    model = Autoregressive(unet(1), Gaussian(levels=16))
    rows = np.tile(np.linspace(-1, 1, 7, dtype=np.float32), [4, 1])
    before = float(tf.reduce_mean(model.log_prob(rows)))
    fit(model, rows, steps=5, batch_size=4, log=lambda *_: None)
    assert float(tf.reduce_mean(model.log_prob(rows))) > before
    loaded = load(save(model, tmp_path / "model"))
    drawn = model.sample(num=2, length=7, seed=1)
    np.testing.assert_array_equal(loaded.sample(num=2, length=7, seed=1), drawn)


LEAKS = {
    "a lower rate": (lambda: unet(2, "low1"), "blur"),
    "the highest rate": (lambda: unet(2, "low0"), "blur"),
    "a frame that is not delayed": (lambda: Tiers(0), ""),
    **{
        f"{r} read from {b}": (lambda r=r, b=b: within(r, b), "within")
        for r, b in [(1, 0), (2, 1), (3, 2), (3, 0)]
    },
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_at_any_phase_of_a_period_is_refused(name):
    make, layer = LEAKS[name]
    network = make()
    with pytest.raises(NotCausalError, match=f"depends on input t .*{layer}.* looks ahead"):
        Autoregressive(network, Gaussian(levels=16))
    assert not check_causal(network).is_causal


def test_a_network_that_changes_the_length_is_still_refused():
    inputs = keras.Input([None, 1])
    strided = keras.Model(inputs, layers.Conv1D(2, 2, strides=2, padding="causal")(inputs))
    with pytest.raises(ValueError, match="as long as its input"):
        Autoregressive(strided, Gaussian(levels=16))
