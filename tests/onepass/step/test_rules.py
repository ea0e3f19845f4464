"""Operations of a user's own have a step by a rule that the user registers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import steps

import onepass
from onepass import likelihoods
from onepass.step import Part, UnsupportedNetworkError, incremental, rule
from onepass.step.rules import RULES
from onepass.step.time_rules import rowwise

TIME, CHANNELS = 23, 2


@pytest.fixture
def rules(monkeypatch):
    """The rules, of which those that a test registers go with it."""
    for name in ("MaxPool", "Zeta"):
        monkeypatch.setitem(RULES, name, None)  # so that it is restored
        del RULES[name]
    return RULES


def pooling(taps=4):
    x = keras.Input([None, CHANNELS])
    h = keras.layers.Conv1D(8, 2, padding="causal", dilation_rate=2)(x)
    h = keras.layers.ZeroPadding1D((taps - 1, 0))(h)
    h = keras.layers.MaxPooling1D(taps, strides=1, name="largest")(h)
    return keras.Model(x, keras.layers.Dense(2)(h))


def largest_of_window(node):
    stream = node.only()
    taps = node.op.get_attr("ksize")[stream.axis]
    if set(node.op.get_attr("strides")) != {1}:
        raise node.unsupported_error("it has strides")

    def run(inputs, call):
        return [tf.reduce_max(tf.stack(inputs[0]), 0)]

    kind = node.derive_kind(0, stream, offset=stream.offset - (taps - 1))
    return Part([kind], run, {0: tuple(range(taps))})


def zeta(x):
    return tf.math.zeta(2.0 + tf.nn.softplus(x), 1.0 + tf.nn.softplus(x)) * x


def differing(network):
    x = np.random.default_rng(0).normal(size=[2, TIME, CHANNELS]).astype(np.float32)
    derived = incremental(network, inputs=tf.TensorSpec([None, None, CHANNELS]))
    outputs, _ = steps(derived, derived.initial_state(2), [x], [1, 1, 7, 1, 3, 10])
    return np.abs(outputs - network(x)).max()


def test_an_operation_without_a_rule_is_refused_by_name_with_the_way_out(rules):
    with pytest.raises(UnsupportedNetworkError, match=r"largest: no step for MaxPool: .*`rule`"):
        incremental(pooling())
    with pytest.raises(UnsupportedNetworkError, match="Zeta"):
        incremental(zeta, inputs=tf.TensorSpec([None, None, CHANNELS]))


@pytest.mark.parametrize("taps", [1, 2, 5])
def test_the_step_of_a_rule_equals_the_call(rules, taps):
    rule("MaxPool")(largest_of_window)
    assert differing(pooling(taps)) < 1e-5


def test_an_operation_that_treats_every_time_alike_takes_the_rule_that_there_is(rules):
    rule("Zeta")(rowwise)
    assert differing(zeta) < 1e-5


def test_the_cached_samples_of_a_rule_are_those_of_whole_passes(rules):
    rule("MaxPool")(largest_of_window)
    network = keras.Sequential([keras.Input([None, 1]), keras.layers.Conv1D(CHANNELS, 1)])
    network = keras.Model(network.inputs, pooling()(network.outputs[0]))
    model = onepass.Autoregressive(network, likelihoods.Gaussian(levels=256))
    drawn = {name: model.sample(2, 12, 3, method=name) for name in ("cached", "naive", "auto")}
    np.testing.assert_array_equal(drawn["cached"], drawn["naive"])
    np.testing.assert_array_equal(drawn["auto"], drawn["naive"])


def test_a_network_that_was_refused_has_a_step_once_there_is_a_rule(rules):
    network = pooling()
    assert not onepass.check_causal(network).has_step
    rule("MaxPool")(largest_of_window)
    found = onepass.check_causal(network)
    assert (found.is_causal, found.has_step, found.message) == (True, True, "")


def test_a_rule_that_is_wrong_is_found_before_it_is_used(rules):
    rule("MaxPool")(lambda node: Part([node.only()], lambda inputs, call: [inputs[0][0]]))
    with pytest.raises(UnsupportedNetworkError, match="differs from the network"):
        incremental(pooling())


def test_a_rule_says_what_it_does_not_take(rules):
    rule("MaxPool")(largest_of_window)
    x = keras.Input([None, 2])
    network = keras.Model(x, keras.layers.MaxPooling1D(2, padding="same", name="rate")(x))
    with pytest.raises(UnsupportedNetworkError, match="rate: no step for MaxPool: it has strides"):
        incremental(network)


@pytest.mark.parametrize(
    ("given", "must"),
    [(None, "return a Part"), ([], "return a Part"), (Part([], None), "have a kind for each of 1")],
)
def test_a_rule_that_returns_no_part_is_named(rules, given, must):
    rule("MaxPool")(lambda node: given)
    with pytest.raises(TypeError, match=f"the rule for MaxPool must {must}"):
        incremental(pooling())


@pytest.mark.parametrize("given", [(), ("maxpool",), ("",), (3,), (largest_of_window,)])
def test_a_name_that_is_no_operation_is_refused(rules, given):
    with pytest.raises(ValueError, match="`types` must be names of TensorFlow operations"):
        rule(*given)
