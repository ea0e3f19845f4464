"""The compiled samplers against the networks they came from, and against their own laws."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from vocoders import KINDS, SOME_SLOW, frames_of, levels_of, vocoder_of

from onepass.likelihoods import LogisticMixture
from onepass.machine import weights
from onepass.machine.kernels import entry
from onepass.machine.machine import Pace
from onepass.networks.conditions import only_timed
from onepass.samplers.native import native, outputs_of
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet
from wavenet.samplers import NumbaSampler, NumbaVocoderSampler, Request, generation
from wavenet.samplers.numba.bunches import ROOM
from wavenet.samplers.numba.sampler import sampler_for
from wavenet.samplers.symbols import SoundSymbols, autoregressive

# Channel counts below, between and above whole vectors; taps of blocks 1, 2, 4 and 8.
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


def generate(network, batch, cuts=(), threads=1, temperature=1.0):
    """Levels and parameters, [batch, time, ...], made in the chunks between `cuts`."""
    sampler = sampler_for(network, threads)
    state = sampler.initial_state(batch)
    noise, condition = noise_of(network, batch), condition_of(network, batch)
    chunks = []
    for start, stop in itertools.pairwise([0, *cuts, samples_of(network)]):
        part = slice(start, stop)
        *made, state = sampler.generate_chunk(
            state, part_of(condition, part), noise[:, part], temperature
        )
        chunks.append(made)
    levels, parameters = zip(*chunks, strict=True)
    return np.concatenate(levels, 1), np.concatenate(parameters, 1)


def conditionals(network, levels):
    """The sampler's parameters [batch, time, parameters] along given levels."""
    sampler = sampler_for(network, threads=1)
    condition = condition_of(network, *levels.shape)
    return sampler.conditionals(sampler.initial_state(len(levels)), condition, levels)[0]


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
def test_conditionals_are_those_of_tensorflow_beyond_the_end_of_the_history(kind):
    network = vocoder_of(kind)
    assert_conditionals_are_those_of_tensorflow(network, levels_of(network, 2, 2 * ROOM + 100))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_draws_are_those_of_the_likelihood(speaking, temperature):
    levels, parameters = generate(speaking, 8, temperature=temperature)
    expected = speaking.likelihood.sample(parameters, noise_of(speaking, 8), temperature).numpy()
    # Rounding may put a draw on either side of the border between two levels.
    assert np.abs(levels - expected).max() <= 1
    assert np.mean(levels == expected) > 0.98


def test_generated_parameters_are_those_of_the_levels_they_led_to(network):
    levels, parameters = generate(network, 3)
    np.testing.assert_array_equal(parameters, conditionals(network, levels))


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_row_is_the_same_in_any_batch(speaking, batch):
    alone = [rows[:batch] for rows in generate(speaking, ROWS)]
    for part, whole in zip(generate(speaking, batch), alone, strict=True):
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize(
    ("batch", "threads"),
    some_slow([(1, 2), (3, 4), (8, 4), (1, 4), (3, 2), (8, 2)], [(1, 4), (3, 2), (8, 2), (8, 4)]),
)
def test_threads_change_no_sample(speaking, batch, threads):
    first, every = (12, 20) if is_vocoder(speaking) else (9, 5)
    chunks = tuple(range(first, samples_of(speaking), every))  # enough for both ways of working
    many = generate(speaking, batch, chunks, threads)
    np.testing.assert_array_equal(many[1], generate(speaking, batch)[1])


def test_a_state_serves_once_and_its_copy_once_more(speaking):
    sampler, start = sampler_for(speaking, threads=1), 80 if is_vocoder(speaking) else 30
    noise, condition = noise_of(speaking, 2), condition_of(speaking, 2)
    first, later = slice(0, start), slice(start, None)
    state = sampler.initial_state(2)
    *_, state = sampler.generate_chunk(state, part_of(condition, first), noise[:, first])
    twin, rest = state.copy(), (part_of(condition, later), noise[:, later])
    once, *_ = sampler.generate_chunk(state, *rest)
    with pytest.raises(ValueError, match="used up"):
        sampler.generate_chunk(state, *rest)
    again, *_ = sampler.generate_chunk(twin, *rest)
    np.testing.assert_array_equal(again, once)


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
    steps = outputs_of(model.symbol_network, vocoder.likelihood).log_prob(symbols, given)
    np.testing.assert_allclose(steps - model.codec.log_unit, exact, rtol=1e-3, atol=2e-3)


