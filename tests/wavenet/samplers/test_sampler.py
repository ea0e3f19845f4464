"""All samplers are one sampler: naive, compiled, in chunks, primed, alone or in a batch."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import vocoders
from marks import some_slow
from networks import SOME_SLOW, WINDOWS, levels_of
from vocoders import condition_for

from onepass.networks.conditions import NOTHING, only_timed
from wavenet.front import PassCount
from wavenet.network import Queues
from wavenet.samplers.generation import Request, SpeculativeSampler, generate, stream
from wavenet.samplers.symbols import SoundSymbols

BATCH, SAMPLES = 2, 48
BUNCHES, ONE_BY_ONE = "prediction, pitch, bunches of 4", "prediction, pitch"


# Networks keep the samplers that were compiled for them.
network_of = functools.cache(vocoders.network_for)


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


VOCODER_KINDS = some_slow(vocoders.KINDS, (ONE_BY_ONE, "bunches of 4"))


@pytest.mark.parametrize("kind", [*SOME_SLOW, WINDOWS, *VOCODER_KINDS])
def test_steps_give_the_conditionals_of_the_whole_network(kind):
    network = network_of(kind, compute_dtype="float64")
    levels, condition = levels_of(network, BATCH, SAMPLES), condition_for(network, BATCH, SAMPLES)
    symbols = SoundSymbols(network)
    step, state, found = symbols.stepper(only_timed(condition)), symbols.initial_state(BATCH), []
    for time in range(SAMPLES):
        parameters, after = step(time, time % symbols.block, state)
        found.append(parameters)
        state = {"input": symbols.read(levels[:, time : time + 1]), "network": after}
    expected = network(network.inputs(levels), condition)
    np.testing.assert_allclose(tf.concat(found, 1), expected, atol=1e-12)


@pytest.mark.parametrize("kind", [*SOME_SLOW, *VOCODER_KINDS])
def test_passes_over_pieces_give_the_conditionals_of_the_whole_network(kind):
    network = network_of(kind, compute_dtype="float64")
    symbols = SoundSymbols(network)
    if not symbols.has_chunks:
        with pytest.raises(ValueError, match="`inputs` must hold 1 sample, got 2"):
            symbols.chunk(tf.zeros([1, 2]), symbols.initial_state(1)["network"], NOTHING)
        return
    levels, condition = levels_of(network, BATCH, SAMPLES), condition_for(network, BATCH, SAMPLES)
    first, found, start = symbols.initial_state(BATCH), [], 0
    inputs, state = tf.concat([first["input"], symbols.read(levels)[:, :-1]], 1), first["network"]
    for count in (8, 4, 20, 4, 12):
        part = None if condition is None else condition[:, start : start + count]
        part = only_timed(part)
        parameters, state = symbols.chunk(inputs[:, start : start + count], state, part)
        found.append(parameters)
        start += count
    expected = network(network.inputs(levels), condition)
    np.testing.assert_allclose(tf.concat(found, 1), expected, atol=1e-12)


@pytest.mark.parametrize(
    "kind",
    some_slow(
        ["mixture", "gaussian, frames", "mixture, context", WINDOWS, BUNCHES, ONE_BY_ONE],
        ("gaussian, frames", "mixture, context", WINDOWS, ONE_BY_ONE),
    ),
)
def test_cached_chunks_join_to_what_whole_passes_draw(kind):
    network, request, whole = drawn_by_definition(kind)
    parts = list(stream(network, request, "cached", 66))
    assert len(parts) > 1 and len(np.unique(whole)) > 5
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


@functools.cache
def drawn_by_definition(kind):
    """A vocoder, a request, and the levels that the slow sampler draws, made once."""
    network = network_of(kind, compute_dtype="float64")
    request = request_of(network, 136, temperature=0.6)
    return network, request, generate(network, request, "naive")


def test_a_prime_of_half_a_bunch_is_continued():
    network, request, whole = drawn_by_definition(BUNCHES)
    request = dataclasses.replace(request, num_samples=74, prime=whole[:, :62])
    np.testing.assert_array_equal(generate(network, request), whole[:, 62:])


def test_queues_hold_each_past_input_where_it_is_read():
    dilations = (1, 2, 4, 1, 2)
    queues = Queues([2 * dilation for dilation in dilations], dilations)
    for t in range(30):
        for layer, dilation in enumerate(dilations):
            for tap in range(2):
                source = t - (2 - tap) * dilation
                if source >= 0:
                    read = queues.reads(np.int32(t))[layer, tap]
                    assert read == queues.writes(np.int32(source))[layer]


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
        generate(network, Request(100, frames=np.zeros([1, 1, 7], np.float32)), "cached")


def test_a_fixed_point_is_the_cached_sound_in_fewer_passes_than_samples():
    network, count = network_of("softmax, speakers", compute_dtype="float64"), PassCount()
    parts = list(stream(network, request_of(network), "fixed-point", count=count))
    expected = generate(network, request_of(network), "cached")
    np.testing.assert_array_equal(np.concatenate(parts, 1), expected)
    assert 1.0 < count.samples_per_pass < SAMPLES and count.acceptance == 1.0


@pytest.mark.parametrize("kind", ["mixture, context", WINDOWS])
def test_a_network_that_reads_blocks_has_no_fixed_point(kind):
    with pytest.raises(ValueError, match="`network` must have no context stack"):
        SpeculativeSampler(network_of(kind))
