"""A model follows a network that is changed after a call, or refuses it as a new model would."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import token_network, wave_network

import onepass
from distill.flow_student import FlowStudent
from onepass.networks.trainable import Watch, graph_digest

LAYERS, SYMBOLS = keras.layers, 8
TOKENS = tf.TensorSpec([None, None], tf.int32)
ROWS = np.random.default_rng(0).integers(0, SYMBOLS, [2, 12]).astype(np.int32)
SCALE = 1.0


class Scaled(keras.layers.Layer):
    """A user's layer with an attribute of its own."""

    def __init__(self):
        super().__init__()
        self.scale, self.reads = 1.0, {"shift": 0.0}

    def call(self, inputs):
        return tf.math.softplus(inputs * self.scale + self.reads["shift"])


class Module(tf.Module):
    """A user's module with an attribute, a table and a part of its own."""

    shift = 0.0

    def __init__(self):
        super().__init__()
        self.scale, self.table = 1.0, np.ones(SYMBOLS, np.float32)
        self.embedding, self.part = LAYERS.Embedding(SYMBOLS, 8), LAYERS.Dense(SYMBOLS)

    def __call__(self, inputs):
        return self.part(self.embedding(inputs)) * self.scale * self.table + self.shift


def keras_network(is_recurrent=False):
    recurrent = [LAYERS.GRU(8, return_sequences=True)] * is_recurrent
    scaled, last = Scaled(), LAYERS.Dense(SYMBOLS, activation="sigmoid")
    network = token_network(LAYERS.Embedding(SYMBOLS, 8), *recurrent, scaled, last)
    network.scaled, network.last = scaled, last
    return network


def sequential():
    layers = [keras.Input([None], dtype="int32"), LAYERS.Embedding(SYMBOLS, SYMBOLS)]
    return keras.Sequential([*layers, LAYERS.Dense(SYMBOLS, name="last")])


def function(scales):
    embedding, part = LAYERS.Embedding(SYMBOLS, 8), LAYERS.Dense(SYMBOLS)
    return lambda inputs: part(embedding(inputs)) * scales[0]


def reads_a_global():
    embedding = LAYERS.Embedding(SYMBOLS, SYMBOLS)
    return lambda inputs: embedding(inputs) * SCALE


def with_low_rank(network):
    network.last.enable_lora(2)
    draws = np.random.default_rng(1).normal(size=network.last.lora_kernel_b.shape)
    network.last.lora_kernel_b.assign(50.0 * draws)


def with_another_call(network):
    network.scaled.call = lambda inputs: 3.0 * inputs


def with_another_global(network):
    globals()["SCALE"] += 4.0


SCALES = [1.0]
CHANGES = {
    "low rank": (lambda: keras_network(is_recurrent=True), with_low_rank),
    "activation": (keras_network, lambda it: setattr(it.last, "activation", tf.tanh)),
    "attribute of a layer": (keras_network, lambda it: setattr(it.scaled, "scale", 9.0)),
    "entry of a dict": (keras_network, lambda it: it.scaled.reads.__setitem__("shift", 9.0)),
    "another call": (keras_network, with_another_call),
    "layer added": (sequential, lambda it: it.add(LAYERS.Rescaling(50.0))),
    "attribute of a module": (Module, lambda it: setattr(it, "scale", 9.0)),
    "part of a module": (Module, lambda it: setattr(it, "part", LAYERS.Dense(SYMBOLS))),
    "table in place": (Module, lambda it: it.table.__setitem__(0, 9.0)),
    "attribute of a class": (
        lambda: type("Own", (Module,), {"shift": 0.0})(),
        lambda it: setattr(type(it), "shift", np.arange(8.0, dtype=np.float32)),
    ),
    "closure": (lambda: function(SCALES), lambda it: SCALES.__setitem__(0, SCALES[0] + 4.0)),
    "global": (reads_a_global, with_another_global),
}


