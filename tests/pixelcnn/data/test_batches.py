"""Batches of every kind are functions of seed and step, whose shards are rows of the whole."""

import image_runs
import numpy as np
import pytest
from image_files import noise

from pixelcnn.data.batch_sampling import batches_of
from pixelcnn.data.video import read_episodes

KINDS = {
    "images": (
        lambda: {"levels": noise(7, 8, 8, 1), "label": np.arange(7), "map": noise(7, 8, 8)},
        {"flip": True, "shift": 1, "dropout": 0.3},
    ),
    "squares": (
        lambda: {str(n): noise(9, 12, 1, seed=n) for n in range(3)},
        {"side": 6, "flip": True},
    ),
    "video": (
        lambda: read_episodes(image_runs.videos()).splits["train"].stored,
        {"context": 2, "jitter": 0.3},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_a_function_of_its_seed_and_step_and_shards_make_it_up(kind):
    stored, settings = KINDS[kind][0](), {"kind": kind, "batch_size": 12, **KINDS[kind][1]}
    whole = batches_of(stored, settings | {"seed": 3})
    first, later = (batches_of(stored, settings | {"seed": 3})(step) for step in (2, 5))
    for parts in (2, 3):
        shards = [whole(2, i, parts) for i in range(parts)]
        for name, rows in first.items():
            np.testing.assert_array_equal(np.concatenate([s[name] for s in shards]), rows)
    for other in (later, batches_of(stored, settings | {"seed": 4})(2)):
        assert any((other[name] != rows).any() for name, rows in first.items() if name != "seed")
        assert not {*map(tuple, first["seed"])} & {*map(tuple, other["seed"])}
    with pytest.raises(ValueError, match="`batch_size` must be a multiple of `num_shards` 5"):
        whole(2, 0, 5)
