"""Drafts change the number of passes, and nothing else: the symbols are those of the noise."""

import functools

import attention_networks
import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import FLOAT64, Dilated, wave_network
from marks import some_slow

from distill.any_teacher import flow_student
from onepass.likelihoods import Categorical, Gaussian, Integers, Linear, LogisticMixture
from onepass.model import Autoregressive
from onepass.networks.conditions import NOTHING
from onepass.samplers import speculative

TIME, BLOCK = 37, 8
BIAS = [0.1, -2.0]  # mean and log-scale


@functools.cache
def model_of(distribution, seed=0, condition_channels=0):
    network = Dilated(distribution.num_parameters, condition_channels, seed)
    return Autoregressive(
        network, distribution, inputs=FLOAT64, condition_channels=condition_channels
    )


DISTRIBUTIONS = {
    "mixture": LogisticMixture(levels=64, components=2),
    "softmax": Categorical(16),
    "gaussian": Gaussian(levels=32),
}


class Constant:
    def as_draft(self, model):
        self.level = model.distribution.levels // 2
        return self

    def initial_state(self, batch):
        return ()

    def memory(self, block):
        return ()

    def propose(self, block, symbols, known, memory, state):
        place = tf.range(symbols.shape[1])
        return tf.where(place < known[:, None], symbols, self.level), memory, state


@pytest.mark.parametrize("name", some_slow(DISTRIBUTIONS, [*DISTRIBUTIONS][1:]))
def test_the_symbols_are_those_of_the_cached_sampler_whatever_the_draft(name):
    model, smaller = model_of(DISTRIBUTIONS[name]), model_of(DISTRIBUTIONS[name], seed=5)
    expected = model.sample(3, TIME, 7, method="cached")
    assert len(np.unique(expected)) > 5
    for draft in (smaller, flow_student(model, num_flows=1, channels=4)):
        drawn = model.sample(3, TIME, 7, method="speculative", draft=draft)
        np.testing.assert_array_equal(drawn, expected)


def test_positions_may_end_before_the_default_length():
    levels, network = attention_networks.TOKENS, attention_networks.Learned()
    options = {"codec": Integers(levels), "inputs": attention_networks.SPEC}
    model = Autoregressive(network, Categorical(levels), **options)
    drawn = model.sample(2, TIME, 7, method="speculative", draft=model)
    np.testing.assert_array_equal(drawn, model.sample(2, TIME, 7))


@pytest.mark.slow
def test_a_temperature_and_a_condition_reach_the_draft():
    model = model_of(DISTRIBUTIONS["mixture"], condition_channels=2)
    condition = np.random.default_rng(0).normal(size=[2, TIME, 2]).astype(np.float32)
    drafts = (
        model_of(DISTRIBUTIONS["mixture"], 5, 2),
        model_of(DISTRIBUTIONS["mixture"], 5),
        flow_student(model, num_flows=1, channels=4),
    )
    expected = model.sample(2, TIME, 7, condition, method="cached", temperature=0.5)
    for draft in drafts:
        drawn = model.sample(
            2, TIME, 7, condition, method="speculative", temperature=0.5, draft=draft
        )
        np.testing.assert_array_equal(drawn, expected)


def drawn_by(model, draft):
    noise = model.distribution.noise(7, tf.range(1), 0, TIME)
    given = model.symbol_network, model.distribution, noise, NOTHING, tf.constant(1.0)
    return speculative(*given, draft.as_draft(model), BLOCK)[:2]


def test_a_draft_that_is_the_model_takes_one_pass_a_block():
    model = model_of(DISTRIBUTIONS["mixture"])
    expected, passes = drawn_by(model, model_of(DISTRIBUTIONS["mixture"]))
    assert passes == -(-TIME // BLOCK)
    found, passes = drawn_by(model, Constant())
    np.testing.assert_array_equal(found, expected)
    assert passes > -(-TIME // BLOCK)


def test_a_student_goes_on_from_a_corrected_symbol():
    """The flow x = z s + mu of a constant Gaussian is that Gaussian: its drafts are all right."""
    network = wave_network(keras.layers.Dense(2, kernel_initializer="zeros"))
    network.layers[-1].bias.assign(BIAS)
    model = Autoregressive(network, Gaussian(levels=32))
    student = flow_student(model, num_flows=1, channels=4)
    student.networks[0].layers[-1].bias.assign(BIAS)
    assert drawn_by(model, student)[1] == -(-TIME // BLOCK)


MIXTURE, REAL = DISTRIBUTIONS["mixture"], Gaussian(levels=None)
# What is asked of a model, and what is said.
REFUSED = [
    (MIXTURE, lambda m: {"draft": model_of(Categorical(8))}, "64 levels and 2 noise .*got 8 and 1"),
    (MIXTURE, lambda m: {"draft": model_of(MIXTURE, 0, 2)}, "or one of 0 channels, got 2"),
    (MIXTURE, lambda m: {}, "`draft` must be given for `method=.speculative.`"),
    (MIXTURE, lambda m: {"draft": m, "method": "cached"}, "and for no other"),
    (REAL, lambda m: {"draft": m}, "needs levels in time order"),
]


@pytest.mark.parametrize(("distribution", "options", "text"), REFUSED)
def test_a_draft_that_cannot_propose_is_refused(distribution, options, text):
    model = model_of(distribution)
    with pytest.raises(ValueError, match=text):
        model.sample(1, 8, 0, **{"method": "speculative"} | options(model))


def test_a_model_of_blocks_is_not_sampled_by_a_draft():
    class InBlocks:
        network, inputs, conditions, has_step, block = None, None, {}, True, 2

    model = Autoregressive.of_symbols(InBlocks(), Categorical(8), Linear(8))
    with pytest.raises(ValueError, match="needs a model whose passes read several symbols"):
        model.sample(1, 4, 0, method="speculative", draft=model_of(Categorical(8)))
