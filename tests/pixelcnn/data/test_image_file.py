"""Image files of every kind: what is made of them, and what is said of those that fail."""

import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from image_files import COLOUR, GREY, noise
from PIL import Image, ImageFile

from pixelcnn.data.image_file import (
    CMYK,
    SEVERAL_FRAMES,
    SIXTEEN_BIT,
    TRANSPARENT,
    ImageError,
    area_averaged,
    fit_levels,
    read_image,
    subsample_pixels,
    suffixes,
)


@pytest.fixture
def saved(tmp_path):
    """Saves a pillow image and reads it back by the rules."""

    def saved(image, rules, ending="png", **options):
        path = tmp_path / f"a.{ending}"
        image.save(path, **options)
        return read_image(path, rules)

    return saved


def error_of(path, rules=COLOUR):
    with pytest.raises(ImageError) as caught:
        read_image(path, rules)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("side", "size"), [(21, 8), (8, 8), (16, 8), (9, 8), (13, 5)])
def test_an_average_weighs_each_pixel_by_its_area_in_the_cell_and_halves_go_up(side, size):
    levels = noise(side, side, 3)
    fine = np.kron(levels, np.ones((size, size, 1), np.uint8))  # cells are whole blocks of these
    cells = fine.reshape(size, side, size, side, 3).sum(axis=(1, 3), dtype=np.int64)
    expected = np.floor(cells / side**2 + 0.5)
    np.testing.assert_array_equal(area_averaged(levels, size), expected)


def test_every_kth_pixel_is_the_upper_left_of_its_block():
    levels = noise(27, 27, 3)
    np.testing.assert_array_equal(subsample_pixels(levels, 8), levels[1:25:3, 1:25:3])
    np.testing.assert_array_equal(subsample_pixels(levels, 27), levels)


@pytest.mark.parametrize("shape", [(8, 12, 3), (12, 8, 3), (8, 9, 3)])
def test_the_square_is_cut_from_the_middle(shape):
    levels = noise(*shape)
    top, left = (shape[0] - 8) // 2, (shape[1] - 8) // 2
    expected = levels[top : top + 8, left : left + 8]
    np.testing.assert_array_equal(fit_levels(levels, COLOUR), expected)


def test_colour_becomes_grey_as_in_pillow_and_grey_becomes_equal_colours(saved):
    levels = noise(8, 8, 3)
    grey = np.asarray(Image.fromarray(levels).convert("L"))
    np.testing.assert_array_equal(saved(Image.fromarray(levels), GREY).levels[..., 0], grey)
    colour = saved(Image.fromarray(grey), COLOUR).levels
    np.testing.assert_array_equal(colour, np.stack([grey] * 3, axis=-1))