def test_the_step_machine_draws_a_vocoder_bunch_by_bunch(vocoder):
    samples, likelihood = 48, vocoder.likelihood
    sampler = native(SoundSymbols(vocoder), likelihood)
    noise, condition = noise_of(vocoder, 3, samples), condition_of(vocoder, 3, samples)

    def draw(rows, cuts=()):
        state, parts = sampler.begin(len(range(3)[rows]), samples), []
        for start, stop in itertools.pairwise([0, *cuts, samples]):
            given = only_timed(condition[rows, start:stop])
            part, state = sampler.advance(noise[rows, start:stop], given, 1.0, state)
            parts.append(part)
        return np.concatenate(parts, 1)

    levels = draw(slice(3))
    np.testing.assert_array_equal(draw(slice(3), cuts=(4, 24)), levels)
    np.testing.assert_array_equal(draw(slice(1, 2)), levels[1:2])
    expected = likelihood.sample(conditionals(vocoder, levels), noise, 1.0).numpy()
    # Rounding may move a value across the border between two levels.
    assert np.abs(expected - levels).max() <= 1 and (expected == levels).mean() > 0.95
    for variable in vocoder.stack.trainable_variables[:1]:
        before = variable.numpy()
        variable.assign(before * 0.5)
        assert (draw(slice(3)) != levels).any()
        variable.assign(before)
    np.testing.assert_array_equal(draw(slice(3)), levels)


@pytest.mark.parametrize("kind", ["gaussian", "softmax"])
def test_the_step_machine_draws_a_wavenet_sample_by_sample(kind):
    network, samples = network_of(kind), 45
    noise, condition = noise_of(network, 2), condition_of(network, 2)
    sampler = native(SoundSymbols(network), network.likelihood)
    condition = only_timed(condition)
    assert not sampler.fault(samples, condition)
    levels = sampler(noise, condition, 1.0).numpy()
    assert len(np.unique(levels)) > 5
    expected = network.likelihood.sample(conditionals(network, levels), noise, 1.0).numpy()
    # Rounding may move a value across the border between two levels.
    assert np.abs(expected - levels).max() <= 1 and (expected == levels).mean() > 0.95


def paced(pieces, seconds_of):
    """Return the ways that are chosen for pieces of which `seconds_of(piece, way)` is the time."""
    pace, ways = Pace(), []
    for piece in range(pieces):
        ways.append(pace.choose())
        pace.record(ways[-1], seconds_of(piece, ways[-1]), steps=1)
    return ways


def test_the_slower_way_of_working_is_left_and_tried_again_whatever_interrupts():
    trials, busy = 2 * Pace.RUNS, 2 * Pace.RUNS
    ways = paced(300, lambda piece, way: 2.0 if way else 1.0)
    assert not ways[0]  # with nothing known, threads apart
    assert sum(ways[:trials]) == Pace.RUNS
    assert 1 <= sum(ways[trials:]) <= 300 / Pace.BETWEEN
    # One interruption chooses no slower way, and neither does a long piece with more to read.
    ways = paced(200, lambda piece, way: 9.0 if piece % 7 == 0 else 1.0 if way else 2.0)
    assert sum(ways[10:]) >= 186 - 5
    ways = paced(400, lambda piece, way: (1.0 if way else 1.1) * (1 if piece % 40 < 10 else 1.3))
    assert sum(ways[trials:]) >= 0.95 * (400 - trials)
    # A start next to another program is forgotten after some trials.
    ways = paced(800, lambda piece, way: 1.0 if not way else 9.0 if piece < busy else 0.5)
    assert not any(ways[busy : busy + 100]) and all(ways[-30:])


@pytest.mark.parametrize("kind", ["mixture", BUNCHES])
def test_both_ways_are_tried_before_the_first_sample_and_leave_no_trace(kind):
    network = network_of(kind)
    sampler = NumbaSampler(network, 2) if kind == "mixture" else NumbaVocoderSampler(network, 2)
    state = sampler.initial_state(1)
    assert state.pace.is_settled
    assert state.position == 0
    assert not any(np.any(group.buffers["rings"]) for group in state.groups)


