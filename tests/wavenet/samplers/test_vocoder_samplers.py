"""A vocoder's samplers draw the same levels, alone, in batches, in chunks and after a prime."""

import dataclasses

import numpy as np
import pytest
from vocoders import KINDS, frames_of, levels_of, vocoder_of

from wavenet.samplers.generation import Request, generate, stream

SAMPLES = 120


def request_for(network, rows=(0, 1), samples=SAMPLES, **changes):
    frames = frames_of(network, max(rows) + 1, samples).numpy()[list(rows)]
    return Request(samples, seed=3, rows=tuple(rows), frames=frames, **changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_cached_sampling_equals_the_definition(kind, temperature):
    network = vocoder_of(kind, compute_dtype="float64")
    request = request_for(network, temperature=temperature)
    np.testing.assert_array_equal(
        generate(network, request, "xla"), generate(network, request, "naive")
    )


@pytest.mark.parametrize("kind", ["prediction, pitch, bunches of 4", "prediction, pitch"])
def test_a_row_alone_equals_the_row_in_a_batch(kind):
    network = vocoder_of(kind, compute_dtype="float64")
    together = generate(network, request_for(network), "xla")
    for row in (0, 1):
        alone = generate(network, request_for(network, rows=(row,)), "xla")
        np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize("kind", ["prediction, pitch, bunches of 4", "prediction, pitch"])
@pytest.mark.parametrize("chunk_samples", [64, 66, 100])
def test_chunks_equal_the_whole(kind, chunk_samples):
    network = vocoder_of(kind, compute_dtype="float64")
    request = request_for(network)
    parts = list(stream(network, request, "xla", chunk_samples))
    whole = generate(network, request, "naive")
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)


@pytest.mark.parametrize("kind", ["prediction, pitch, bunches of 4", "prediction, pitch"])
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