def model_of(network):
    spec = None if isinstance(network, keras.Model) else TOKENS
    distribution = onepass.likelihoods.Categorical(SYMBOLS)
    return onepass.Autoregressive(network, distribution, inputs=spec, start=0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_network_is_that_of_a_new_model(change):
    make, changed = CHANGES[change]
    keras.utils.set_random_seed(1)
    network = make()
    model = model_of(network)
    before = model.log_prob(ROWS)
    changed(network)
    found, fresh = model.log_prob(ROWS), model_of(network)
    assert np.abs(found - before).max() > 1e-4
    np.testing.assert_array_equal(found, fresh.log_prob(ROWS))


@pytest.mark.parametrize("change", ["low rank", "attribute of a module"])
def test_all_methods_and_streams_follow_a_change(change):
    make, changed = CHANGES[change]
    keras.utils.set_random_seed(1)
    network = make()
    model, methods = model_of(network), ("auto", "cached", "fixed-point")
    before = [model.sample(num=2, length=12, seed=1, method=method) for method in methods]
    changed(network)
    expected = model_of(network).sample(num=2, length=12, seed=1)
    assert (expected != before[0]).any()
    for method in methods:
        drawn = model.sample(num=2, length=12, seed=1, method=method)
        np.testing.assert_array_equal(drawn, expected)
    (streamed,) = model.stream(length=12, seed=1, num=2)
    np.testing.assert_array_equal(streamed, expected)


def test_what_leaves_the_network_the_same_leaves_what_was_compiled():
    network = keras_network()
    model = model_of(network)
    model.sample(num=1, length=4, seed=1)
    compiled = model.compiled
    network.last.kernel.assign(tf.ones_like(network.last.kernel))
    network.last.trainable = False
    network.compile("adam", "mse")
    network.scaled.scale = float("1.0")  # another object of the same value
    network.scaled.note = "of no effect"
    model.sample(num=1, length=4, seed=1)
    model.check_causal()
    assert model.compiled is compiled


def test_a_network_that_becomes_acausal_is_refused_at_every_call():
    network = Module()
    model = model_of(network)
    expected = model.log_prob(ROWS)
    network.part = lambda values: tf.reverse(values, [1])
    for _ in range(2):
        with pytest.raises(onepass.NotCausalError, match="must be causal"):
            model.sample(num=1, length=4, seed=1)
    assert model.symbol_network is not None and expected.shape == (2, 12)


def test_a_changed_draft_proposes_what_it_now_predicts():
    keras.utils.set_random_seed(1)
    model, network = model_of(keras_network()), Module()
    draft = model_of(network)
    drawn = model.sample(num=2, length=12, seed=1, method="speculative", draft=draft)
    compiled = draft.compiled
    network.scale = 9.0
    again = model.sample(num=2, length=12, seed=1, method="speculative", draft=draft)
    np.testing.assert_array_equal(drawn, again)
    assert draft.compiled is not compiled


def test_a_fit_saves_what_the_changed_network_computes(tmp_path):
    keras.utils.set_random_seed(1)
    network = keras_network()
    model = model_of(network)
    model.log_prob(ROWS)
    with_low_rank(network)
    onepass.fit(model, ROWS, steps=1, log=lambda _: None)
    onepass.save(model, tmp_path / "model")
    again = onepass.load(tmp_path / "model")
    np.testing.assert_allclose(model.log_prob(ROWS), again.log_prob(ROWS), atol=1e-4)


def test_a_student_follows_its_networks():
    last = LAYERS.Dense(2)
    networks = [wave_network(LAYERS.Conv1D(4, 2, padding="causal"), last)]
    student = FlowStudent(networks, onepass.likelihoods.Reals())
    before = student.sample(1, 6, seed=1)
    streamed = np.concatenate(list(student.stream(length=6, seed=1, chunk=3)), 1)
    np.testing.assert_allclose(streamed, before, atol=1e-5)
    last.activation = tf.tanh
    drawn = student.sample(1, 6, seed=1)
    assert np.abs(drawn - before).max() > 1e-4
    expected = FlowStudent(networks, onepass.likelihoods.Reals()).sample(1, 6, seed=1)
    np.testing.assert_array_equal(drawn, expected)
    streamed = np.concatenate(list(student.stream(length=6, seed=1, chunk=3)), 1)
    np.testing.assert_allclose(streamed, expected, atol=1e-5)


def test_a_network_may_refer_to_itself_and_have_attributes_that_raise():
    class Raising:
        def __getattr__(self, name):
            raise RuntimeError(name)

    network = Module()
    network.own = [network, {"again": network}, Raising()]
    assert not Watch(network).has_changed()


def test_digests_are_those_of_operations_not_of_traces():
    scale, weight = [2.0], tf.Variable([1.0])

    def digest():
        traced = tf.function(lambda x: tf.scan(lambda a, b: a + b * scale[0] * weight, x))
        return graph_digest(traced.get_concrete_function(tf.TensorSpec([3, 1])).graph)[0]

    before = digest()
    assert digest() == before
    scale[0] = 3.0
    assert digest() != before
