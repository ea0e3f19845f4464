"""`fit` leaves frozen weights as they are, wherever their layers are held, and says how many."""

import functools
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import eagerly

import onepass
from onepass.compression.arrays import digests_of_model
from onepass.likelihoods import Categorical, Gaussian, Integers, Reals
from onepass.model import Autoregressive
from onepass.networks.causality import check_causal
from onepass.networks.trainable import layers_within, weights_read
from onepass.training.fit import ADAM, fit

LEVELS = 6
TOKENS = np.random.default_rng(0).integers(0, LEVELS, [8, 10]).astype(np.int32)


class Parts:
    """An embedding that may be frozen, and a head."""

    def __init__(self, trainable=True):
        keras.utils.set_random_seed(1)
        self.embedding = keras.layers.Embedding(LEVELS, 3, trainable=trainable)
        self.head = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(LEVELS)])

    def __call__(self, tokens):
        return self.head(self.embedding(tokens))

    def helped(self, tokens):
        return Held.of(self)(tokens)


class Held(tf.Module):
    """Layers of Keras in a module of TensorFlow, in a dict in a list."""

    @classmethod
    def of(cls, parts):
        made = cls()
        made.parts = [{"embedding": parts.embedding}, (parts.head,)]
        return made

    def __call__(self, tokens):
        return self.parts[1][0](self.parts[0]["embedding"](tokens))


GLOBAL = {}


def of_globals(tokens):
    return GLOBAL["head"](GLOBAL["embedding"](tokens))


def model_of(parts):
    tokens = keras.Input([None], dtype="int32")
    return keras.Model(tokens, parts(tokens))


def globals_of(parts):
    GLOBAL.update(vars(parts))
    return of_globals


HOLDERS = {
    "model": model_of,
    "nested model": lambda parts: keras.Sequential([model_of(parts)]),
    "object": lambda parts: parts,
    "module": Held.of,
    "function": lambda parts: lambda tokens: parts(tokens),
    "method": lambda parts: parts.helped,
    "partial": lambda parts: functools.partial(lambda held, x: held[0](x), [parts]),
    "tf.function": lambda parts: tf.function(lambda tokens: parts(tokens)),
    "globals": globals_of,
}


def untrained(network):
    spec = tf.TensorSpec([None, None], tf.int32)
    return Autoregressive(network, Categorical(LEVELS), codec=Integers(LEVELS), inputs=spec)


def moved(parts, model, **options):
    """Return whether the embedding and the head moved, and the lines of the log."""
    before = [parts.embedding.get_weights(), parts.head.get_weights()]
    lines = []
    with eagerly():
        fit(model, TOKENS, steps=2, log=lines.append, **options)
    after = [parts.embedding.get_weights(), parts.head.get_weights()]
    changed = [
        any((x != y).any() for x, y in zip(*pair, strict=True))
        for pair in zip(before, after, strict=True)
    ]
    return changed, "\n".join(lines)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("how", ["constructor", "layer"])
def test_a_frozen_layer_is_found_wherever_it_is_held(holder, how):
    parts = Parts(trainable=how != "constructor")
    network = HOLDERS[holder](parts)
    if how == "layer":
        network(TOKENS)  # builds it
        parts.embedding.trainable = False
    trained, frozen = weights_read(network, tf.constant(TOKENS))
    assert [each is parts.embedding.embeddings.value for each in frozen] == [True]
    assert {id(each) for each in trained} == {id(w.value) for w in parts.head.weights}


@pytest.mark.parametrize(
    ("holder", "optimizer"),
    [("module", ADAM), ("tf.function", keras.optimizers.Adam(0.1))],
)
def test_a_frozen_layer_does_not_move(holder, optimizer):
    parts = Parts(trainable=False)
    changed, log = moved(parts, untrained(HOLDERS[holder](parts)), optimizer=optimizer)
    assert changed == [False, True]
    assert f"46 weights train, {LEVELS * 3} are frozen" in log


def test_flags_may_change_between_two_fits():
    parts = Parts()
    network = model_of(parts)
    model = untrained(network)
    parts.head.layers[1].trainable = parts.embedding.trainable = False
    assert "16 weights train, 48 are frozen" in moved(parts, model)[1]
    network.trainable = False
    changed, log = moved(parts, model)
    assert changed == [False, False] and log == "0 weights train, 64 are frozen: nothing to train."
    assert fit(model, TOKENS, steps=2, log=lambda line: None).reason == "nothing to train"
    network.trainable = True
    assert moved(parts, model)[0] == [True, True]


def test_a_weight_that_a_layer_unfroze_after_it_was_made_is_trained():
    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=[], initializer="ones", trainable=False)

        def call(self, inputs):
            return inputs * self.scale

    inputs = keras.Input([None, 1])
    layer = Scaled()
    model = Autoregressive(keras.Model(inputs, keras.layers.Dense(2)(layer(inputs))), Gaussian(16))
    assert [len(part) for part in model.weights_read()] == [2, 1]
    layer.scale.trainable = True
    assert [len(part) for part in model.weights_read()] == [3, 0]


