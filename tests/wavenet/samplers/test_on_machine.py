"""The steps of WaveNets on the step machine, against the networks and against their own laws."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from networks import network_of as other_network_of
from vocoders import KINDS, SOME_SLOW, frames_of, levels_of, vocoder_of

from onepass.likelihoods import LogisticMixture
from onepass.machine import machine, sides, weights
from onepass.machine.machine import Pace
from onepass.networks.conditions import only_timed
from onepass.samplers.native import Native, NativeOutputs, NativePrompted, on_machine
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet
from wavenet.samplers import generation
from wavenet.samplers.generation import Request
from wavenet.samplers.symbols import SoundSymbols, autoregressive

# Channel counts below, between and above whole vectors.
NETWORKS = {
    "mixture": WaveNetConfig(
        layers=10, stacks=2, filter_width=2, residual_channels=24, gate_channels=17,
        skip_channels=20, components=3, front_width=4, linear_prediction=True, input_gain=3.0,
    ),
    "gaussian": WaveNetConfig(
        likelihood="gaussian", layers=8, stacks=2, filter_width=3, residual_channels=8,
        gate_channels=32, skip_channels=70, feature_channels=5, condition_channels=6,
        upsample_factors=(4, 4), speakers=3, front_width=2, input_gain=0.5,
    ),
    "softmax": WaveNetConfig(
        likelihood="categorical", levels=32, layers=4, stacks=1, filter_width=3,
        residual_channels=16, gate_channels=16, skip_channels=16,
    ),
}  # fmt: skip

SHALLOW = dataclasses.replace(NETWORKS["mixture"], layers=2, stacks=1)  # traced quickly
BUNCHES = "prediction, pitch, bunches of 4"
SPEAKING = [*NETWORKS, BUNCHES, "prediction, pitch"]
ROWS = 11
LONG = 2148  # samples, more than any queue of the machine holds


def network_of(kind):
    """A network of a kind whose every variable is drawn, so that no bias is left at zero."""
    if kind in KINDS:
        return vocoder_of(kind)
    model = WaveNet(NETWORKS[kind], seed=1)
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign_add(rng.normal(0.0, 0.1, variable.shape))
    return model


@pytest.fixture(scope="module", params=SOME_SLOW)
def vocoder(request):
    return network_of(request.param)


@pytest.fixture(scope="module", params=[*NETWORKS, *SOME_SLOW])
def network(request):
    return network_of(request.param)


@pytest.fixture(scope="module", params=some_slow(SPEAKING, ("prediction, pitch",)))
def speaking(request):
    """A network of one of few kinds: of the vocoders those with pitch."""
    return network_of(request.param)


def is_vocoder(network):
    return network.config.conditioner_units > 0


def samples_of(network):
    """Samples of a sound that reach beyond every queue; of a vocoder whole bunches."""
    return 200 if is_vocoder(network) else 45


def condition_of(network, batch, samples=None):
    samples = samples or samples_of(network)
    if is_vocoder(network):
        # Made for all rows at once: TensorFlow's rounding differs from batch to batch.
        frames = frames_of(network, ROWS, samples)
        return network.condition(frames, num_samples=samples)[:batch].numpy()
    channels = network.config.gate_inputs
    if not channels:
        return None
    return np.random.default_rng(3).normal(size=[batch, samples, channels]).astype(np.float32)


def part_of(condition, part):
    return None if condition is None else condition[:, part]


def noise_of(network, batch, samples=None):
    return network.likelihood.noise(7, tf.range(batch), 0, samples or samples_of(network)).numpy()


@functools.cache
def native_of(network):
    """The sampler of a network without known symbols."""
    return on_machine(Native, SoundSymbols(network), network.likelihood)


def draw(network, batch, cuts=(), temperature=1.0, sampler=None):
    """Levels [batch, time], drawn in the chunks between `cuts`."""
    sampler, samples = sampler or native_of(network), samples_of(network)
    noise, condition = noise_of(network, batch), condition_of(network, batch)
    state, parts = sampler.begin(batch, samples, only_timed(condition)), []
    for start, stop in itertools.pairwise([0, *cuts, samples]):
        part = slice(start, stop)
        given = only_timed(part_of(condition, part))
        drawn, state = sampler.advance(noise[:, part], given, temperature, state)
        parts.append(drawn)
    return np.concatenate(parts, 1)


@functools.cache
def outputs_on_machine(network):
    """The parameters of a network's steps."""
    return on_machine(NativeOutputs, SoundSymbols(network), network.likelihood)


