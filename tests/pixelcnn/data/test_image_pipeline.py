"""Batches of images, and captions as codes."""

import types

import numpy as np
import pytest

from onepass.foundation.errors import UserError
from pixelcnn.data.batch_sampling import batches_of
from pixelcnn.data.captions import CODES, NUM_CODES, encode_caption
from pixelcnn.data.corpus import ImageRules, read_corpus
from pixelcnn.data.dataset import ImageDataset


def test_a_caption_is_its_characters_a_closing_code_and_zeros():
    codes = encode_caption("  A ﬁn\té?")
    letters = [CODES[character] for character in "a fin "]
    unknown, closing = NUM_CODES - 2, NUM_CODES - 1
    assert codes.tolist() == [*letters, unknown, CODES["?"], closing] + [0] * 192
    assert 0 not in CODES.values() and max(CODES.values()) == NUM_CODES - 3
    assert encode_caption("x" * 200)[-1] == closing


def test_a_caption_that_is_too_long_is_refused():
    for text, length in {"x" * 10_000: "10,000", "\ufdfa" * 12: "216"}.items():
        with pytest.raises(UserError) as caught:
            encode_caption(text)
        assert str(caught.value) == f"A caption may have 200 characters, got {length}."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Seven images for train whose first pixel is their number and whose columns rise."""
    path = tmp_path_factory.mktemp("data")
    images = np.broadcast_to(np.arange(8, dtype=np.uint8) * 10, (10, 8, 8)).copy()
    images[:, 0, :] += np.arange(10, dtype=np.uint8)[:, None]
    captions = np.array([f"number {i}" for i in range(10)])
    for split, part in {"train": slice(0, 7), "dev": slice(0, 3)}.items():
        np.savez(
            path / f"x_{split}.npz",
            images=images[part],
            maps=images[part],
            labels=np.arange(10)[part],
            captions=captions[part],
        )
    return read_corpus(path, ImageRules(8, 1))


def drawn(corpus, count, start=0, shard=(0, 1), **settings):
    """Batches of all that train has."""
    settings = {"kind": "images", "flip": False, **settings}
    batch = batches_of(corpus.splits["train"].stored, settings)
    return [batch(step, *shard) for step in range(start, start + count)]


OPTIONS = {"batch_size": 3, "seed": 5, "flip": True, "shift": 1}


def test_every_image_comes_once_an_epoch_with_all_that_is_its_own(corpus):
    batches = drawn(corpus, 14, batch_size=3, seed=1)
    labels = np.concatenate([batch["label"] for batch in batches]).reshape(6, 7)
    assert all(sorted(epoch) == list(range(7)) for epoch in labels.tolist())
    assert len({tuple(epoch) for epoch in labels.tolist()}) > 1
    for batch in batches:
        np.testing.assert_array_equal(batch["levels"][:, 0, 0, 0], batch["label"])
        np.testing.assert_array_equal(batch["map"], batch["levels"][..., 0])
        for label, codes in zip(batch["label"], batch["caption"], strict=True):
            np.testing.assert_array_equal(codes, encode_caption(f"number {label}"))
        assert all(array.dtype == np.int32 for array in batch.values())


def test_a_share_of_conditions_is_dropped_and_nothing_else_changes(corpus):
    options = {"batch_size": 50, **{name: OPTIONS[name] for name in ("seed", "flip", "shift")}}
    whole = drawn(corpus, 8, **options)
    some = drawn(corpus, 8, dropout=0.25, **options)
    dropped = np.concatenate([batch["label"] == -1 for batch in some])
    assert 0.17 < dropped.mean() < 0.33
    for before, after in zip(whole, some, strict=True):
        gone = after["label"] == -1
        assert not after["caption"][gone].any()
        for name in ("label", "caption"):
            np.testing.assert_array_equal(after[name][~gone], before[name][~gone])
        for name in before.keys() - {"label", "caption"}:
            np.testing.assert_array_equal(after[name], before[name])


def test_a_batch_may_be_larger_than_the_corpus(corpus):
    (batch,) = drawn(corpus, 1, batch_size=21, seed=1)
    assert np.bincount(batch["label"]).tolist() == [3] * 7


def test_another_seed_gives_other_batches_and_no_two_examples_share_their_seed(corpus):
    one, two = (drawn(corpus, 40, batch_size=3, seed=s) for s in (1, 2))
    assert any(np.any(a["label"] != b["label"]) for a, b in zip(one, two, strict=True))
    seeds = {tuple(seed) for batch in one + two for seed in batch["seed"].tolist()}
    assert len(seeds) == 240


def test_half_of_the_images_are_mirrored_with_their_maps(corpus):
    batches = drawn(corpus, 4, batch_size=50, seed=3, flip=True)
    levels = np.concatenate([batch["levels"] for batch in batches])
    mirrored = levels[:, 7, 0, 0] == 70
    assert 70 < np.sum(mirrored) < 130
    assert np.all(levels[~mirrored, 7, 0, 0] == 0)
    maps = np.concatenate([batch["map"] for batch in batches])
    np.testing.assert_array_equal(maps, levels[..., 0])


def test_images_are_moved_to_every_place_with_their_maps_and_their_edges_go_on(corpus):
    batches = drawn(corpus, 4, batch_size=50, seed=3, shift=2)
    levels = np.concatenate([batch["levels"] for batch in batches])
    assert levels.shape == (200, 8, 8, 1)
    columns = levels[:, 0, :, 0] - levels[:, 0, :, 0].min(1, keepdims=True)
    ramp = np.pad(np.arange(8) * 10, 2, mode="edge")
    wanted = {tuple((ramp[k : k + 8] - ramp[k : k + 8].min()).tolist()) for k in range(5)}
    assert {tuple(row) for row in columns.tolist()} == wanted
    maps = np.concatenate([batch["map"] for batch in batches])
    np.testing.assert_array_equal(maps, levels[..., 0])


def test_dev_gives_every_image_once_in_order(corpus):
    nothing, kind = types.SimpleNamespace(crop=0), types.SimpleNamespace(kind="class")
    config = types.SimpleNamespace(conditioning=kind, data=nothing)
    dataset = ImageDataset(config, corpus).dev(2)
    batches = [{k: v.numpy() for k, v in batch.items()} for batch in dataset]
    assert [len(batch["label"]) for batch in batches] == [2, 1]
    levels = np.concatenate([batch["levels"] for batch in batches])
    np.testing.assert_array_equal(levels, corpus.splits["dev"].images)
    assert batches[0].keys() == drawn(corpus, 1, **OPTIONS)[0].keys()
