"""Passes iterated to their fixed point make the sound of the cached sampler, in fewer passes."""

import functools

import numpy as np
import pytest
from marks import some_slow
from networks import WINDOWS, network_of
from vocoders import frames_of, vocoder_of

from wavenet.front import PassCount
from wavenet.samplers import Request, SpeculativeSampler, generate, stream

SAMPLES = 60


@functools.cache
def softmax():
    """In float64: sums in another order draw the same levels."""
    return network_of("softmax, speakers", compute_dtype="float64")


def request_of(seed=3, rows=(0, 1), samples=SAMPLES, **fields):
    speaker = np.array(rows, np.int32) % 3
    return Request(samples, seed, rows, speaker=speaker, **fields)


@functools.cache
def sampler_of(window):
    return SpeculativeSampler(softmax(), block_samples=window)


def by_passes(request, window=16):
    """Levels, and the passes they took."""
    count = PassCount()
    return np.concatenate(list(sampler_of(window).stream(request, count)), 1), count.passes


@pytest.mark.parametrize(
    "asked",
    [
        dict(seed=0),
        dict(seed=2**40 + 1),
        dict(temperature=0.0),
        dict(temperature=0.6),
        dict(samples=40, prime=np.tile(np.arange(100, 120, dtype=np.int32), (2, 1))),
    ],
)
def test_it_draws_what_the_cached_sampler_draws(asked):
    cached = generate(softmax(), request_of(**asked), "cached")
    iterated, passes = by_passes(request_of(**asked))
    np.testing.assert_array_equal(iterated, cached)
    assert len(np.unique(cached)) > 1
    assert 4 <= passes < SAMPLES


def test_batch_and_window_change_the_passes_and_not_the_sound():
    whole, _ = by_passes(request_of())
    np.testing.assert_array_equal(by_passes(request_of(rows=(1,)), 5)[0], whole[1:])


def test_a_request_counts_its_passes():
    count = PassCount()
    parts = list(stream(softmax(), request_of(), "fixed-point", count=count))
    np.testing.assert_array_equal(np.concatenate(parts, 1), by_passes(request_of())[0])
    assert 1.0 < count.samples_per_pass < SAMPLES and count.acceptance == 1.0


def test_a_vocoder_of_bunches_is_sampled_so_too():
    network = vocoder_of("prediction, pitch, bunches of 4", compute_dtype="float64")
    request = Request(27, 3, (0, 1), frames_of(network, 2, 27).numpy())
    sampler = SpeculativeSampler(network, block_samples=14)
    assert sampler.block_samples == 16
    found = np.concatenate(list(sampler.stream(request, PassCount())), 1)
    np.testing.assert_array_equal(found, generate(network, request, "cached"))


@pytest.mark.parametrize("kind", some_slow(["mixture, context", WINDOWS], (WINDOWS,)))
def test_a_network_that_reads_blocks_is_refused(kind):
    with pytest.raises(ValueError, match="`network` must have no context stack"):
        SpeculativeSampler(network_of(kind))