def conditionals(network, levels):
    """The machine's parameters [batch, time, parameters] along given levels."""
    found, symbols = outputs_on_machine(network), SoundSymbols(network)
    condition = only_timed(condition_of(network, *levels.shape))
    state = found.begin(*levels.shape, condition)
    first = tf.repeat(tf.constant(state.of_one["input"]), len(levels), 0)
    inputs = tf.concat([first, symbols.read(levels)[:, :-1]], 1)
    return found.outputs(inputs, condition, state)[0]


def any_levels(network, batch, samples=None):
    samples = samples or samples_of(network)
    if is_vocoder(network):
        return levels_of(network, batch, samples)
    return np.random.default_rng(5).integers(0, network.config.levels, [batch, samples], np.int32)


def assert_conditionals_are_those_of_tensorflow(network, levels):
    expected = network(network.inputs(levels), condition_of(network, *levels.shape))
    loose = dict(rtol=1e-4, atol=1e-5) if is_vocoder(network) else dict(atol=2e-5)
    np.testing.assert_allclose(conditionals(network, levels), expected, **loose)


def test_conditionals_are_those_of_tensorflow(network):
    assert_conditionals_are_those_of_tensorflow(network, any_levels(network, 3))


@pytest.mark.parametrize("kind", some_slow(SPEAKING[-2:], ("prediction, pitch",)))
def test_conditionals_of_a_long_sound_are_those_of_tensorflow(kind):
    network = vocoder_of(kind)
    assert_conditionals_are_those_of_tensorflow(network, levels_of(network, 2, LONG))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_draws_are_those_of_the_likelihood(speaking, temperature):
    levels = draw(speaking, 8, temperature=temperature)
    parameters = conditionals(speaking, levels)
    expected = speaking.likelihood.sample(parameters, noise_of(speaking, 8), temperature).numpy()
    # Rounding may put a draw on either side of the border between two levels.
    assert np.abs(levels - expected).max() <= 1
    assert np.mean(levels == expected) > 0.98
    assert not temperature or len(np.unique(levels)) > 5


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_row_is_the_same_in_any_batch(speaking, batch):
    np.testing.assert_array_equal(draw(speaking, batch), draw(speaking, ROWS)[:batch])


@pytest.mark.parametrize(
    ("batch", "threads"), some_slow([(1, 2), (3, 4), (8, 2), (8, 4)], [(8, 2), (8, 4)])
)
def test_threads_and_chunks_change_no_sample(speaking, batch, threads, monkeypatch):
    alone, ways = draw(speaking, batch), []

    def alternate(pace):
        ways.append(len(ways) % 3 != 1)
        return ways[-1]

    for name in ("_EXCHANGE", "_FETCH", "_BARRIER", "_WORTHWHILE", "_WORTH_HALVING"):
        monkeypatch.setattr(sides, name, 1.0)
    monkeypatch.setattr(machine, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: threads)
    monkeypatch.setattr(Pace, "choose", alternate)
    sampler = on_machine(Native, SoundSymbols(speaking), speaking.likelihood)
    cuts = range(4, samples_of(speaking), 20)
    np.testing.assert_array_equal(draw(speaking, batch, cuts, sampler=sampler), alone)
    assert {True, False} == set(ways)


def test_known_samples_are_continued_as_they_were_drawn(speaking):
    model, samples = autoregressive(speaking), samples_of(speaking)
    condition = condition_of(speaking, 3)
    drawn = model.sample(3, samples, 7, condition)
    begun = [drawn[0, :9], drawn[1, :30], drawn[2, :0]]
    again = model.sample(3, samples, 7, condition, prefix=begun)
    np.testing.assert_array_equal(again, drawn)
    parts = list(model.stream(3, samples, 7, condition, prefix=begun, chunk=12))
    np.testing.assert_array_equal(np.concatenate(parts, 1), drawn)
    sampler = on_machine(NativePrompted, model.symbol_network, speaking.likelihood)
    assert sampler.pays(3, samples, only_timed(condition))


@pytest.mark.parametrize("kind", ["mixture", BUNCHES])
def test_changed_weights_are_read(kind):
    network = network_of(kind)
    sampler = on_machine(Native, SoundSymbols(network), network.likelihood)
    levels = draw(network, 2, sampler=sampler)
    (variable, *_) = network.stack.trainable_variables
    before = variable.numpy()
    variable.assign(before * 0.5)
    assert (draw(network, 2, sampler=sampler) != levels).any()
    variable.assign(before)
    np.testing.assert_array_equal(draw(network, 2, sampler=sampler), levels)


NARROW = [*itertools.product(KINDS, ["bfloat16", "int8"])]
QUICK = (("dense conditioner", "bfloat16"), (BUNCHES, "int8"))


