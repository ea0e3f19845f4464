"""The compiled sampler against the network it came from, and against its own laws."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from likelihoods import LogisticMixture
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet
from wavenet.samplers import NumbaSampler, Request, generation
from wavenet.samplers.numba.kernels import entry
from wavenet.samplers.numba.state import Pace

# Channel counts below, between and above whole vectors; taps of blocks 1, 2, 4 and 8.
NETWORKS = {
    "mixture": WaveNetConfig(
        layers=10,
        stacks=2,
        filter_width=2,
        residual_channels=24,
        gate_channels=17,
        skip_channels=20,
        components=3,
        front_width=4,
        linear_prediction=True,
        input_gain=3.0,
    ),
    "gaussian": WaveNetConfig(
        likelihood="gaussian",
        layers=8,
        stacks=2,
        filter_width=3,
        residual_channels=8,
        gate_channels=32,
        skip_channels=70,
        feature_channels=5,
        condition_channels=6,
        upsample_factors=(4, 4),
        speakers=3,
        front_width=2,
        input_gain=0.5,
    ),
    "softmax": WaveNetConfig(
        likelihood="categorical",
        levels=32,
        layers=4,
        stacks=1,
        filter_width=3,
        residual_channels=16,
        gate_channels=16,
        skip_channels=16,
    ),
}
SAMPLES = 45


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    """A network whose every variable is drawn, so that no bias is left at zero."""
    model = WaveNet(NETWORKS[request.param], seed=1)
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign_add(rng.normal(0.0, 0.1, variable.shape))
    return model


def condition_of(network, batch):
    channels = network.config.gate_inputs
    if not channels:
        return None
    return np.random.default_rng(3).normal(size=[batch, SAMPLES, channels]).astype(np.float32)


def noise_of(network, batch, samples=SAMPLES):
    return network.likelihood.noise(7, tf.range(batch), 0, samples).numpy()


def generate(network, batch, cuts=(), threads=1, temperature=1.0):
    """Levels and parameters, [batch, time, ...], made in the chunks between `cuts`."""
    sampler = NumbaSampler(network, threads)
    state = sampler.initial_state(batch)
    noise, condition = noise_of(network, batch), condition_of(network, batch)
    chunks = []
    for start, stop in itertools.pairwise([0, *cuts, SAMPLES]):
        part = None if condition is None else condition[:, start:stop]
        *made, state = sampler.generate_chunk(state, part, noise[:, start:stop], temperature)
        chunks.append(made)
    levels, parameters = zip(*chunks, strict=True)
    return np.concatenate(levels, 1), np.concatenate(parameters, 1)


def conditionals(network, levels):
    """The sampler's parameters [batch, time, parameters] along given levels."""
    sampler = NumbaSampler(network, threads=1)
    state = sampler.initial_state(len(levels))
    return sampler.conditionals(state, condition_of(network, len(levels)), levels)[0]


def written_out(network, levels, condition):
    """The network's definition in float64, step by step, for one row: [time, parameters]."""
    config = network.config

    def value(variable):
        return np.asarray(variable, np.float64)

    categorical = config.likelihood == "categorical"
    wave = (2.0 * levels / (config.levels - 1) - 1.0) * config.input_gain
    hidden = np.zeros([len(levels), config.residual_channels])
    for t in range(len(levels)):
        hidden[t] = value(network.front_bias)
        for j in range(config.front_width):
            past = t - config.front_width + j
            if past >= 0 and categorical:
                hidden[t] += value(network.front_kernel)[levels[past]]
            elif past >= 0:
                hidden[t] += value(network.front_kernel)[j] * wave[past]
    skips = np.zeros([len(levels), config.skip_channels])
    for layer in network.stack.layers:
        sums = np.tile(value(layer.gate_bias), [len(levels), 1])
        for tap in range(layer.width):
            lag = (layer.width - 1 - tap) * layer.dilation
            for t in range(lag, len(levels)):
                sums[t] += hidden[t - lag] @ value(layer.gate_kernel)[tap]
        if condition is not None:
            sums += condition @ value(layer.condition_kernel)
        filters, gates = np.split(sums, 2, 1)
        units = np.tanh(filters) / (1 + np.exp(-gates))
        skips += units @ value(layer.skip_kernel) / np.sqrt(config.layers)
        if layer.residual_kernel is not None:
            update = units @ value(layer.residual_kernel) + value(layer.residual_bias)
            hidden = (hidden + update) * np.sqrt(0.5)
    out = np.maximum(skips + value(network.skip_bias), 0)
    out = np.maximum(out @ value(network.head1_kernel) + value(network.head1_bias), 0)
    return out @ value(network.head2_kernel) + value(network.head2_bias)


