"""Networks that cannot be used are refused in one line, by `Autoregressive` and `check_causal`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal

layers = keras.layers
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
    seen = keras.layers.Embedding(16, 2)
    images = keras.Input([None, None, 1], dtype="int32")
    h = seen(images)[:, :, :, 0]
    h = layers.ZeroPadding2D([[0, 0], [1, 0]])(h)[:, :, :-1]
    model = Autoregressive(keras.Model(images, h), Gaussian(16), order="raster")
    first, second = (np.full([1, 3, 3, 1], level, np.int32) for level in (7, 8))
    assert not np.allclose(model.conditionals(first), model.conditionals(second))
    assert model.feeds == "The network reads symbols 0 to 15, unshifted"
