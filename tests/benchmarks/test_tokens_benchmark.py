"""What `python -m benchmarks tokens` times draws the same tokens."""

import numpy as np
import pytest

from benchmarks import tokens
from benchmarks.handwritten_cache import HandwrittenCache

SHAPE = tokens.Shape(1, 16, 2, 32, 64)


def test_the_handwritten_cache_draws_what_the_derived_step_and_whole_passes_draw():
    network = tokens.random_gpt(SHAPE)
    written = HandwrittenCache(network).tokens(2, 40).numpy()
    model = tokens._model(network, SHAPE)
    np.testing.assert_array_equal(tokens._drawn(model, 2, 40), written)
    np.testing.assert_array_equal(tokens._drawn(model, 2, 40, "naive"), written)
    assert len(np.unique(written)) > 1


def test_the_windowed_network_sees_its_window_alone():
    network = tokens.windowed(tokens.Shape(1, 16, 2, 32))
    given = np.random.default_rng(0).integers(0, 32, [1, tokens.WINDOW + 40])
    other = given.copy()
    other[:, 20] = (given[:, 20] + 1) % 32
    is_changed = abs(network(given) - network(other)).numpy().max(-1) > 1e-6
    changed = np.flatnonzero(is_changed[0])
    assert (changed[0], changed[-1]) == (20, 20 + tokens.WINDOW - 1)


@pytest.mark.parametrize(("position", "chunk"), [(tokens.EARLY, 3), (tokens.LATE, 80)])
def test_chunks_are_named_by_their_first_position(position, chunk):
    parts = (np.zeros([1, tokens.CHUNK]) for _ in range(81))
    assert [first for first, _ in tokens._chunk_seconds(parts)][chunk] == position
