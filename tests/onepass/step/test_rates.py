"""Networks of several rates of time have a step: strides, frames and repeats, at any phase."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import steps, u_net
from runs import eagerly

from onepass.likelihoods import Gaussian
from onepass.machine.machine import machine_of_step
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental
from onepass.training.fit import fit

layers = keras.layers
LENGTH = 24  # time steps, whole periods of every network


class Calls(keras.layers.Layer):
    """A function of the sequence as a layer, which may have layers of its own."""

    def __init__(self, function, *inner):
        super().__init__()
        self.function, self.inner = function, inner

    def call(self, x):
        return self.function(x, *self.inner)


def network(function, *inner, channels=3):
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(channels, 2, padding="causal")(inputs)
    return keras.Model(inputs, layers.Dense(2)(Calls(function, *inner)(h) + h))


def repeat(x, count):
    return tf.repeat(x, count, 1)


def delay(x, rows=1):
    return tf.pad(x, [[0, 0], [rows, 0], [0, 0]])[:, : tf.shape(x)[1]]


def frames(x, size):
    return tf.reshape(x, [-1, tf.shape(x)[1] // size, size * x.shape[2]])


def samples(x, count):
    return tf.reshape(x, [-1, tf.shape(x)[1] * count, x.shape[2] // count])


def conv(width, stride=1, padding="causal", **options):
    return layers.Conv1D(3, width, strides=stride, padding=padding, **options)


def levels(x, down, middle, up):
    low = down(x)
    return repeat(up(repeat(middle(down(low)), 2)) + low, 2)


CAUSAL = {
    "every second row": lambda: network(lambda x: repeat(x[:, ::2], 2)),
    "every third row, from the last": lambda: network(lambda x: repeat(delay(x[:, 2::3]), 3)),
    "the second of four rows, kept": lambda: network(
        lambda x: delay(repeat(x[:, 1::4], 4), rows=1)
    ),
    "a stride of three": lambda: network(lambda x, f, g: repeat(g(f(x)), 3), conv(3, 3), conv(3)),
    "two levels": lambda: network(levels, conv(3, 2), conv(3), conv(2)),
    "a dilated lower rate": lambda: network(
        lambda x, f, g: repeat(g(f(x)), 2), conv(2, 2), conv(2, dilation_rate=3)
    ),
    "a depthwise lower rate": lambda: network(
        lambda x, f, g: repeat(g(f(x)), 4),
        conv(4, 4),
        layers.DepthwiseConv1D(1, padding="same"),
    ),
    "whole frames, delayed": lambda: network(
        lambda x, f: delay(repeat(f(x), 4), 3), conv(4, 4, "valid")
    ),
    "frames to samples": lambda: network(
        lambda x, f: samples(delay(f(frames(x, 6))), 6), layers.Dense(18)
    ),
    "a recurrent tier": lambda: network(
        lambda x, f, g: samples(g(delay(f(frames(x, 4)))), 4),
        layers.GRU(5, return_sequences=True),
        layers.Dense(12),
    ),
    "tiers of tiers": lambda: network(
        lambda x, f, g, h: samples(
            h(samples(g(delay(f(frames(frames(x, 2), 4)))), 4) + delay(frames(x, 2))), 2
        ),
        layers.SimpleRNN(4, return_sequences=True),
        layers.Dense(24),
        layers.Dense(6),
    ),
    "rates of two and of three": lambda: network(
        lambda x, f, g: repeat(f(x), 2) + repeat(g(x), 3), conv(2, 2), conv(3, 3)
    ),
    "phases that differ at one rate": lambda: network(
        lambda x, f, g: delay(repeat(f(x) + g(x[:, 1:]), 2), 1),
        conv(2, 2),
        conv(1, 2, "valid"),
    ),
    "a running sum of frames": lambda: network(lambda x: repeat(tf.cumsum(x[:, ::4], 1), 4)),
    "means and maxima": lambda: network(
        lambda x, f, g: delay(repeat(f(x) + delay(g(x)), 4), 3),
        layers.AveragePooling1D(4),
        layers.MaxPooling1D(4, padding="same"),
    ),
    "a moving mean": lambda: network(
        lambda x, f: f(tf.pad(x, [[0, 0], [2, 0], [0, 0]])), layers.AveragePooling1D(3, 1)
    ),
    "a transposed convolution": lambda: network(
        lambda x, f, g: g(f(x)), conv(4, 4), layers.Conv1DTranspose(3, 4, 4)
    ),
    "one whose kernel is longer": lambda: network(
        lambda x, f, g: g(f(x))[:, : tf.shape(x)[1] // 2 * 2],
        conv(2, 2),
        layers.Conv1DTranspose(3, 5, 2),
    ),
    "one that cuts its first rows": lambda: network(
        lambda x, f, g: delay(g(f(x)), 2), conv(3, 3), layers.Conv1DTranspose(3, 7, 3, "same")
    ),
    "one at the rate of the inputs": lambda: network(
        lambda x, f: f(x)[:, : tf.shape(x)[1]], layers.Conv1DTranspose(3, 3)
    ),
    "one between two levels": lambda: network(
        lambda x, f, g, h: repeat(h(g(f(x))), 2),
        conv(2, 2),
        conv(3, 3),
        layers.Conv1DTranspose(3, 3, 3),
    ),
    "frames cut again": lambda: network(
        lambda x: samples(samples(delay(frames(frames(x, 2), 2)), 2), 2)
    ),
}


def advance(machine, workspaces, x):
    """Return the outputs [rows, time, channels] of the step machine for inputs of that shape."""
    (made,) = machine.run(workspaces, x[:, :, np.newaxis, np.newaxis])
    return made.reshape([*x.shape[:2], -1])


@pytest.mark.parametrize("name", CAUSAL)
def test_parts_of_any_length_give_the_whole_also_those_of_the_step_machine(name):
    keras.utils.set_random_seed(0)
    net = CAUSAL[name]()
    with eagerly():  # which takes less time than tracing parts of every length
        stepped = incremental(net)
    x = np.random.default_rng(0).normal(size=[3, LENGTH, 1]).astype(np.float32)
    expected = net(x).numpy()
    sizes = (1, 10, *[1] * 13)  # a part from within a period, and every phase
    outputs, _ = steps(stepped, stepped.initial_state(3), [x], sizes)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    machine, first = machine_of_step(stepped, stepped.specs)
    rows = machine.begin(3, [], first)
    outputs, starts = [[], [], []], [0, 0, 0]
    # Rows advance by themselves at first, then together from different positions.
    for row, sizes in enumerate(([1], [1, 4], [])):
        for size in sizes:
            part = slice(starts[row], starts[row] + size)
            outputs[row].append(advance(machine, rows[row : row + 1], x[row : row + 1, part])[0])
            starts[row] += size
    for size in (1, 1, 2, 3, LENGTH - 12):
        part = [each[start : start + size] for each, start in zip(x, starts, strict=True)]
        for row, made in enumerate(advance(machine, rows, np.stack(part))):
            outputs[row].append(made)
            starts[row] += size
    for row, made in enumerate(outputs):
        found = np.concatenate(made)
        np.testing.assert_allclose(found, expected[row, : len(found)], rtol=1e-5, atol=1e-6)
        alone = advance(machine, machine.begin(1, [], first), x[row : row + 1, : len(found)])
        np.testing.assert_array_equal(alone[0], found)


def test_a_step_keeps_and_computes_rows_of_a_lower_rate_once_a_period():
    keras.utils.set_random_seed(0)
    program = incremental(CAUSAL["two levels"]()).program(1)
    assert program.period == 4
    counts = [sum(each == n for each in program.which) for n in sorted(set(program.which))]
    assert sorted(counts) == [1, 1, 2]  # all rates, two, and the highest alone
    state = program.initial_state()
    assert max(x.shape[0] for name, x in state.items() if name != "position") == 3


def cut(x, low, function):
    return function(low)[:, : tf.shape(x)[1]]


ANY_LENGTH = {
    "cut to the length": lambda: network(
        lambda x, f, g: cut(x, f(x), g), conv(3, 2), layers.Conv1DTranspose(3, 2, 2)
    ),
    "every second row, held for two": lambda: network(
        lambda x: cut(x, delay(x)[:, ::2], lambda low: repeat(low, 2))
    ),
    "cut, of three": lambda: network(
        lambda x, f: cut(x, f(x), lambda low: repeat(low, 3)), conv(3, 3)
    ),
    "filled up to whole frames": lambda: network(
        lambda x, f: cut(
            x,
            frames(tf.pad(x, [[0, 0], [0, -tf.shape(x)[1] % 4], [0, 0]]), 4),
            lambda low: samples(f(delay(low)), 4),
        ),
        layers.Dense(12),
    ),
}


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_a_network_of_several_rates_may_take_any_length(name):
    keras.utils.set_random_seed(0)
    net = ANY_LENGTH[name]()
    with eagerly():
        stepped = incremental(net)
    machine, first = machine_of_step(stepped, stepped.specs)
    x = tf.constant(np.random.default_rng(0).normal(size=[1, 31, 1]), tf.float32)
    found = advance(machine, machine.begin(1, [], first), x.numpy())
    np.testing.assert_allclose(found, net(x), rtol=1e-5, atol=1e-6)
    outputs, _ = steps(stepped, stepped.initial_state(1), [x], [1] * 31)
    np.testing.assert_allclose(outputs, net(x), rtol=1e-5, atol=1e-6)


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


LEAKS = {
    "the last row of a pair": (lambda: network(lambda x: repeat(x[:, 1::2], 2)), ""),
    "whole frames": (lambda: network(lambda x, f: repeat(f(x), 4), conv(4, 4, "valid")), ""),
    "frames to samples": (
        lambda: network(lambda x: samples(frames(x, 4), 4) * repeat(x[:, 3::4], 4)),
        "",
    ),
    "frames delayed by too little": (
        lambda: network(lambda x, f: delay(repeat(f(x), 4), 2), conv(4, 4, "valid")),
        "",
    ),
    "a lower rate": (lambda: u_net(2, "low1"), "blur.* looks ahead"),
    "the highest rate": (lambda: u_net(2, "low0"), "blur.* looks ahead"),
    "a frame that is not delayed": (lambda: Tiers(0), " looks ahead"),
    **{
        f"{r} read from {b}": (lambda r=r, b=b: within(r, b), "within.* looks ahead")
        for r, b in [(1, 0), (2, 1), (3, 2), (3, 0)]
    },
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_look_ahead_through_a_lower_rate_is_refused(name):
    keras.utils.set_random_seed(0)
    make, text = LEAKS[name]
    network = make()
    with pytest.raises(NotCausalError, match=f"depends on input t .*{text}"):
        Autoregressive(network, Gaussian(levels=8))
    assert not check_causal(network).is_causal


def attention(x):
    low = x[:, ::2]
    scores = tf.matmul(low, low, transpose_b=True)
    return repeat(tf.matmul(tf.nn.softmax(tf.linalg.band_part(scores, -1, 0) - 9.0), low), 2)


WITHOUT = {
    "attention at a lower rate": (lambda: network(attention), "lower rate of time"),
    "the rows of a frame in one product": (
        lambda: network(lambda x: samples(frames(x, 4), 4)),
        "no such dependence",
    ),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_step_says_why(name):
    make, reason = WITHOUT[name]
    with pytest.raises((UnsupportedNetworkError, NotCausalError), match=reason):
        incremental(make())


# Each with its period, and whether its graph shows that no row is read before it is known.
MODELLED = {
    "u-net": (u_net, 4, True),
    "tiers": (Tiers, 6, True),
    "within": (lambda: within(1, 1), 4, False),
}


@pytest.mark.parametrize("name", MODELLED)
def test_every_method_draws_the_same_at_any_length(name):
    keras.utils.set_random_seed(0)
    make, period, has_step = MODELLED[name]
    network = make()
    model = Autoregressive(network, Gaussian(levels=16))
    assert model.symbol_network.call.function.period == period
    assert model.symbol_network.has_step == has_step
    length = 2 * period + 1
    drawn = model.sample(num=2, length=length, seed=1)
    np.testing.assert_array_equal(drawn, model.sample(num=2, length=length, seed=1, method="naive"))
    short = model.sample(num=2, length=length - 2, seed=1)
    np.testing.assert_array_equal(drawn[:, :-2], short)
    np.testing.assert_allclose(model.log_prob(drawn)[:, :-2], model.log_prob(short), atol=1e-5)
    found = check_causal(network)
    assert found.is_causal and found.has_step == has_step
    if not has_step:
        with pytest.raises(UnsupportedNetworkError, match="no step can be derived"):
            model.stream(length=length, seed=1)


@pytest.mark.usefixtures("eager")
def test_a_network_of_several_rates_is_trained():
    keras.utils.set_random_seed(0)
    model = Autoregressive(u_net(1), Gaussian(levels=16))
    rows = np.tile(np.linspace(-1, 1, 7, dtype=np.float32), [4, 1])
    before = float(tf.reduce_mean(model.log_prob(rows)))
    fit(model, rows, steps=5, batch_size=4, log=lambda *_: None)
    assert float(tf.reduce_mean(model.log_prob(rows))) > before


def test_a_network_that_changes_the_length_is_still_refused():
    inputs = keras.Input([None, 1])
    strided = keras.Model(inputs, layers.Conv1D(2, 2, strides=2, padding="causal")(inputs))
    with pytest.raises(ValueError, match="as long as its input"):
        Autoregressive(strided, Gaussian(levels=16))
