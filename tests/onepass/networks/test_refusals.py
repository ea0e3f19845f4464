"""A network that cannot be used is refused in one line, by the name of the layer at fault."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import wave_network

from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental

layers = keras.layers
NAMED = {"name": "culprit"}


class Normalised(layers.Layer):
    def call(self, x):
        return x * tf.math.rsqrt(tf.reduce_mean(x * x, 1, keepdims=True) + 1e-3)


def over_time(h):
    inner = layers.Conv1D(4, 3, padding="same", **NAMED)(h)
    rows = layers.Reshape((-1, 4, 1))(inner)
    return layers.Reshape((-1, 8))(
        layers.ConvLSTM1D(2, 3, padding="same", return_sequences=True)(rows)
    )


def nested():
    return keras.Sequential(
        [keras.Input([None, 4]), layers.Conv1D(4, 3, padding="same", **NAMED)], name="inner"
    )


LOOKING_AHEAD = {
    "bidirectional": lambda: layers.Bidirectional(layers.GRU(2, return_sequences=True), **NAMED),
    "backwards": lambda: layers.GRU(4, return_sequences=True, go_backwards=True, **NAMED),
    "same padding": lambda: layers.Conv1D(4, 3, padding="same", **NAMED),
    "separable": lambda: layers.SeparableConv1D(4, 3, padding="same", **NAMED),
    "depthwise": lambda: layers.DepthwiseConv1D(3, padding="same", **NAMED),
    "transposed": lambda: lambda h: layers.Conv1DTranspose(4, 2, **NAMED)(h)[:, 1:],
    "multi-head attention": lambda: lambda h: layers.MultiHeadAttention(2, 4, **NAMED)(h, h),
    "attention": lambda: lambda h: layers.Attention(**NAMED)([h, h]),
    "additive attention": lambda: lambda h: layers.AdditiveAttention(**NAMED)([h, h]),
    "average pooling": lambda: layers.AveragePooling1D(2, strides=1, padding="same", **NAMED),
    "largest": lambda: layers.MaxPooling1D(3, strides=1, padding="same", **NAMED),
    "mean": lambda: lambda h: h + layers.GlobalAveragePooling1D(keepdims=True, **NAMED)(h),
    "maximum": lambda: lambda h: h + layers.GlobalMaxPooling1D(keepdims=True, **NAMED)(h),
    "reversed": lambda: layers.Lambda(lambda x: tf.reverse(x, [1]), **NAMED),
    "rolled": lambda: layers.Lambda(lambda x: tf.roll(x, -1, 1), **NAMED),
    "softmax": lambda: layers.Softmax(axis=1, **NAMED),
    "group normalisation": lambda: layers.GroupNormalization(2, **NAMED),
    "unit normalisation": lambda: layers.UnitNormalization(axis=1, **NAMED),
    "own normalisation": lambda: Normalised(**NAMED),
    "recurrent convolution": lambda: over_time,
    "nested": nested,
}


def with_layer(layer):
    front = layers.Conv1D(4, 2, padding="causal", name="front")
    return wave_network(front, layer, layers.Dense(2, name="out"))


@pytest.mark.parametrize("name", LOOKING_AHEAD)
def test_a_refusal_names_the_layer_and_proposes_no_rule(name):
    network = with_layer(LOOKING_AHEAD[name]())
    with pytest.raises(NotCausalError, match=r"must be causal: .* layer `.*culprit") as refused:
        Autoregressive(network, Gaussian(None))
    found = check_causal(network)
    assert not found.is_causal and "culprit" in found.message
    assert "`rule`" not in f"{found.message} {refused.value}"


def normalised_within():
    rows = keras.Input([None, 4])
    return keras.Model(rows, layers.BatchNormalization(**NAMED)(rows, training=True))


IN_TRAINING = {
    "dropout": lambda: lambda h: layers.Dropout(0.5, **NAMED)(h, training=True),
    "noise": lambda: lambda h: layers.GaussianNoise(0.5, **NAMED)(h, training=True),
    "normalisation within a model": normalised_within,
}


@pytest.mark.parametrize("name", IN_TRAINING)
def test_a_layer_called_in_training_is_refused_by_name(name):
    network = with_layer(IN_TRAINING[name]())
    with pytest.raises(NotCausalError, match="its layer `culprit` with training=True"):
        Autoregressive(network, Gaussian(None))
    found = check_causal(network)
    assert not found.is_causal and "culprit" in found.message


# What `incremental` says of some of them.
WITHOUT_STEP = {
    "same padding": "culprit pads on both sides: output t depends on input t [+] 1",
    "average pooling": "culprit",
    "bidirectional": "culprit|backward",
    "mean": "culprit reads all of the sequence at once",
    "group normalisation": "culprit reads all of the sequence at once",
    "dropout": "culprit",
    "normalisation within a model": "culprit",
}


@pytest.mark.parametrize("name", WITHOUT_STEP)
def test_a_network_without_a_step_is_refused_by_the_name_of_its_layer(name):
    network = with_layer((LOOKING_AHEAD | IN_TRAINING)[name]())
    with pytest.raises((NotCausalError, UnsupportedNetworkError), match=WITHOUT_STEP[name]):
        incremental(network)


class Dropping(keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.out = layers.Dropout(0.5, name="drop"), layers.Dense(2)

    def call(self, inputs):
        return self.out(self.drop(inputs, training=True))


def test_random_numbers_of_a_networks_own_are_refused():
    with pytest.raises(NotCausalError, match="random numbers of its own"):
        Autoregressive(Dropping(), Gaussian(None))
    with pytest.raises(NotCausalError, match="drop draws random numbers of its own"):
        incremental(Dropping())


def test_dropout_that_the_caller_controls_is_accepted():
    assert check_causal(with_layer(layers.Dropout(0.5))).has_step


def test_an_operation_outside_of_layers_is_named_by_its_scope():
    def network(x):
        with tf.name_scope("backwards"):
            return tf.reverse(tf.concat([x, x], -1), [1])

    with pytest.raises(NotCausalError, match="its operation `backwards/ReverseV2` looks ahead"):
        Autoregressive(network, Gaussian(None))


def test_an_image_network_that_looks_ahead_is_refused_by_the_name_of_its_layer():
    images = keras.Input([None, None, 1])
    h = layers.ZeroPadding2D(((1, 0), (0, 0)))(images)[:, :-1]
    h = layers.Conv2D(4, 3, padding="same", **NAMED)(h)
    network = keras.Model(images, layers.Conv2D(2, 1)(h))
    with pytest.raises(NotCausalError, match=r"must be masked: .* its layer `culprit` looks ahead"):
        Autoregressive(network, Gaussian(None), order="raster")


WAVES = keras.Input([None, 1])


class Subclassed(keras.Model):
    """A language model that says nothing of its input before its first call."""

    def __init__(self):
        super().__init__()
        causal = layers.Conv1D(4, 2, padding="causal")
        self.parts = [layers.Embedding(8, 4), causal, layers.Dense(8)]

    def call(self, tokens):
        for part in self.parts:
            tokens = part(tokens)
        return tokens


def lambda_of(function, shape):
    return keras.Model(WAVES, layers.Lambda(function, output_shape=shape)(WAVES))


def stateful(rows):
    recurrent = layers.GRU(4, stateful=True, return_sequences=True, name="memory")
    return keras.Sequential([keras.Input([None, 1], batch_size=rows), recurrent, layers.Dense(2)])


def calling(network):
    return lambda inputs: network(inputs)


STATEFUL = "its layer `memory` is stateful; build it with stateful=False"
REFUSED = {
    "no channels": (lambda: lambda_of(lambda x: x[..., 0], (None,)), r"returns \(1, 4\)"),
    "two axes": (lambda: lambda_of(lambda x: x[..., None], (None, 1, 1)), r"\(1, 4, 1, 1\)"),
    "short": (
        lambda: keras.Model(WAVES, layers.Conv1D(2, 2)(WAVES)),
        r"as long as its input; for \[1, 4\] it returns \(1, 3, 2\)",
    ),
    "last": (lambda: keras.Model(WAVES, layers.GRU(2)(WAVES)), r"returns \(1, 2\)"),
    "list": (lambda: lambda x: [x, x], "returns list"),
    "nothing": (lambda: lambda x: None, "returns NoneType"),
    "another dtype": (
        lambda: lambda x: tf.concat([x, x], -1) * tf.constant(1.0, tf.float64),
        r"cannot be called on float32 \[any, any, 1\]: .*float.*double",
    ),
    "tokens": (Subclassed, r"cannot be called on float32 \[any, any, 1\]: .*Kernel shape"),
    "stateful": (lambda: stateful(1), STATEFUL),
    "stateful, two rows": (lambda: stateful(2), STATEFUL),
    "stateful in a function": (lambda: calling(stateful(1)), STATEFUL),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_network_of_another_shape_is_refused_in_one_line_and_not_causal(kind):
    make, text = REFUSED[kind]
    with pytest.raises(ValueError, match=text) as caught:
        Autoregressive(make(), Gaussian(8))
    found = check_causal(make())
    assert not found and not found.has_step and found.message
    for line in (str(caught.value), found.message):
        assert "\n" not in line and "\x1b" not in line


def test_a_subclassed_model_is_taken_with_its_inputs():
    inputs = tf.TensorSpec([None, None], tf.int32)
    model = Autoregressive(Subclassed(), Categorical(8), codec=Integers(8), inputs=inputs)
    assert model.sample(1, 5, 0).shape == (1, 5)
    assert check_causal(Subclassed(), inputs=inputs)


def test_images_of_integers_are_fed_their_levels():
    seen = layers.Embedding(16, 2)
    images = keras.Input([None, None, 1], dtype="int32")
    h = seen(images)[:, :, :, 0]
    h = layers.ZeroPadding2D([[0, 0], [1, 0]])(h)[:, :, :-1]
    model = Autoregressive(keras.Model(images, h), Gaussian(16), order="raster")
    first, second = (np.full([1, 3, 3, 1], level, np.int32) for level in (7, 8))
    assert not np.allclose(model.conditionals(first), model.conditionals(second))
    assert model.feeds == "The network reads symbols 0 to 15, unshifted"
