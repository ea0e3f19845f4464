"""Passes iterated to their fixed point make the sound of the cached sampler, in fewer passes."""

import functools

import numpy as np
import pytest
from marks import some_slow
from networks import WINDOWS, network_of

from wavenet.front import PassCount
from wavenet.samplers import Request, SpeculativeSampler, stream

SAMPLES = 60


@functools.cache
def softmax():
    """Return a network in float64, where sums in another order draw the same levels."""
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


def test_a_request_counts_its_passes():
    count = PassCount()
    parts = list(stream(softmax(), request_of(), "fixed-point", count=count))
    np.testing.assert_array_equal(np.concatenate(parts, 1), by_passes(request_of())[0])
    assert 1.0 < count.samples_per_pass < SAMPLES and count.acceptance == 1.0


@pytest.mark.parametrize("kind", some_slow(["mixture, context", WINDOWS], (WINDOWS,)))
def test_a_network_that_reads_blocks_is_refused(kind):
    with pytest.raises(ValueError, match="`network` must have no context stack"):
        SpeculativeSampler(network_of(kind))