@pytest.mark.parametrize(("name", "kind"), some_slow(NARROW, {*NARROW} - {*QUICK}))
def test_narrow_weights_draw_and_score_a_vocoder_bunch_by_bunch(name, kind, monkeypatch):
    vocoder = network_of(name)
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)
    model, samples = autoregressive(vocoder), 46  # no whole number of bunches
    condition = condition_of(vocoder, 2, 48)[:, :samples]
    drawn = model.sample(2, samples, 3, condition, weights=kind)
    parts = list(model.stream(2, samples, 3, condition, weights=kind, chunk=12))
    np.testing.assert_array_equal(np.concatenate(parts, 1), drawn)
    begun = [drawn[0, :9], drawn[1, :30]]
    again = model.sample(2, samples, 3, condition, weights=kind, prefix=begun)
    np.testing.assert_array_equal(again, drawn)
    exact = model.log_prob(drawn, condition).numpy()
    lost = np.abs(model.log_prob(drawn, condition, weights=kind).numpy() - exact)
    assert lost.max() > 0 and lost.mean() < 0.05
    symbols, given = model.symbols(drawn), only_timed(condition)
    outputs = on_machine(NativeOutputs, model.symbol_network, vocoder.likelihood)
    steps = outputs.log_prob(symbols, given)
    np.testing.assert_allclose(steps - model.codec.log_unit, exact, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["mixture, context", "mixture, windows"])
def test_what_the_machine_cannot_run_is_drawn_by_xla(kind):
    network, request = other_network_of(kind), Request(40, seed=3, rows=(0, 1))
    fault = "solved between steps" if "windows" in kind else "If of cond: the step machine has no"
    assert fault in generation.machine_fault(network)
    drawn = [generation.generate(network, request, name) for name in ("auto", "cached")]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("kind", ["mixture", BUNCHES])
def test_not_a_number_is_generated_as_silence_not_as_a_crash(kind):
    network = network_of(kind)
    network.head2_bias.assign(network.head2_bias * np.nan)
    assert set(draw(network, 1).ravel()) == {0}


def test_chunks_of_a_part_of_a_bunch_are_refused():
    network = vocoder_of(BUNCHES)
    noise, condition = noise_of(network, 1, 42), only_timed(condition_of(network, 1, 42))
    sampler = native_of(network)
    with pytest.raises(ValueError, match="whole blocks of 4"):
        sampler.advance(noise, condition, 1.0, sampler.begin(1, 42, condition))


@dataclasses.dataclass(frozen=True)
class Skewed(LogisticMixture):
    """A distribution of one's own."""

    def sample(self, parameters, noise, temperature=1.0):
        return super().sample(parameters, noise**3, temperature)


def test_a_likelihood_of_ones_own_is_drawn_as_it_says():
    network = WaveNet(SHALLOW)
    network.likelihood = Skewed(65536, 3)
    assert generation.machine_fault(network) == ""
    levels = generation.generate(network, Request(num_samples=8, seed=3))
    noise = network.likelihood.noise(3, [0], 0, 8)
    expected = network.likelihood.sample(conditionals(network, levels), noise).numpy()
    assert np.abs(levels - expected).max() <= 1
    plain = LogisticMixture(65536, 3).sample(conditionals(network, levels), noise).numpy()
    assert np.abs(levels - plain).max() > 1


def test_a_gaussian_mixture_with_linear_prediction_is_drawn_as_the_network_says():
    config = dataclasses.replace(SHALLOW, likelihood="gaussian-mixture", compute_dtype="float64")
    network, request = WaveNet(config, seed=2), Request(num_samples=12, seed=3)
    levels = [generation.generate(network, request, name) for name in ("auto", "naive")]
    np.testing.assert_array_equal(*levels)
    parameters = network(network.inputs(tf.constant(levels[0])))
    noise = network.likelihood.noise(3, [0], 0, 12)
    np.testing.assert_array_equal(network.likelihood.sample(parameters, noise), levels[0])


def test_temperature_zero_takes_the_larger_of_near_equal_logits():
    network = WaveNet(NETWORKS["softmax"])
    for weight in network.variables:
        weight.assign(tf.zeros_like(weight))
    network.head2_bias.assign(tf.constant([0.0] * 20 + [1e-7] + [0.0] * 11))
    noise = tf.constant(np.linspace(0.01, 0.99, 40, dtype=np.float32)[None, :, None])
    levels = native_of(network)(noise, only_timed(None), 0.0)
    np.testing.assert_array_equal(levels, np.full([1, 40], 20))