def test_a_context_stack_is_followed_block_by_block():
    config = WaveNetConfig(
        layers=4, stacks=2, filter_width=2, residual_channels=8, gate_channels=8, skip_channels=8,
        components=2, context_layers=2, context_block_samples=8, context_channels=4,
    )  # fmt: skip
    network = WaveNet(config, seed=4)
    sampler = NumbaSampler(network, 1)
    levels = np.random.default_rng(6).integers(0, 65536, [2, 40], np.int32)
    state, chunks = sampler.initial_state(2), []
    for start in range(0, 40, 8):
        parameters, state = sampler.conditionals(state, None, levels[:, start : start + 8])
        chunks.append(parameters)
    expected = network(network.inputs(levels))
    np.testing.assert_allclose(np.concatenate(chunks, 1), expected, atol=2e-5)
    with pytest.raises(ValueError, match="8 samples of a context block, got 5"):
        sampler.conditionals(state, None, levels[:, :5])


@pytest.mark.parametrize("kind", ["mixture", BUNCHES])
def test_not_a_number_is_generated_as_silence_not_as_a_crash(kind):
    network = network_of(kind)
    network.head2_bias.assign(network.head2_bias * np.nan)
    assert set(generate(network, 1)[0].ravel()) == {0}


def test_what_does_not_fit_the_sampler_is_refused():
    mixture, softmax = (NumbaSampler(WaveNet(NETWORKS[kind]), 1) for kind in ("mixture", "softmax"))
    for shape in ((1, 45, 2), (2, 45, 1), (2, 45)):
        with pytest.raises(ValueError, match="`noise` must be"):
            mixture.generate_chunk(mixture.initial_state(2), None, np.zeros(shape))
    for kind in ("gaussian", "prediction"):
        sampler = sampler_for(network_of(kind), threads=1)
        with pytest.raises(ValueError, match="`condition` must be"):
            noise = noise_of(network_of(kind), 1)
            sampler.generate_chunk(sampler.initial_state(1), None, noise)
    with pytest.raises(ValueError, match="`levels` must be"):
        softmax.prime(softmax.initial_state(1), None, [[0, 32]])
    network = network_of(BUNCHES)
    noise, condition = noise_of(network, 1, 42), condition_of(network, 1, 42)
    with pytest.raises(ValueError, match="whole bunches of 4"):
        sampler = NumbaVocoderSampler(network, 1)
        sampler.generate_chunk(sampler.initial_state(1), condition, noise)
    with pytest.raises(ValueError, match="whole blocks of 4"):
        sampler = native(SoundSymbols(network), network.likelihood)
        sampler.advance(noise, only_timed(condition), 1.0, sampler.begin(1, 42))


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
    network = WaveNet(SHALLOW)
    network.likelihood = Skewed(65536, 3)
    with pytest.raises(ValueError, match=r"^`network` must be one of .* got WaveNet of Skewed"):
        NumbaSampler(network)
    request = Request(num_samples=8, seed=3)
    own, auto = (generation.generate(network, request, name) for name in ("cached", "auto"))
    np.testing.assert_array_equal(auto, own)


def test_a_gaussian_mixture_with_linear_prediction_is_drawn_as_the_network_says():
    config = dataclasses.replace(SHALLOW, likelihood="gaussian-mixture", compute_dtype="float64")
    network, request = WaveNet(config, seed=2), Request(num_samples=12, seed=3)
    levels = [generation.generate(network, request, name) for name in ("auto", "naive")]
    np.testing.assert_array_equal(*levels)
    parameters = network(network.inputs(tf.constant(levels[0])))
    noise = network.likelihood.noise(3, [0], 0, 12)
    np.testing.assert_array_equal(network.likelihood.sample(parameters, noise), levels[0])
    with pytest.raises(ValueError, match="got WaveNet of GaussianMixture; sample it by cached"):
        generation.generate(network, request, "numba")


def test_temperature_zero_takes_the_larger_of_near_equal_logits():
    network = WaveNet(NETWORKS["softmax"])
    for weight in network.variables:
        weight.assign(tf.zeros_like(weight))
    network.head2_bias.assign(tf.constant([0.0] * 20 + [1e-7] + [0.0] * 11))
    noise = np.linspace(0.01, 0.99, 40, dtype=np.float32)[None, :, None]
    sampler = NumbaSampler(network, 1)
    levels = sampler.generate_chunk(sampler.initial_state(1), None, noise, 0.0)[0]
    np.testing.assert_array_equal(levels, np.full([1, 40], 20))
