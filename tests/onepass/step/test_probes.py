"""Rounding and the size of the outputs neither hide a look-ahead nor feign one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from onepass.likelihoods import Categorical, Gaussian, MuLaw
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.step import NotCausalError
from onepass.step.verification import SINGLE, WideCalls

layers = keras.layers
LEVELS = 256


@pytest.fixture
def policy():
    yield keras.mixed_precision.set_global_policy
    keras.mixed_precision.set_global_policy("float32")


def recurrent(kind):
    """Dilated convolutions before a recurrent layer or attention, with a head in float32."""
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(16, 2, padding="causal")(inputs)
    for dilation in (1, 2, 4):
        h = h + layers.Conv1D(16, 2, padding="causal", dilation_rate=dilation, activation="relu")(h)
    if kind == "attention":
        h = h + layers.MultiHeadAttention(2, 8)(h, h, use_causal_mask=True)
    else:
        h = getattr(layers, kind)(16, return_sequences=True)(h)
    return keras.Model(inputs, layers.Dense(LEVELS, dtype="float32")(h))


MIXED = [
    ("mixed_bfloat16", "GRU"),
    ("mixed_bfloat16", "LSTM"),
    ("mixed_bfloat16", "attention"),
    ("mixed_float16", "attention"),
]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
@pytest.mark.parametrize(("types", "kind"), MIXED)
def test_rounding_of_16_bits_is_no_leak(policy, types, kind, seed):
    keras.utils.set_random_seed(seed)
    policy(types)
    network = recurrent(kind)
    policy("float32")
    Autoregressive(network, Categorical(LEVELS), codec=MuLaw(LEVELS))


class Ahead(layers.Layer):
    """Adds a small part of the next row, which no weight scales."""

    def call(self, x):
        return x + 1e-3 * tf.pad(x, [[0, 0], [0, 1], [0, 0]])[:, 1:]


class OverRows(layers.Layer):
    def call(self, x):
        return x - 1e-2 * tf.reduce_mean(x, 0, keepdims=True)


class Normalised(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.normalise = layers.BatchNormalization()

    def call(self, x):
        return self.normalise(x, training=True)


def leaking(layer, types):
    """A convolution, a layer that is not causal, and a head in float32."""
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(8, 2, padding="causal", dtype=types)(inputs)
    h = layer(name="culprit", dtype=types)(h)
    return keras.Model(inputs, layers.Dense(2, dtype="float32")(h))


@pytest.mark.parametrize("types", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (Ahead, r"output t depends on input t \+ 1; its layer `culprit` looks ahead"),
        (OverRows, "other rows of the batch; its layer `culprit` mixes the rows"),
        (Normalised, r"input t \+ \d+; its layer `culprit.*` looks ahead"),
    ],
)
def test_a_small_leak_in_16_bits_is_found_and_named(types, layer, text):
    with pytest.raises(NotCausalError, match=text):
        Autoregressive(leaking(layer, types), Gaussian(None))


def scaled(scale, ahead):
    """Outputs of a given size, which no weight changes, and perhaps the next input in them."""
    kernel = tf.constant([[1.0, -0.5]])

    def network(x):
        h = tf.cumsum(x, 1) @ kernel
        later = tf.pad(h, [[0, 0], [0, 1], [0, 0]])[:, 1:]
        return scale * (h + ahead * later)

    return network


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1.0, 1e4, 1e9])
def test_the_size_of_the_outputs_makes_no_difference(scale):
    assert check_causal(scaled(scale, 0.0)).is_causal
    found = check_causal(scaled(scale, 1e-4))
    assert not found.is_causal and "input t + 1" in found.message


def chaotic(x):
    """Every step doubles a difference of the states."""

    def step(state, row):
        return 1.0 - 2.0 * tf.square(tf.clip_by_value(state + 1e-3 * row, -1.0, 1.0))

    rows = tf.transpose(x, [1, 0, 2])
    return tf.transpose(tf.scan(step, rows, 0.3 * tf.ones_like(rows[0])), [1, 0, 2])


def multiplied(x):
    """The sum over channels is rounded in another order in another batch."""
    wide = tf.constant(np.random.default_rng(0).normal(size=[257, 257]) / 16, tf.float32)
    return chaotic(tf.tanh((x * tf.ones([257])) @ wide @ wide))[..., :2]


def test_rounding_that_a_network_amplifies_is_no_leak():
    assert check_causal(multiplied).is_causal


def forbidding(value, ahead=0.0):
    """Forbids half of the symbols by a constant, depending on the input."""

    def network(x):
        h = x * tf.range(1.0, 5.0)
        h = h + ahead * tf.pad(h, [[0, 0], [0, 1], [0, 0]])[:, 1:]
        return tf.where(h > 0.0, h, value)

    return network


@pytest.mark.parametrize("value", [-np.inf, np.nan, -1e9, np.inf])
def test_equal_infinities_are_equal_and_hide_nothing(value):
    assert check_causal(forbidding(value)).is_causal
    assert not check_causal(forbidding(value, 1e-3)).is_causal


# Keras itself converts its variables so.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_int8_layers_are_computed_as_they_round():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(8, 2, padding="causal")(inputs)
    network = keras.Model(inputs, layers.Dense(4)(layers.Dense(16, activation="relu")(h)))
    for layer in network.layers[2:]:
        layer.quantize("int8")
    assert check_causal(network).is_causal


def test_what_an_operation_cannot_compute_in_float64_is_computed_in_float32():
    def network(x):
        return tf.quantization.fake_quant_with_min_max_args(x, -2.0, 2.0)

    wide = WideCalls(network)
    x = tf.constant([[[0.3], [1.7]]])
    np.testing.assert_array_equal(wide([x]), network(x))
    assert wide.precision is SINGLE
    assert check_causal(network).is_causal


def test_probes_leave_the_network_as_it_is():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([None, 1])
    norm = layers.BatchNormalization()
    network = keras.Model(inputs, layers.Dense(2)(norm(layers.Dense(4)(inputs))))
    before = [value.copy() for value in network.get_weights()]
    check_causal(network)
    for value, now in zip(before, network.get_weights(), strict=True):
        np.testing.assert_array_equal(value, now)
