"""Batches of images, and captions as codes."""

import dataclasses
import types

import image_runs
import numpy as np
import pytest
from image_files import fill, mistake, noise

from onepass.foundation.files import write_npz
from onepass.foundation.rules import UserError
from pixelcnn.config import PRESETS
from pixelcnn.data.batch_sampling import batches_of, open_batches
from pixelcnn.data.captions import CODES, NUM_CODES, encode_caption
from pixelcnn.data.corpus import ImageRules, read_corpus
from pixelcnn.data.dataset import ImageDataset, whole_photographs
from pixelcnn.data.image_file import fit_levels
from pixelcnn.data.video import read_episodes


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
    arrays = {"images": images, "maps": images, "labels": np.arange(10), "captions": captions}
    for split, count in {"train": 7, "dev": 3}.items():
        np.savez(path / f"x_{split}.npz", **{name: a[:count] for name, a in arrays.items()})
    return read_corpus(path, ImageRules(8, 1))


def drawn(corpus, count, start=0, shard=(0, 1), **settings):
    """Batches of all that train has."""
    settings = {"kind": "images", "flip": False, **settings}
    batch = batches_of(corpus.splits["train"].stored, settings)
    return [batch(step, *shard) for step in range(start, start + count)]


OPTIONS = {"batch_size": 50, "seed": 5, "flip": True, "shift": 1}


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
    (larger,) = drawn(corpus, 1, batch_size=21, seed=1)  # than the corpus
    assert np.bincount(larger["label"]).tolist() == [3] * 7


def test_a_share_of_conditions_is_dropped_and_nothing_else_changes(corpus):
    whole, some = (drawn(corpus, 8, **OPTIONS, dropout=dropout) for dropout in (0.0, 0.25))
    dropped = np.concatenate([batch["label"] == -1 for batch in some])
    assert 0.17 < dropped.mean() < 0.33
    for before, after in zip(whole, some, strict=True):
        gone = after["label"] == -1
        assert not after["caption"][gone].any()
        for name, values in before.items():
            kept = ~gone if name in ("label", "caption") else ...
            np.testing.assert_array_equal(after[name][kept], values[kept])


def test_images_are_mirrored_and_moved_with_their_maps_and_their_edges_go_on(corpus):
    joined = []
    for options in ({"flip": True}, {"shift": 2}):
        batches = drawn(corpus, 4, batch_size=50, seed=3, **options)
        levels, maps = (np.concatenate([b[name] for b in batches]) for name in ("levels", "map"))
        np.testing.assert_array_equal(maps, levels[..., 0])
        joined.append(maps)
    mirrored = joined[0][:, 7, 0] == 70
    assert 70 < np.sum(mirrored) < 130  # half of 200
    assert np.all(joined[0][~mirrored, 7, 0] == 0)
    columns = joined[1][:, 0] - joined[1][:, 0].min(1, keepdims=True)
    ramp = np.pad(np.arange(8) * 10, 2, mode="edge")
    wanted = {tuple((ramp[k : k + 8] - ramp[k : k + 8].min()).tolist()) for k in range(5)}
    assert {tuple(row) for row in columns.tolist()} == wanted


def test_dev_gives_every_image_once_in_order(corpus):
    nothing, kind = types.SimpleNamespace(crop=0), types.SimpleNamespace(kind="class")
    config = types.SimpleNamespace(conditioning=kind, data=nothing)
    dataset = ImageDataset(config, corpus).dev(2)
    batches = [{k: v.numpy() for k, v in batch.items()} for batch in dataset]
    assert [len(batch["label"]) for batch in batches] == [2, 1]
    levels = np.concatenate([batch["levels"] for batch in batches])
    np.testing.assert_array_equal(levels, corpus.splits["dev"].images)
    assert batches[0].keys() == drawn(corpus, 1, **OPTIONS)[0].keys()


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


PHOTOGRAPHS = ImageRules(16, 3, crop=8)


def square_batches(photographs, *, seed=1, flip=False, **settings):
    """A function from a step to its batch of squares."""
    settings |= {"kind": "squares", "seed": seed, "flip": flip}
    return batches_of({str(n): image for n, image in enumerate(photographs)}, settings)


def places_of(photographs, square):
    """Return where a square is found: the number of the photograph, row and column."""
    windows = [np.lib.stride_tricks.sliding_window_view(p, square.shape) for p in photographs]
    return [
        (n, *place)
        for n, found in enumerate(windows)
        for place in np.argwhere((found == square).all((-3, -2, -1)))[:, :2].tolist()
    ]


