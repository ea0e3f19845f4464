"""`Autoregressive`: log-probabilities, samples that agree, and errors that name what is wrong."""

import causal_networks
import numpy as np
import pytest
import refused_networks
import tensorflow as tf
from causal_networks import FLOAT64, Dilated

from onepass.likelihoods import Gaussian, LogisticMixture
from onepass.likelihoods.codec import MuLaw, Reals
from onepass.model import Autoregressive
from onepass.samplers import registry

TIME = 30


@pytest.fixture(scope="module")
def model():
    distribution = LogisticMixture(levels=256, components=3)
    return Autoregressive(Dilated(distribution.num_parameters), distribution, inputs=FLOAT64)


@pytest.fixture(scope="module")
def drawn(model):
    return model.sample(3, TIME, seed=7, method="naive")


def test_log_prob_is_that_of_the_conditionals(model, drawn):
    parameters = model.conditionals(drawn)
    expected = model.distribution.log_prob(parameters, model.symbols(drawn))
    np.testing.assert_allclose(model.log_prob(drawn), expected, rtol=1e-5, atol=1e-5)
    network = model.network(
        tf.pad(tf.cast(drawn[..., None], tf.float64), [[0, 0], [1, 0], [0, 0]])[:, :-1]
    )
    np.testing.assert_allclose(parameters, network, rtol=1e-9, atol=1e-9)


def test_real_values_have_a_density_in_their_own_unit():
    distribution = Gaussian(levels=None)
    network = Dilated(2)
    unit, tenth = (
        Autoregressive(network, distribution, codec=Reals(unit=u), inputs=FLOAT64)
        for u in (1.0, 0.1)
    )
    drawn = unit.sample(2, 10, seed=1, method="naive")
    np.testing.assert_allclose(unit.sample(2, 10, seed=1, method="cached"), drawn, rtol=1e-4)
    np.testing.assert_allclose(0.1 * drawn, tenth.sample(2, 10, seed=1), rtol=1e-4)
    density = unit.log_prob(drawn)
    np.testing.assert_allclose(tenth.log_prob(0.1 * drawn), density + np.log(10.0), rtol=1e-4)
    mean, log_scale = (x.numpy() for x in distribution.normal(unit.conditionals(drawn)))
    z = (drawn - mean) / np.exp(log_scale)
    normal = -0.5 * z**2 - log_scale - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(density, normal, rtol=1e-4, atol=1e-4)


def test_without_a_step_auto_takes_the_fixed_point():
    network = causal_networks.skewed_attention(4, 2)
    model = Autoregressive(network, Gaussian(levels=64))
    np.testing.assert_array_equal(
        model.sample(1, 8, seed=1), model.sample(1, 8, seed=1, method="fixed-point")
    )
    with pytest.raises(ValueError, match="attend: no step for"):
        model.sample(1, 8, seed=1, method="cached")


def test_a_registered_sampler_is_taken_where_it_knows_the_settings(monkeypatch):
    monkeypatch.setattr(registry, "TABLE", [])
    calls = []

    @registry.register(Dilated, LogisticMixture)
    def make(network, distribution):
        if distribution.components != 2:
            return None

        def sampler(network, distribution, noise, condition, temperature):
            calls.append(noise.shape)
            return tf.zeros(noise.shape[:-1], tf.int32)

        return sampler

    for components, expected in ((2, 1), (3, 0)):
        calls.clear()
        distribution = LogisticMixture(levels=256, components=components)
        network = Dilated(distribution.num_parameters)
        Autoregressive(network, distribution, inputs=FLOAT64).sample(1, 4, seed=0)
        assert len(calls) == expected


def in_raster(network, channels=1):
    inputs = tf.TensorSpec([None, None, None, channels])
    return Autoregressive(network, Gaussian(levels=256), order="raster", inputs=inputs)


def of_length(distribution, **options):
    return Autoregressive(refused_networks.length_scaled(), distribution, **options)


WRONG = {
    "must have 30 output channels for LogisticMixture, got 5": lambda model: Autoregressive(
        causal_networks.dilated_functional(), LogisticMixture(components=10)
    ),
    "must have 4 output channels for Gaussian and 2 channels": lambda model: in_raster(
        causal_networks.MaskedImage(2, 3), 2
    ),
    r"in \[0, 255\] for 256 levels, got 300 at \[0, 0, 0, 0\]": lambda model: in_raster(
        causal_networks.MaskedImage(1, 2)
    ).log_prob(np.full([1, 2, 2, 1], 300, np.uint16)),
    "`distribution` must be a likelihood.*gaussian": lambda model: of_length("gaussian"),
    "`distribution` must be a likelihood": lambda model: of_length(Gaussian),
    "`network` must be a module": lambda model: Autoregressive(3, Gaussian()),
    "`method` must be one of auto, cached": lambda model: model.sample(1, 4, 0, method="quick"),
    "`order` must be time or raster, got 'z'": lambda model: Autoregressive(
        model.network, model.distribution, order="z"
    ),
    "levels of the distribution, 256, got 16": lambda model: Autoregressive(
        model.network, model.distribution, codec=MuLaw(16)
    ),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_no_model_is_named(model, line):
    with pytest.raises(ValueError, match=line):
        WRONG[line](model)


def test_a_condition_may_be_looked_ahead_in():
    def network(x, condition):
        blurred = tf.nn.conv1d(condition, tf.ones([3, 2, 1]), 1, "SAME")
        return tf.concat([0.5 * x + blurred, tf.zeros_like(x) - 2.0], -1)

    model = Autoregressive(network, Gaussian(levels=64), condition_channels=2)
    condition = np.random.default_rng(0).normal(size=(1, 9, 2)).astype(np.float32)
    one, other = (model.sample(1, 9, 1, condition, method=m) for m in ("auto", "naive"))
    np.testing.assert_array_equal(one, other)


def test_a_condition_that_is_not_read_is_named(model):
    condition = np.zeros([1, 3, 2], np.float32)
    for call in (
        lambda: model.sample(1, 3, 0, condition),
        lambda: model.log_prob(np.zeros([1, 3]), condition),
        lambda: next(model.stream(length=3, seed=0, condition=condition)),
    ):
        with pytest.raises(ValueError, match="`condition` must be None"):
            call()
