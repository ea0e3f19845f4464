"""What refuses a network names the layer that looks ahead, and proposes no rule for it."""

import keras
import pytest
import tensorflow as tf

from onepass.likelihoods import Gaussian
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.step import NotCausalError

layers = keras.layers
NAMED = {"name": "culprit"}


class Normalised(layers.Layer):
    """A root mean square over all times."""

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
    inputs = keras.Input([None, 1])
    h = layer(layers.Conv1D(4, 2, padding="causal", name="front")(inputs))
    return keras.Model(inputs, layers.Dense(2, name="out")(h))


@pytest.mark.parametrize("name", LOOKING_AHEAD)
def test_a_refusal_names_the_layer_and_proposes_no_rule(name):
    network = with_layer(LOOKING_AHEAD[name]())
    with pytest.raises(NotCausalError, match=r"must be causal: .* layer `.*culprit") as refused:
        Autoregressive(network, Gaussian(None))
    found = check_causal(network)
    assert not found.is_causal and "culprit" in found.message
    assert "`rule`" not in f"{found.message} {refused.value}"


@pytest.mark.parametrize(
    "layer", [layers.Dropout(0.5, **NAMED), layers.GaussianNoise(0.5, **NAMED)], ids=repr
)
def test_a_layer_called_in_training_is_refused_by_name(layer):
    network = with_layer(lambda h: layer(h, training=True))
    with pytest.raises(NotCausalError, match="its layer `culprit` with training=True"):
        Autoregressive(network, Gaussian(None))
    found = check_causal(network)
    assert not found.is_causal and "culprit" in found.message


def test_batch_statistics_in_training_are_refused_within_a_nested_model():
    rows = keras.Input([None, 4])
    inner = keras.Model(rows, layers.BatchNormalization(**NAMED)(rows, training=True))
    with pytest.raises(NotCausalError, match="its layer `culprit` with training=True"):
        Autoregressive(with_layer(inner), Gaussian(None))


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