def test_a_frame_is_the_whole_image_and_its_mean_is_kept():
    levels = noise(48, 64, 3)
    small = fit_levels(levels, PHOTOGRAPHS)
    assert small.shape == (12, 16, 3)
    blocks = levels.reshape(12, 4, 16, 4, 3).mean((1, 3))
    np.testing.assert_array_equal(small, np.floor(blocks + 0.5))
    np.testing.assert_array_equal(fit_levels(levels, ImageRules(64, 3, crop=8)), levels)
    assert fit_levels(noise(30, 20, 3), ImageRules(16, 1, crop=8)).shape == (16, 11, 1)


def test_photographs_of_a_folder_keep_their_shape(tmp_path):
    fill(tmp_path, ["train/a.png", "train/b.png"], (32, 24))
    fill(tmp_path, ["dev/c.png"], (20, 40))
    corpus = read_corpus(tmp_path, PHOTOGRAPHS)
    assert [image.shape for image in corpus.splits["train"].images] == [(12, 16, 3)] * 2
    assert [image.shape for image in corpus.splits["dev"].images] == [(16, 8, 3)]
    assert (
        corpus.notes[0] == "2 photographs for train, 1 for dev, longer side 16, from 32x24 to 20x40"
    )


def test_photographs_with_too_few_pixels_are_left_out_and_named(tmp_path):
    fill(tmp_path, ["train/a.png", "dev/b.png"], (16, 16))
    fill(tmp_path, ["train/flat.png"], (64, 31))
    fill(tmp_path, ["train/tiny.png"], (15, 12))
    corpus = read_corpus(tmp_path, PHOTOGRAPHS)
    assert len(corpus.splits["train"].images) == 1
    said = " ".join(corpus.notes)
    assert "flat.png (64x31, wanted a longer side of 16, the shorter 8 or more of it)" in said
    assert "tiny.png (15x12, " in said


def test_only_a_folder_has_photographs(tmp_path):
    np.savez(tmp_path / "a.npz", images=noise(4, 16, 16, 3))
    assert "`data.crop` needs a folder of image files." in mistake(tmp_path / "a.npz", PHOTOGRAPHS)


def test_squares_are_cut_from_every_photograph_once_per_epoch_anywhere():
    photographs = [noise(9, 12, 1, seed=n) for n in range(3)]
    batch = square_batches(photographs, side=7, batch_size=3)
    found = [places_of(photographs, square) for n in range(40) for square in batch(n)["levels"]]
    assert all(len(each) == 1 for each in found)
    for i in range(0, len(found), 3):
        assert sorted(each[0][0] for each in found[i : i + 3]) == [0, 1, 2]
    corners = {each[0][1:] for each in found}
    assert corners == {(row, column) for row in range(3) for column in range(6)}


def test_some_squares_are_mirrored():
    photographs = [noise(8, 8, 1)]
    batch = square_batches(photographs, side=8, batch_size=16, flip=True)(0)
    mirrored = [(square == photographs[0][:, ::-1]).all() for square in batch["levels"]]
    plain = [(square == photographs[0]).all() for square in batch["levels"]]
    assert any(mirrored) and any(plain)
    assert all(a != b for a, b in zip(mirrored, plain, strict=True))


def test_whole_photographs_are_cut_at_both_ends_to_a_multiple():
    photographs = [noise(10, 15, 3), noise(8, 4, 3)]
    first, second = whole_photographs(photographs, 4)
    np.testing.assert_array_equal(first["levels"][0], photographs[0][1:9, 1:13])
    np.testing.assert_array_equal(second["levels"][0], photographs[1])
    assert not np.array_equal(first["seed"], second["seed"])


def test_an_exported_run_draws_the_squares_of_the_pipeline(tmp_path):
    shapes = {"train/a.png": (16, 16), "train/b.png": (16, 12), "dev/c.png": (16, 16)}
    for name, shape in shapes.items():
        fill(tmp_path, [name], shape)
    config = PRESETS["upsample-512"].config
    data = dataclasses.replace(config.data, size=16, crop=8, batch_size=3)
    network = dataclasses.replace(config.network, base_size=8, crop=0)
    small = dataclasses.replace(config, data=data, network=network, parts=("16",))
    dataset = ImageDataset.read(tmp_path, small)
    arrays, settings = dataset.training_arrays
    write_npz(tmp_path / "images.npz", arrays)
    drawn = open_batches(tmp_path, {**settings, "file": "images.npz"})
    for step, expected in zip(range(4), dataset.training(0).take(4), strict=True):
        for name, array in drawn(step).items():
            np.testing.assert_array_equal(array, expected[name])
