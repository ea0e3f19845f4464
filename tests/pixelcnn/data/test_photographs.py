"""Photographs keep their shape; training sees random squares of them, evaluation all of them."""

import dataclasses

import numpy as np
from image_files import fill, mistake, noise

from onepass.foundation.files import write_npz
from pixelcnn.config import PRESETS
from pixelcnn.data.batch_sampling import batches_of, open_batches
from pixelcnn.data.corpus import ImageRules, read_corpus
from pixelcnn.data.dataset import ImageDataset, whole_photographs
from pixelcnn.data.image_file import fit_levels

RULES = ImageRules(16, 3, crop=8)


def square_batches(photographs, *, seed=1, flip=False, **settings):
    """A function from a step to its batch of squares."""
    settings |= {"kind": "squares", "seed": seed, "flip": flip}
    return batches_of({str(n): image for n, image in enumerate(photographs)}, settings)


def places(photographs, square):
    """Return where a square is found: the number of the photograph, row and column."""
    windows = [np.lib.stride_tricks.sliding_window_view(p, square.shape) for p in photographs]
    return [
        (n, *place)
        for n, found in enumerate(windows)
        for place in np.argwhere((found == square).all((-3, -2, -1)))[:, :2].tolist()
    ]


def test_a_frame_is_the_whole_image_and_its_mean_is_kept():
    levels = noise(48, 64, 3)
    small = fit_levels(levels, RULES)
    assert small.shape == (12, 16, 3)
    blocks = levels.reshape(12, 4, 16, 4, 3).mean((1, 3))
    np.testing.assert_array_equal(small, np.floor(blocks + 0.5))
    np.testing.assert_array_equal(fit_levels(levels, ImageRules(64, 3, crop=8)), levels)
    assert fit_levels(noise(30, 20, 3), ImageRules(16, 1, crop=8)).shape == (16, 11, 1)


def test_photographs_of_a_folder_keep_their_shape(tmp_path):
    fill(tmp_path, ["train/a.png", "train/b.png"], (32, 24))
    fill(tmp_path, ["dev/c.png"], (20, 40))
    corpus = read_corpus(tmp_path, RULES)
    assert [image.shape for image in corpus.splits["train"].images] == [(12, 16, 3)] * 2
    assert [image.shape for image in corpus.splits["dev"].images] == [(16, 8, 3)]
    assert (
        corpus.notes[0] == "2 photographs for train, 1 for dev, longer side 16, from 32x24 to 20x40"
    )


def test_photographs_with_too_few_pixels_are_left_out_and_named(tmp_path):
    fill(tmp_path, ["train/a.png", "dev/b.png"], (16, 16))
    fill(tmp_path, ["train/flat.png"], (64, 31))
    fill(tmp_path, ["train/tiny.png"], (15, 12))
    corpus = read_corpus(tmp_path, RULES)
    assert len(corpus.splits["train"].images) == 1
    said = " ".join(corpus.notes)
    assert "flat.png (64x31, wanted a longer side of 16, the shorter 8 or more of it)" in said
    assert "tiny.png (15x12, " in said


def test_only_a_folder_has_photographs(tmp_path):
    np.savez(tmp_path / "a.npz", images=noise(4, 16, 16, 3))
    assert "`data.crop` needs a folder of image files." in mistake(tmp_path / "a.npz", RULES)


def test_squares_are_cut_from_every_photograph_once_per_epoch_anywhere():
    photographs = [noise(9, 12, 1, seed=n) for n in range(3)]
    batch = square_batches(photographs, side=7, batch_size=3)
    found = [places(photographs, square) for n in range(40) for square in batch(n)["levels"]]
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