def test_variables_of_tensorflow_say_so_themselves():
    kernel = tf.Variable(tf.ones([1, 2]))
    bias = tf.Variable([0.5, 0.5], trainable=False)
    counter = tf.Variable(0, trainable=False)

    def network(inputs):
        return tf.matmul(inputs, kernel) + bias + 0.0 * tf.cast(counter, tf.float32)

    read = weights_read(network, tf.zeros([1, 4, 1]))
    assert [v is kernel for v in read.trained] == [True]
    assert [v is bias for v in read.frozen] == [True]


def test_statistics_of_normalisation_are_not_trained():
    inputs = keras.Input([None, 1])
    h = keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs))
    model = Autoregressive(keras.Model(inputs, keras.layers.Dense(2)(h)), Gaussian(16))
    read = model.weights_read()
    assert sum(int(tf.size(v)) for v in read.frozen) == 6
    assert len(read.trained) == len(model.network.trainable_variables)


def test_a_stored_model_keeps_its_weights_frozen(tmp_path):
    parts = Parts(trainable=False)
    stored = onepass.load(onepass.save(untrained(model_of(parts)), tmp_path / "stored"))
    trained, frozen = stored.weights_read()
    assert len(trained) == 4
    np.testing.assert_array_equal(frozen, [parts.embedding.embeddings])


def test_a_student_keeps_its_weights_frozen(tmp_path):
    inputs = keras.Input([None, 1])
    h = keras.layers.Conv1D(4, 2, padding="causal", trainable=False)(inputs)
    student = onepass.FlowStudent([keras.Model(inputs, keras.layers.Dense(2)(h))], Reals())
    example = tf.zeros([1, 4])
    loaded = onepass.load(onepass.save(student, tmp_path / "student"))
    for each in (student, loaded):
        assert [len(part) for part in each.weights_read(example)] == [2, 2]


def test_freezing_does_not_change_the_digest_of_a_model():
    parts = Parts()
    model = untrained(model_of(parts))
    before = digests_of_model(model)
    parts.embedding.trainable = False
    assert digests_of_model(model) == before


def test_weights_are_in_the_order_of_their_reads_so_that_another_process_resumes_them():
    """TensorFlow itself lists the variables of a function by their addresses."""
    network = keras.Sequential(
        [keras.Input([None, 4]), *[keras.layers.Dense(4) for _ in range(12)]]
    )
    read = weights_read(network, tf.zeros([1, 4, 4])).trained
    assert [id(each) for each in read] == [id(each.value) for each in network.trainable_variables]


class Keyed:
    """Looks every attribute up in a dict."""

    def __init__(self):
        self.entries = {}

    def __getattr__(self, name):
        return self.__dict__["entries"][name]


class Unbound:
    """Cannot be asked for its class, as a proxy outside of a request."""

    @property
    def __class__(self):
        raise RuntimeError("unbound")


class Closed:
    @property
    def __dict__(self):
        raise OSError("closed")


class Asked(type):
    def __getattribute__(cls, name):
        if name in ("trainable", "python_function"):
            raise RuntimeError(name)
        return type.__getattribute__(cls, name)


class OfAsked(metaclass=Asked):
    """An object of a class whose own attributes raise errors."""


class Missing(types.ModuleType):
    def __getattr__(self, name):
        raise ImportError(name)


class Loading(dict):
    def values(self):
        raise OSError("gone")


RAISING = [Keyed, Unbound, Closed, OfAsked, lambda: Missing("missing"), lambda: Loading(a=1)]
RAISING += [mock.Mock, mock.MagicMock]


@pytest.mark.parametrize("make", RAISING)
def test_an_object_that_raises_when_it_is_searched_hides_no_layer(make):
    layer = keras.layers.Dense(2)
    layer.build([None, None, 1])
    held = [make(), layer]
    assert list(layers_within(lambda x: held[1](x))) == [layer]


def plain_model():
    inputs = keras.Input([None], dtype="int32")
    outputs = keras.layers.Dense(8)(keras.layers.Embedding(8, 4)(inputs))
    return Autoregressive(keras.Model(inputs, outputs), Categorical(8))


OTHERS = []


def test_the_layers_of_a_model_are_not_those_of_others_in_its_module():
    OTHERS.extend(plain_model() for _ in range(2))
    table = tf.Variable(tf.zeros([8, 8]))
    spec = tf.TensorSpec([None, None], tf.int32)
    own = Autoregressive(lambda x: tf.gather(table, x), Categorical(8), inputs=spec)
    assert list(layers_within(own)) == []
    assert [type(each).__name__ for each in layers_within(OTHERS[0])] == ["Functional"]


def test_a_network_whose_attributes_raise_key_errors_is_modelled():
    class Network(Keyed):
        def __call__(self, x):
            return x @ self.kernel

    network = Network()
    network.entries["kernel"] = tf.Variable([[1.0, 2.0]])
    assert check_causal(network).has_step
    assert Autoregressive(network, Gaussian(None)).sample(num=1, length=3, seed=1).shape == (1, 3)
