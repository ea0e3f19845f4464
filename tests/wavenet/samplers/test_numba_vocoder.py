"""The compiled sampler of vocoders against the network it came from, and against its own laws."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from vocoders import KINDS, SOME_SLOW, frames_of, levels_of, vocoder_of

from wavenet.samplers import NumbaVocoderSampler, Request, generate, stream
from wavenet.samplers.numba.bunches import ROOM

BUNCHES = "prediction, pitch, bunches of 4"
SAMPLES = 200
ROWS = 11


@pytest.fixture(scope="module", params=SOME_SLOW)
def network(request):
    return vocoder_of(request.param)


@pytest.fixture(scope="module", params=[BUNCHES, "prediction, pitch"])
def speaking(request):
    """A network with pitch, with and without bunches."""
    return vocoder_of(request.param)


def condition_of(network, batch, samples=SAMPLES):
    # Made for all rows at once: TensorFlow's rounding differs from batch to batch.
    whole = network.condition(frames_of(network, ROWS, samples), num_samples=samples)
    return whole[:batch].numpy()


def noise_of(network, batch, samples=SAMPLES):
    return network.likelihood.noise(7, list(range(batch)), 0, samples).numpy()


def make(network, batch, cuts=(), threads=1, temperature=1.0):
    """Levels and parameters, [batch, time, ...], made in the chunks between `cuts`."""
    sampler = NumbaVocoderSampler(network, threads)
    state = sampler.initial_state(batch)
    noise, condition = noise_of(network, batch), condition_of(network, batch)
    chunks = []
    for start, stop in itertools.pairwise([0, *cuts, SAMPLES]):
        part = slice(start, stop)
        *made, state = sampler.generate_chunk(
            state, condition[:, part], noise[:, part], temperature
        )
        chunks.append(made)
    levels, parameters = zip(*chunks, strict=True)
    return np.concatenate(levels, 1), np.concatenate(parameters, 1)


def conditionals(network, levels):
    """The sampler's parameters [batch, time, parameters] along given levels."""
    sampler = NumbaVocoderSampler(network, threads=1)
    condition = condition_of(network, *levels.shape)
    return sampler.conditionals(sampler.initial_state(len(levels)), condition, levels)[0]


def test_conditionals_are_those_of_the_network(network):
    levels = levels_of(network, 3, SAMPLES)
    expected = network(network.inputs(levels), condition_of(network, 3))
    np.testing.assert_allclose(conditionals(network, levels), expected, rtol=1e-4, atol=1e-5)


