"""Passes iterated to their fixed point make the sound of the cached sampler, in fewer passes."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from networks import WINDOWS, network_of
from vocoders import frames_of, vocoder_of

from onepass.samplers.cached import FixedPointSampler
from wavenet.front import PassCount, Request
from wavenet.samplers.generation import stream
from wavenet.samplers.symbols import BlockPass
from wavenet.samplers.vocoder import VocoderSampler
from wavenet.samplers.xla import XlaSampler

SAMPLES = 60
KIND = "softmax, speakers"


@functools.cache
def softmax():
    """In float64: sums in another order draw the same levels."""
    return network_of(KIND, compute_dtype="float64")


def by_passes(network, window):
    """The sampler of a network by passes over a window."""
    return FixedPointSampler(BlockPass(network), network.likelihood, window)


@functools.cache
def sampler_of(kind):
    """A sampler of the softmax network, and its chunk without XLA, which takes longer."""
    sampler = XlaSampler(softmax()) if kind == "cached" else by_passes(softmax(), kind)
    return sampler, tf.function(sampler.chunk, autograph=False)


def drawn(kind, seed=3, rows=(0, 1), temperature=1.0, prime=None, chunk=20):
    """Levels of the softmax network, and the passes they took."""
    (sampler, generate_chunk), speakers = sampler_of(kind), tf.constant(rows) % 3
    condition = softmax().condition(None, speakers, SAMPLES)
    state, first = sampler.initial_state(len(rows)), 0
    if prime is not None:
        first = prime.shape[1]
        state = sampler.prime(state, condition[:, :first], tf.constant(prime))
    parts, passes = [], 0
    for start in range(first, SAMPLES, chunk):
        noise = softmax().likelihood.noise(seed, rows, start, chunk)
        here = condition[:, start : start + chunk]
        levels, found, state = generate_chunk(state, here, noise, tf.constant(temperature))
        parts.append(levels)
        passes += int(found) if found.shape == [] else 0
    return np.concatenate(parts, 1), passes


@pytest.mark.parametrize(
    "asked",
    [
        dict(seed=0),
        dict(seed=2**40 + 1),
        dict(temperature=0.0),
        dict(temperature=0.6),
        dict(prime=np.tile(np.arange(100, 120, dtype=np.int32), (2, 1))),
    ],
)
def test_it_draws_what_the_cached_sampler_draws(asked):
    cached, _ = drawn("cached", **asked)
    iterated, passes = drawn(16, **asked)
    np.testing.assert_array_equal(iterated, cached)
    assert len(np.unique(cached)) > 1
    assert 4 <= passes < SAMPLES


def test_batch_chunks_and_window_change_the_passes_and_not_the_sound():
    whole, _ = drawn(16)
    np.testing.assert_array_equal(drawn(5, rows=(1,), chunk=SAMPLES)[0], whole[1:])


def test_a_request_by_xla_counts_its_passes():
    asked = Request(SAMPLES, 3, (0, 1), speaker=np.array([0, 1], np.int32))
    count = PassCount()
    parts = list(stream(softmax(), asked, "fixed-point", count=count))
    np.testing.assert_array_equal(np.concatenate(parts, 1), drawn("cached")[0])
    assert 1.0 < count.samples_per_pass < SAMPLES


def test_a_vocoder_of_bunches_is_sampled_so_too():
    network = vocoder_of("prediction, pitch, bunches of 4", compute_dtype="float64")
    noise = network.likelihood.noise(3, [0, 1], 0, 28)
    condition = network.condition(frames_of(network, 2, 28), None, 28)
    sounds = []
    for sampler in (VocoderSampler(network), by_passes(network, 14)):
        state = sampler.initial_state(2)
        sounds.append(sampler.chunk(state, condition, noise, tf.constant(1.0))[0])
    np.testing.assert_array_equal(*sounds)


@pytest.mark.parametrize("kind", some_slow(["mixture, context", WINDOWS], (WINDOWS,)))
def test_a_network_that_reads_blocks_is_refused(kind):
    with pytest.raises(ValueError, match="`network` must have no context stack"):
        BlockPass(network_of(kind))
