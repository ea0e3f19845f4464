"""The compiled sampler against the network it came from, and against its own laws."""

import numpy as np
import pytest
import tensorflow as tf

from wavenet import cpu
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet

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
    """Levels [batch, time], made in the chunks between `cuts`."""
    packed = cpu.pack(network)
    state = cpu.initial_state(packed, batch, threads)
    noise, condition = noise_of(network, batch), condition_of(network, batch)
    edges, chunks = [0, *cuts, SAMPLES], []
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        part = None if condition is None else condition[:, start:stop]
        levels, state = cpu.generate_chunk(packed, state, noise[:, start:stop], part, temperature)
        chunks.append(levels)
    return np.concatenate(chunks, 1)


def conditionals(network, levels):
    """The sampler's parameters [batch, time, parameters] along given levels."""
    packed = cpu.pack(network)
    state = cpu.initial_state(packed, len(levels), threads=1)
    return cpu.teacher_forced(packed, state, levels, condition_of(network, len(levels)))[0]


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
    config = network.config
    if config.likelihood == "categorical":
        return raw
    means = slice(
        -2 * (raw.shape[1] // 2) if raw.shape[1] == 2 else raw.shape[1] // 3,
        1 if raw.shape[1] == 2 else 2 * raw.shape[1] // 3,
    )
    raw = raw.copy()
    if network.prediction_kernel is not None:
        wave = (2.0 * levels / (config.levels - 1) - 1.0) * config.input_gain
        past = np.concatenate([np.zeros(config.front_width), wave])
        for t in range(len(raw)):
            raw[t, means] += past[t : t + config.front_width] @ network.prediction_kernel.numpy()
    raw[:, means] /= config.input_gain
    raw[:, means.stop :] -= np.log(config.input_gain)
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
    levels = generate(network, 8, temperature=temperature)
    expected = network.likelihood.sample(
        conditionals(network, levels), noise_of(network, 8), temperature
    )
    # Rounding may put a draw on either side of the border between two levels.
    assert np.abs(levels - expected.numpy()).max() <= 1
    assert np.mean(levels == expected.numpy()) > 0.97


@pytest.mark.parametrize("cuts", [(1, 2, 3), (8, 16), (13, 14, 31)])
def test_chunks_join_to_the_whole(network, cuts):
    np.testing.assert_array_equal(generate(network, 2, cuts), generate(network, 2))


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_row_does_not_depend_on_its_batch(network, batch):
    assert len(np.unique(generate(network, batch), axis=0)) == batch
    pass


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_not_change_a_sample(network, batch, threads):
    np.testing.assert_array_equal(generate(network, batch, (9,), threads), generate(network, batch))
