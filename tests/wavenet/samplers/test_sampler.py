"""All samplers are one sampler: naive, compiled, in chunks, primed, alone or in a batch."""

import dataclasses
import functools

import networks
import numpy as np
import pytest
import tensorflow as tf
import vocoders
from marks import some_slow
from networks import SOME_SLOW, WINDOWS, condition_of, levels_of

from wavenet.samplers import Request, generate, stream
from wavenet.samplers.xla import Rings, XlaSampler

BATCH, SAMPLES = 2, 48
TOLERANCE = 1e-4
# In float32 a 16-bit draw may fall on either side of the border between two levels, because sums
# run in another order; from there on two sounds differ by a little. float64 leaves no such room.
NEAR = 8
CHUNKED = some_slow(["mixture", "gaussian, frames", "mixture, context", WINDOWS], ("mixture",))
BUNCHES, ONE_BY_ONE = "prediction, pitch, bunches of 4", "prediction, pitch"
VOCODERS = some_slow([BUNCHES, ONE_BY_ONE], (ONE_BY_ONE,))


@functools.cache
def network_of(kind, **fields):
    """A network of a kind, which keeps the samplers that were compiled for it."""
    make = vocoders.vocoder_of if kind in vocoders.KINDS else networks.network_of
    return make(kind, **fields)


def frames_of(network, samples, batch=BATCH):
    config = network.config
    if not config.feature_channels:
        return None
    if config.conditioner_units:
        return vocoders.frames_of(network, batch, samples).numpy()
    shape = (batch, -(-samples // config.hop_samples), config.feature_channels)
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def request_of(network, samples=SAMPLES, rows=(0, 1), **fields):
    speaker = None
    if network.config.speakers:
        speaker = np.arange(2, dtype=np.int32)[list(rows)]
    frames = frames_of(network, samples)
    frames = None if frames is None else frames[list(rows)]
    return Request(samples, 3, tuple(rows), frames, speaker, **fields)


def assert_same_sound(network, one, other):
    assert one.shape == other.shape
    assert len(np.unique(one)) > 5
    exact = network.config.levels <= 256 or network.config.compute_dtype == "float64"
    near = 0 if exact else NEAR
    assert np.abs(one.astype(int) - other).max() <= near


@pytest.mark.parametrize(
    "compute_dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", [*SOME_SLOW, WINDOWS])
def test_cached_sampler_equals_naive(kind, compute_dtype):
    network = network_of(kind, compute_dtype=compute_dtype)
    reference = generate(network, request_of(network), "naive")
    assert_same_sound(network, reference, generate(network, request_of(network), "xla"))


@pytest.mark.parametrize("kind", [*SOME_SLOW, WINDOWS])
def test_conditionals_while_sampling_equal_teacher_forced_ones(kind):
    network = network_of(kind)
    sampler = XlaSampler(network)
    condition = condition_of(network, BATCH, SAMPLES)
    length = network.config.context_block_samples if network.config.context_layers else SAMPLES
    noise = network.likelihood.noise(3, [0, 1], 0, SAMPLES)
    state, levels, drawn = sampler.initial_state(BATCH), [], []
    for t in range(0, SAMPLES, length):
        part = None if condition is None else condition[:, t : t + length]
        made, parameters, state = sampler.generate_chunk(state, part, noise[:, t : t + length])
        levels.append(made)
        drawn.append(parameters)
    forced = network(network.inputs(tf.concat(levels, 1)), condition)
    np.testing.assert_allclose(tf.concat(drawn, 1), forced, atol=TOLERANCE)


@pytest.mark.parametrize("kind", CHUNKED)
def test_chunks_equal_the_whole(kind):
    network = network_of(kind)
    request = request_of(network, 150)
    whole = np.concatenate(list(stream(network, request, "xla", 256)), 1)
    parts = list(stream(network, request, "xla", 64))
    if not network.config.context_layers:
        assert [part.shape[1] for part in parts] == [64, 64, 22]
    assert_same_sound(network, whole, np.concatenate(parts, 1))


@functools.cache
def drawn_by_definition(kind):
    """A vocoder, a request, and the levels that the slow sampler draws, made once."""
    network = network_of(kind, compute_dtype="float64")
    request = request_of(network, 136, temperature=0.6)
    return network, request, generate(network, request, "naive")


@pytest.mark.parametrize(
    ("kind", "chunk_samples"),
    [
        (BUNCHES, 66),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (BUNCHES, 100),
                (ONE_BY_ONE, 64),
                *((kind, 256) for kind in vocoders.KINDS),
            ]
        ),
    ],
)
def test_chunks_of_a_vocoder_are_the_sound_of_its_definition(kind, chunk_samples):
    network, request, whole = drawn_by_definition(kind)
    parts = list(stream(network, request, "xla", chunk_samples))
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


@pytest.mark.parametrize("kind", ["softmax, speakers", "gaussian, frames", *VOCODERS])
def test_a_row_is_the_same_alone_and_in_a_batch(kind):
    exact = dict(compute_dtype="float64") if kind in vocoders.KINDS else {}
    network = network_of(kind, **exact)
    both = generate(network, request_of(network), "xla")
    alone = generate(network, request_of(network, rows=(1,)), "xla")
    assert_same_sound(network, both[1:], alone)
    assert (both[0] != both[1]).any()


def test_temperature_zero_leaves_no_chance():
    network = network_of("gaussian, frames")
    request = request_of(network, temperature=0.0)
    one = generate(network, request, "xla")
    other = generate(network, Request(SAMPLES, 4, (0, 1), request.frames, temperature=0.0), "xla")
    np.testing.assert_array_equal(one, other)


def test_a_prime_is_continued_not_repeated():
    network = network_of("softmax, speakers")
    prime = levels_of(network, BATCH, 50)
    request = request_of(network, 20, prime=prime)
    reference = generate(network, request, "naive")
    assert reference.shape == (BATCH, 20)
    for backend in ("xla", "numba"):
        assert_same_sound(network, reference, generate(network, request, backend))


@pytest.mark.parametrize("kind", VOCODERS)
def test_a_prime_of_a_vocoder_is_continued(kind):
    network, request, whole = drawn_by_definition(kind)
    request = dataclasses.replace(request, num_samples=68, prime=whole[:, :68])
    np.testing.assert_array_equal(generate(network, request, "xla"), whole[:, 68:])


def test_a_prime_of_half_a_bunch_is_refused():
    network = network_of("bunches of 4")
    request = request_of(network, 40, prime=vocoders.levels_of(network, 2, 82))
    with pytest.raises(ValueError, match="`prefix` must be a multiple of 4"):
        generate(network, request)


def test_rings_hold_each_past_input_where_it_is_read():
    rings = Rings(network_of("mixture").config)
    for t in range(30):
        for layer, dilation in enumerate(rings.dilations):
            for tap in range(rings.taps):
                source = t - (rings.taps - tap) * dilation
                if source >= 0:
                    read = rings.reads(np.int32(t))[layer, tap]
                    assert read == rings.writes(np.int32(source))[layer]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_samples": 0}, "`num_samples` must be at least 1, got 0."),
        ({"num_samples": 5, "temperature": -1.0}, "`temperature` must be at least 0, got -1.0."),
    ],
)
def test_impossible_requests_are_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        generate(network_of("mixture"), Request(**fields))


def test_frames_too_few_for_the_sound_are_refused():
    network = network_of("gaussian, frames")
    with pytest.raises(ValueError, match="`frames` must cover 100 samples, they cover 16"):
        generate(network, Request(100, frames=np.zeros([1, 1, 7], np.float32)), "xla")