def in_scaled_units(network, raw, levels):
    """Adds the linear prediction and undoes the input gain, as the network does at its end."""
    config, raw = network.config, raw.copy()
    if config.likelihood == "categorical":
        return raw
    count = config.components if config.likelihood == "logistic" else 1
    means, log_scales = raw[:, -2 * count : -count], raw[:, -count:]
    if network.prediction_kernel is not None:
        wave = (2.0 * levels / (config.levels - 1) - 1.0) * config.input_gain
        past = np.concatenate([np.zeros(config.front_width), wave])
        means *= np.exp(log_scales)
        for t in range(len(raw)):
            means[t] += past[t : t + config.front_width] @ network.prediction_kernel.numpy()
    means /= config.input_gain
    log_scales -= np.log(config.input_gain)
    return raw


def random_levels(network, batch):
    return np.random.default_rng(5).integers(0, network.config.levels, [batch, SAMPLES], np.int32)


def test_conditionals_are_the_written_out_network(network):
    levels = random_levels(network, 2)
    condition = condition_of(network, 2)
    got = conditionals(network, levels)
    for row in range(2):
        raw = written_out(network, levels[row], None if condition is None else condition[row])
        np.testing.assert_allclose(got[row], in_scaled_units(network, raw, levels[row]), atol=1e-5)


