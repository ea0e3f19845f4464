"""Images to look at are the images, enlarged and side by side, and nothing else."""

import numpy as np
import pytest
from PIL import Image

from pixelcnn.sampling.grids import (
    GAP,
    LEAST_SIDE,
    enlarge_pixels,
    grid,
    label_image,
    strip,
    write_gif,
)


def noise(side, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, [side, side, channels], np.uint8)


def at(sheet, row, column, side):
    top, left = GAP + row * (side + GAP), GAP + column * (side + GAP)
    return sheet[top : top + side, left : left + side]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (4, 2), (5, 3), (9, 3), (10, 4)])
def test_a_grid_holds_its_images_in_rows_is_white_elsewhere_and_about_square(count, columns):
    images = [noise(100, seed=i) for i in range(count)]
    blank = np.full([-(-count // columns) * 102 + 2, columns * 102 + 2, 3], 255, np.uint8)
    for i, image in enumerate(images):
        at(blank, i // columns, i % columns, 100)[:] = image
    np.testing.assert_array_equal(grid(images), blank)


def test_a_grid_shows_small_grey_images_in_colour_and_enlarged():
    small = noise(40, channels=1)
    sheet = grid([small, small], columns=1)
    assert sheet.shape == (2 * 122 + 2, 124, 3)
    np.testing.assert_array_equal(at(sheet, 1, 0, 120), np.kron(small, np.ones([3, 3, 3], int)))


def test_a_label_stands_below_its_image_and_is_cut_where_there_is_no_room():
    image = noise(48, channels=1)
    texts = ("a dog", "a cat", "a dog " * 9, "a dog " * 10 + "cat")
    dog, cat, long, longer = (label_image(image, text) for text in texts)
    for shown in (dog, cat, long, longer):
        np.testing.assert_array_equal(shown[:96], enlarge_pixels(np.repeat(image, 3, -1), 96))
    assert dog.shape == longer.shape == (96 + 36, 96, 3)
    ink = [(shown[96:] < 128).sum() for shown in (dog, long)]
    assert 0 < ink[0] < ink[1] and not np.array_equal(dog, cat)
    assert (dog[96 + 13 :] == 255).all()
    np.testing.assert_array_equal(label_image(image, "\n dög 犬")[:96], dog[:96])
    sheet = grid([dog, cat], columns=1)
    assert sheet.shape == (2 * (132 + GAP) + GAP, 96 + 2 * GAP, 3)
    np.testing.assert_array_equal(sheet[132 + 2 * GAP :][:132, GAP:-GAP], cat)


def test_enlarging_repeats_every_pixel_until_it_is_wide_enough():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(enlarge_pixels(image, 2), image)
    twice = np.kron(image, np.ones([2, 2, 1], np.uint8))
    np.testing.assert_array_equal(enlarge_pixels(image, 3), twice)


@pytest.mark.parametrize("last", [8, 32, 64, 128])
def test_a_strip_shows_every_scale_as_large_as_the_last(last):
    scales = [noise(side, seed=side) for side in (4, last // 2, last)]
    sheet = strip(scales)
    side = enlarge_pixels(scales[-1], LEAST_SIDE).shape[0]
    assert sheet.shape == (side + 2 * GAP, 3 * (side + GAP) + GAP, 3)
    for i, scale in enumerate(scales):
        np.testing.assert_array_equal(at(sheet, 0, i, side), enlarge_pixels(scale, side))


def test_an_animation_has_its_frames_in_turn_for_as_long_as_said(tmp_path):
    frames = [np.full([12, 10, 1], level, np.uint8) for level in (0, 100, 200)]
    write_gif(tmp_path / "a.gif", frames, frame_seconds=0.25)
    with Image.open(tmp_path / "a.gif") as opened:
        assert (opened.n_frames, opened.size, opened.info["loop"]) == (3, (10, 12), 0)
        for i, frame in enumerate(frames):
            opened.seek(i)
            assert opened.info["duration"] == 250
            np.testing.assert_array_equal(np.asarray(opened.convert("L")), frame[..., 0])
