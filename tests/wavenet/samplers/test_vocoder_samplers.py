"""A vocoder's samplers draw the same levels, alone, in batches, in chunks and after a prime."""

import dataclasses
import functools

import numpy as np
import pytest
import vocoders
from vocoders import SOME_SLOW, frames_of, levels_of

from wavenet.samplers.generation import Request, generate, stream

SAMPLES = 120
ONE_BY_ONE = pytest.param("prediction, pitch", marks=pytest.mark.slow)
TWO_KINDS = ["prediction, pitch, bunches of 4", ONE_BY_ONE]


@functools.cache
def vocoder_of(kind, **changes):
    """A network of a kind, which keeps the samplers that were compiled for it."""
    return vocoders.vocoder_of(kind, **changes)


def request_for(network, rows=(0, 1), samples=SAMPLES, **changes):
    frames = frames_of(network, max(rows) + 1, samples).numpy()[list(rows)]
    return Request(samples, seed=3, rows=tuple(rows), frames=frames, **changes)


@pytest.mark.parametrize("kind", SOME_SLOW)
def test_cached_sampling_equals_the_definition(kind):
    network = vocoder_of(kind, compute_dtype="float64")
    request = request_for(network, temperature=0.6 if "pitch" in kind else 1.0)
    np.testing.assert_array_equal(
        generate(network, request, "xla"), generate(network, request, "naive")
    )


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_row_alone_equals_the_row_in_a_batch(kind):
    network = vocoder_of(kind, compute_dtype="float64")
    together = generate(network, request_for(network), "xla")
    for row in (0, 1):
        alone = generate(network, request_for(network, rows=(row,)), "xla")
        np.testing.assert_array_equal(alone[0], together[row])


@functools.cache
def drawn_by_definition(kind):
    """A network, a request, and the levels that the slow sampler draws, made once."""
    network = vocoder_of(kind, compute_dtype="float64")
    return network, request_for(network), generate(network, request_for(network), "naive")


@pytest.mark.parametrize(
    ("kind", "chunk_samples"),
    [
        ("prediction, pitch, bunches of 4", 66),
        pytest.param("prediction, pitch, bunches of 4", 100, marks=pytest.mark.slow),
        pytest.param(*ONE_BY_ONE.values, 64, marks=ONE_BY_ONE.marks),
    ],
)
def test_chunks_equal_the_whole(kind, chunk_samples):
    network, request, whole = drawn_by_definition(kind)
    parts = list(stream(network, request, "xla", chunk_samples))
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_prime_is_gone_on_from(kind):
    network = vocoder_of(kind, compute_dtype="float64")
    prime = levels_of(network, 2, 80)
    request = dataclasses.replace(request_for(network), num_samples=40, prime=prime)
    np.testing.assert_array_equal(
        generate(network, request, "xla"), generate(network, request, "naive")
    )


def test_a_prime_of_half_a_bunch_is_refused():
    network = vocoder_of("bunches of 4")
    request = dataclasses.replace(
        request_for(network), num_samples=40, prime=levels_of(network, 2, 82)
    )
    with pytest.raises(ValueError, match="`prime` must be a multiple of 4"):
        generate(network, request)