def test_conditionals_are_those_of_tensorflow(network):
    levels = random_levels(network, 3)
    condition = condition_of(network, 3)
    expected = network(network.inputs(levels), condition)
    np.testing.assert_allclose(conditionals(network, levels), expected, atol=2e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_draws_are_those_of_the_likelihood(network, temperature):
    levels, parameters = generate(network, 8, temperature=temperature)
    expected = network.likelihood.sample(parameters, noise_of(network, 8), temperature).numpy()
    # Rounding may put a draw on either side of the border between two levels.
    assert np.abs(levels - expected).max() <= 1
    assert np.mean(levels == expected) > 0.98


def test_generated_parameters_are_those_of_the_levels_they_led_to(network):
    levels, parameters = generate(network, 3)
    np.testing.assert_array_equal(parameters, conditionals(network, levels))


@pytest.mark.parametrize("cuts", [(1, 2, 3), (8, 16), (13, 14, 31)])
def test_chunks_join_to_the_whole(network, cuts):
    np.testing.assert_array_equal(generate(network, 2, cuts)[1], generate(network, 2)[1])


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_row_is_the_same_in_any_batch(network, batch):
    alone = [rows[:batch] for rows in generate(network, 11)]
    for part, whole in zip(generate(network, batch), alone, strict=True):
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_change_no_sample(network, batch, threads):
    chunks = tuple(range(9, SAMPLES, 5))  # enough for both ways of working
    many = generate(network, batch, chunks, threads)
    np.testing.assert_array_equal(many[1], generate(network, batch)[1])


def test_the_noise_of_a_later_sample_changes_no_earlier_one(network):
    sampler = NumbaSampler(network)
    noise, condition = noise_of(network, 1), condition_of(network, 1)
    before, *_ = sampler.generate_chunk(sampler.initial_state(1), condition, noise)
    noise[:, 20:] = 1 - noise[:, 20:]
    after, *_ = sampler.generate_chunk(sampler.initial_state(1), condition, noise)
    np.testing.assert_array_equal(after[:, :20], before[:, :20])
    assert (after[:, 20:] != before[:, 20:]).any()


def test_a_sound_goes_on_from_its_prime(network):
    sampler = NumbaSampler(network)
    levels, parameters = generate(network, 2)
    condition = condition_of(network, 2)
    first, rest = (None, None) if condition is None else (condition[:, :30], condition[:, 30:])
    state = sampler.prime(sampler.initial_state(2), first, tf.constant(levels[:, :30]))
    got = sampler.generate_chunk(state, rest, noise_of(network, 2)[:, 30:])
    np.testing.assert_array_equal(got[0], levels[:, 30:])
    np.testing.assert_array_equal(got[1], parameters[:, 30:])


def test_a_state_serves_once_and_its_copy_once_more(network):
    sampler = NumbaSampler(network)
    noise, condition = noise_of(network, 2), condition_of(network, 2)
    state = sampler.initial_state(2)
    twin = state.copy()
    first, *_ = sampler.generate_chunk(state, condition, noise)
    with pytest.raises(ValueError, match="used up"):
        sampler.generate_chunk(state, condition, noise)
    second, *_ = sampler.generate_chunk(twin, condition, noise)
    np.testing.assert_array_equal(first, second)


def test_the_slower_way_of_working_is_left_and_tried_again():
    pace, ways = Pace(), []
    for _ in range(64):
        ways.append(pace.pair())
        pace.record(ways[-1], seconds=2.0 if ways[-1] else 1.0, steps=1)
    assert ways[0]  # with nothing known, both threads
    assert 2 <= sum(ways) <= 6
    assert any(ways[32:])


def test_a_context_stack_is_followed_block_by_block():
    config = WaveNetConfig(
        layers=4, stacks=2, filter_width=2, residual_channels=8, gate_channels=8, skip_channels=8,
        components=2, context_layers=2, context_block_samples=8, context_channels=4,
    )  # fmt: skip
    network = WaveNet(config, seed=4)
    sampler = NumbaSampler(network)
    levels = np.random.default_rng(6).integers(0, 65536, [2, 40], np.int32)
    state, chunks = sampler.initial_state(2), []
    for start in range(0, 40, 8):
        parameters, state = sampler.conditionals(state, None, levels[:, start : start + 8])
        chunks.append(parameters)
    expected = network(network.inputs(levels))
    np.testing.assert_allclose(np.concatenate(chunks, 1), expected, atol=2e-5)
    with pytest.raises(ValueError, match="8 samples of a context block, got 5"):
        sampler.conditionals(state, None, levels[:, :5])


def test_not_a_number_is_generated_as_silence_not_as_a_crash():
    network = WaveNet(NETWORKS["mixture"])
    network.head2_bias.assign(network.head2_bias * np.nan)
    assert set(generate(network, 1)[0].ravel()) == {0}


@pytest.mark.parametrize("shape", [(1, SAMPLES, 2), (2, SAMPLES, 1), (2, SAMPLES)])
def test_noise_of_another_shape_is_refused(shape):
    sampler = NumbaSampler(WaveNet(NETWORKS["mixture"]))
    with pytest.raises(ValueError, match=r"`noise` must be \[2, time, 2\], got"):
        sampler.generate_chunk(sampler.initial_state(2), None, np.zeros(shape))


def test_a_missing_condition_is_refused():
    network = WaveNet(NETWORKS["gaussian"])
    sampler = NumbaSampler(network)
    with pytest.raises(ValueError, match=r"`condition` must be \[1, 45, 22\], got \[1, 45, 0\]"):
        sampler.generate_chunk(sampler.initial_state(1), None, noise_of(network, 1))


def test_levels_out_of_range_are_refused():
    sampler = NumbaSampler(WaveNet(NETWORKS["softmax"]))
    with pytest.raises(ValueError, match=r"`levels` must be in \[0, 32\), got 0 to 32"):
        sampler.prime(sampler.initial_state(1), None, [[0, 32]])


def _doubled(number):
    return 2 * number


def test_a_disk_that_refuses_keeps_no_kernel_from_running(monkeypatch):
    def refused(*arguments):
        raise PermissionError

    made = entry(_doubled)
    for name in ("load", "save"):
        monkeypatch.setattr(made._cache._cache_file, name, refused)
    assert made(21) == 42


@dataclasses.dataclass(frozen=True)
class Skewed(LogisticMixture):
    """A distribution of its own, though a subclass of one that the loop knows."""

    def sample(self, parameters, noise, temperature=1.0):
        return super().sample(parameters, noise**3, temperature)


def test_a_likelihood_that_no_loop_knows_is_refused_and_auto_takes_another_sampler():
    network = WaveNet(NETWORKS["mixture"])
    network.likelihood = Skewed(65536, 3)
    with pytest.raises(ValueError, match=r"^`network` must be one of .* got WaveNet of Skewed"):
        NumbaSampler(network)
    request = Request(num_samples=8, seed=3)
    own, auto = (generation.generate(network, request, name) for name in ("xla", "auto"))
    np.testing.assert_array_equal(auto, own)


def test_a_gaussian_mixture_with_linear_prediction_is_drawn_as_the_network_says():
    config = dataclasses.replace(
        NETWORKS["mixture"], likelihood="gaussian-mixture", compute_dtype="float64"
    )
    network, request = WaveNet(config, seed=2), Request(num_samples=12, seed=3)
    levels = [generation.generate(network, request, name) for name in ("auto", "naive")]
    np.testing.assert_array_equal(*levels)
    parameters = network(network.inputs(tf.constant(levels[0])))
    noise = network.likelihood.noise(3, [0], 0, 12)
    np.testing.assert_array_equal(network.likelihood.sample(parameters, noise), levels[0])
    with pytest.raises(ValueError, match="got WaveNet of GaussianMixture; sample it by xla"):
        generation.generate(network, request, "numba")


def test_temperature_zero_takes_the_larger_of_near_equal_logits():
    network = WaveNet(NETWORKS["softmax"])
    for weight in network.variables:
        weight.assign(tf.zeros_like(weight))
    network.head2_bias.assign(tf.constant([0.0] * 20 + [1e-7] + [0.0] * 11))
    noise = np.linspace(0.01, 0.99, 40, dtype=np.float32)[None, :, None]
    sampler = NumbaSampler(network)
    levels = sampler.generate_chunk(sampler.initial_state(1), None, noise, 0.0)[0]
    np.testing.assert_array_equal(levels, np.full([1, 40], 20))