def test_conditionals_are_those_of_the_network_beyond_the_end_of_the_history(speaking):
    levels = levels_of(speaking, 2, 2 * ROOM + 100)
    expected = speaking(speaking.inputs(levels), condition_of(speaking, *levels.shape))
    np.testing.assert_allclose(conditionals(speaking, levels), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_draws_are_those_of_the_likelihood(speaking, temperature):
    levels, parameters = make(speaking, 8, temperature=temperature)
    expected = speaking.likelihood.sample(parameters, noise_of(speaking, 8), temperature).numpy()
    # Rounding may put a draw on either side of the border between two levels.
    assert np.abs(levels - expected).max() <= 1
    assert np.mean(levels == expected) > 0.98


def test_generated_parameters_are_those_of_the_levels_they_led_to(network):
    levels, parameters = make(network, 3)
    np.testing.assert_array_equal(parameters, conditionals(network, levels))


def test_levels_are_those_of_the_definition_in_float64_until_a_draw_lies_on_a_border(network):
    """Beyond a level that rounding has decided the two sounds are different ones."""
    exact, samples = vocoder_of(_kind_of(network), compute_dtype="float64"), 64
    frames = frames_of(network, 2, samples).numpy()
    request = Request(samples, seed=3, rows=(0, 1), frames=frames, temperature=0.8)
    expected, levels = generate(exact, request, "naive"), generate(network, request, "numba")
    noise = network.likelihood.noise(3, [0, 1], 0, samples)
    parameters = exact(exact.inputs(expected), exact.condition(frames, num_samples=samples))
    for row in range(2):
        differ = np.flatnonzero(levels[row] != expected[row])
        if len(differ):
            first = differ[0]
            assert _to_border(exact, parameters[row, first], noise[row, first], 0.8) < 1e-2
    assert np.mean(levels[:, :20] == expected[:, :20]) > 0.9


def test_chunks_join_to_the_whole(speaking):
    for cuts in ((4, 8, 12), (32, 64), (52, 56, 124)):
        np.testing.assert_array_equal(make(speaking, 2, cuts)[1], make(speaking, 2)[1])


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_row_is_the_same_in_any_batch(speaking, batch):
    alone = [rows[:batch] for rows in make(speaking, ROWS)]
    for part, whole in zip(make(speaking, batch), alone, strict=True):
        np.testing.assert_array_equal(part, whole)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_change_no_sample(speaking, batch, threads):
    chunks = tuple(range(12, SAMPLES, 20))  # enough for both ways of working
    many = make(speaking, batch, chunks, threads)
    np.testing.assert_array_equal(many[1], make(speaking, batch)[1])


def test_a_sound_goes_on_from_its_prime(speaking):
    sampler = NumbaVocoderSampler(speaking)
    levels, parameters = make(speaking, 2)
    condition, noise = condition_of(speaking, 2), noise_of(speaking, 2)
    state = sampler.initial_state(2)
    state = sampler.prime(state, condition[:, :80], tf.constant(levels[:, :80]))
    got = sampler.generate_chunk(state, condition[:, 80:], noise[:, 80:])
    np.testing.assert_array_equal(got[0], levels[:, 80:])
    np.testing.assert_array_equal(got[1], parameters[:, 80:])


def test_a_copy_goes_on_where_the_state_was(speaking):
    sampler = NumbaVocoderSampler(speaking)
    condition, noise = condition_of(speaking, 2), noise_of(speaking, 2)
    first, later = slice(0, 80), slice(80, SAMPLES)
    *_, state = sampler.generate_chunk(
        sampler.initial_state(2), condition[:, first], noise[:, first]
    )
    twin = state.copy()
    once, *_ = sampler.generate_chunk(state, condition[:, later], noise[:, later])
    with pytest.raises(ValueError, match="used up"):
        sampler.generate_chunk(state, condition[:, later], noise[:, later])
    again, *_ = sampler.generate_chunk(twin, condition[:, later], noise[:, later])
    np.testing.assert_array_equal(again, once)


def test_the_stream_of_chunks_is_the_whole(speaking):
    request = Request(SAMPLES, 3, (0, 1), frames_of(speaking, 2, SAMPLES).numpy())
    whole = generate(speaking, request, "numba")
    for chunk_samples in (64, 66, 100):
        parts = list(stream(speaking, request, "numba", chunk_samples))
        assert len(parts) > 1
        np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


def test_half_a_bunch_is_refused():
    network = vocoder_of("bunches of 4")
    sampler, noise = NumbaVocoderSampler(network), noise_of(network, 1, 42)
    with pytest.raises(ValueError, match="whole bunches of 4, got 42 samples"):
        sampler.generate_chunk(sampler.initial_state(1), condition_of(network, 1, 42), noise)


def test_a_missing_condition_is_refused():
    network = vocoder_of("prediction")
    sampler = NumbaVocoderSampler(network)
    with pytest.raises(ValueError, match=r"`condition` must be \[1, 200, 17\], got \[0\]"):
        sampler.generate_chunk(sampler.initial_state(1), None, noise_of(network, 1))


def test_not_a_number_is_generated_as_silence_not_as_a_crash():
    network = vocoder_of(BUNCHES)
    network.head2_bias.assign(network.head2_bias * np.nan)
    assert set(make(network, 1)[0].ravel()) == {0}


def _kind_of(network):
    return next(kind for kind in KINDS if vocoder_of(kind).config == network.config)


def _to_border(network, parameters, noise, temperature):
    """How far a draw lies from another level: in bins, or in probability of the component."""
    logits, means, log_scales = (part.numpy() for part in network.likelihood.split(parameters))
    weights = np.exp((logits - logits.max()) / temperature)
    chances = np.cumsum(weights / weights.sum())
    uniform, standard = float(noise[0]), float(noise[1])
    component = int(np.searchsorted(chances, uniform, "right"))
    value = means[component] + temperature * np.exp(log_scales[component]) * standard
    position = (value + 1.0) * 0.5 * (network.likelihood.levels - 1)
    return min(abs(position % 1.0 - 0.5), np.abs(chances[:-1] - uniform).min())