def test_an_image_stands_upright_as_its_exif_says_and_damage_does_not_cost_it(saved):
    levels, exif = noise(8, 11, 3), Image.Exif()
    exif[0x0112] = 6
    image = saved(Image.fromarray(levels), COLOUR, exif=exif)
    upright = np.rot90(levels, -1)
    np.testing.assert_array_equal(image.levels, fit_levels(upright, COLOUR))
    assert image.stored_size == upright.shape[1::-1]
    image = saved(Image.fromarray(levels), COLOUR, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    np.testing.assert_array_equal(image.levels, fit_levels(levels, COLOUR))


MODES = {
    "1": "png", "L": "bmp", "P": "png", "LA": "png", "RGB": "ppm", "RGBA": "webp", "YCbCr": "tiff",
    "CMYK": "tiff", "I;16": "png", "I;16B": "tiff",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_white_on_black_is_so_in_every_mode(saved, mode):
    levels = np.zeros((8, 8), np.uint8)
    levels[2:5, 3:] = 255
    if mode.startswith("I"):
        sixteen = levels.astype(np.uint16) * 257
        image = Image.fromarray(sixteen if mode == "I;16" else sixteen.astype(">u2"))
    else:
        image = Image.fromarray(levels).convert("RGB").convert(mode)
    assert image.mode == mode
    options = {"lossless": True} if MODES[mode] == "webp" else {}
    found = saved(image, COLOUR, MODES[mode], **options)
    np.testing.assert_allclose(found.levels, np.stack([levels] * 3, -1), atol=2)
    remarks = {"CMYK": (CMYK,), "I;16": (SIXTEEN_BIT,), "I;16B": (SIXTEEN_BIT,)}
    assert found.remarks == remarks.get(mode, ())


def test_sixteen_bits_are_scaled_to_eight_and_rounded(saved, tmp_path):
    values = np.zeros((8, 8), np.uint16)
    values[0, :4] = [65535, 128, 129, 257 * 77]
    levels = saved(Image.fromarray(values), GREY).levels[..., 0]
    assert list(levels[0]) == [255, 0, 1, 77, 0, 0, 0, 0]
    rows = b"".join(b"\0" + bytes([200, 1, 100, 2, 50, 3]) * 8 for _ in range(8))
    (tmp_path / "a.png").write_bytes(png(8, 8, rows, depth=16, colour=2))
    image = read_image(tmp_path / "a.png", COLOUR)
    assert image.remarks == (SIXTEEN_BIT,)
    assert image.levels[3, 3].tolist() == [200, 100, 50]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_what_is_transparent_lies_on_white(saved, mode):
    levels = np.full((8, 8), 40, np.uint8)
    alpha = np.full((8, 8), 255, np.uint8)
    alpha[:4], levels[:4] = 0, 10
    if mode in ("RGBA", "LA"):
        bands = [levels] * (len(mode) - 1) + [alpha]
        found = saved(Image.merge(mode, [Image.fromarray(band) for band in bands]), COLOUR)
    elif mode == "P":
        image = Image.fromarray(levels).convert("P")
        found = saved(image, COLOUR, "gif", transparency=int(np.asarray(image)[0, 0]))
    else:
        found = saved(Image.fromarray(levels).convert("RGB"), COLOUR, transparency=(10, 10, 10))
    assert found.remarks == (TRANSPARENT,)
    assert np.unique(found.levels[:4]).tolist() == [255]
    assert np.unique(found.levels[4:]).tolist() == [40]


def test_half_transparent_black_is_grey_before_it_is_averaged(saved):
    levels = np.zeros((16, 16, 4), np.uint8)
    levels[::2, :, 3] = 255
    found = saved(Image.fromarray(levels), GREY)
    assert np.unique(found.levels).tolist() == [128]


@pytest.mark.parametrize("ending", ["gif", "png", "webp", "tiff"])
def test_of_several_frames_the_first_is_used(saved, ending):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if ending == "webp" else {}
    found = saved(frames[0], COLOUR, ending, save_all=True, append_images=frames[1:], **options)
    assert found.remarks == (SEVERAL_FRAMES,)
    assert found.levels[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        (np.linspace(0, 1, 64, dtype=np.float32), "floating-point levels"),
        (np.arange(64, dtype=np.int32) * 70000, "32-bit integers from 0 to 4410000"),
    ],
)
def test_levels_without_a_known_range_are_named(tmp_path, values, detail):
    Image.fromarray(values.reshape(8, 8)).save(tmp_path / "a.tiff")
    error = error_of(tmp_path / "a.tiff")
    assert (error.kind, error.detail) == ("no known range", detail)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, depth=8, colour=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("side", [10_000, 30_000])  # pillow warns of one and refuses the other
@pytest.mark.parametrize("filters", ["error", "ignore"])
def test_a_decompression_bomb_is_named_and_never_decoded(tmp_path, monkeypatch, side, filters):
    (tmp_path / "a.png").write_bytes(png(side, side, b""))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        error = error_of(tmp_path / "a.png")
    assert error.kind == "too many pixels"
    assert error.detail == f"{side**2:,} pixels, the limit is {Image.MAX_IMAGE_PIXELS:,}"


def test_files_that_are_no_image_are_named_with_the_reason(tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "letter.jpg").write_text("Dear reader, " * 50)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to("nowhere.png")
    os.mkfifo(tmp_path / "pipe.png")
    reasons = {path.stem: error_of(path).detail for path in tmp_path.iterdir()}
    assert reasons == {
        "empty": "an empty file",
        "letter": "not an image that pillow knows",
        "folder": "not a file",
        "link": "not a file",
        "pipe": "not a file",
    }


@pytest.mark.parametrize(
    "ending", ["png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "tga", "ico", "pcx"]
)
def test_half_a_file_is_broken_and_damage_ends_in_an_image_or_in_a_named_error(tmp_path, ending):
    path, random = tmp_path / f"a.{ending}", np.random.default_rng(0)
    Image.fromarray(noise(16, 16, 3)).save(path)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    path.write_bytes(data[: len(data) // 2].tobytes())
    assert ending in ("ico", "pcx") or error_of(path).kind == "broken"
    for _ in range(60):
        damaged = data.copy()
        damaged[random.integers(0, min(len(data), 200), 6)] = random.integers(0, 256, 6)
        path.write_bytes(damaged.tobytes())
        try:
            assert read_image(path, COLOUR).levels.shape == (8, 8, 3)
        except ImageError as error:
            assert "\n" not in str(error)


def test_only_what_pillow_decodes_by_itself_counts_as_an_image():
    assert {".jpg", ".png", ".webp", ".tif", ".gif", ".bmp", ".ppm", ".jp2"} <= suffixes()
    assert suffixes().isdisjoint({".eps", ".ps", ".pdf", ".mpg", ".h5", ".wmf", ".txt", ""})
