"""Image files of every kind: what is made of them, and what is said of those that fail."""

import io
import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from image_files import COLOUR, GREY, fill, noise
from PIL import Image, ImageCms, ImageFile

from pixelcnn.data import image_file
from pixelcnn.data.corpus import ImageRules, read_corpus
from pixelcnn.data.image_file import ImageError, fit_levels, read_image


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
    np.testing.assert_array_equal(image_file.area_averaged(levels, size), expected)


def test_every_kth_pixel_is_the_upper_left_of_its_block():
    levels = noise(27, 27, 3)
    np.testing.assert_array_equal(image_file.subsample_pixels(levels, 8), levels[1:25:3, 1:25:3])
    np.testing.assert_array_equal(image_file.subsample_pixels(levels, 27), levels)


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
    remarks = {"C": (image_file.CMYK,), "I": (image_file.SIXTEEN_BIT,)}
    assert found.remarks == remarks.get(mode[0], ())


def test_sixteen_bits_are_scaled_to_eight_and_rounded(saved, tmp_path):
    values = np.zeros((8, 8), np.uint16)
    values[0, :4] = [65535, 128, 129, 257 * 77]
    levels = saved(Image.fromarray(values), GREY).levels[..., 0]
    assert list(levels[0]) == [255, 0, 1, 77, 0, 0, 0, 0]
    rows = b"".join(b"\0" + bytes([200, 1, 100, 2, 50, 3]) * 8 for _ in range(8))
    (tmp_path / "a.png").write_bytes(png(8, 8, rows, depth=16, colour=2))
    image = read_image(tmp_path / "a.png", COLOUR)
    assert image.remarks == (image_file.SIXTEEN_BIT,)
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
    assert found.remarks == (image_file.TRANSPARENT,)
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
    assert found.remarks == (image_file.SEVERAL_FRAMES,)
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
    known = image_file.suffixes()
    assert {".jpg", ".png", ".webp", ".tif", ".gif", ".bmp", ".ppm", ".jp2"} <= known
    assert known.isdisjoint({".eps", ".ps", ".pdf", ".mpg", ".h5", ".wmf", ".txt", ""})


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def s15(value):
    return struct.pack(">i", round(value * 65536))


def xyz(*values):
    return b"XYZ \0\0\0\0" + b"".join(map(s15, values))


def gamma_curve(value):
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(value * 256)) + b"\0\0"


def profile(primaries, gamma, space=b"RGB "):
    """A small ICC profile of these primaries (None: of grey) and this exponent."""
    tags = {b"wtpt": xyz(0.9642, 1.0, 0.8249)}
    if primaries is None:
        tags[b"kTRC"] = gamma_curve(gamma)
    else:
        d65_to_d50 = np.array(
            [
                [1.04788, 0.02292, -0.05019],
                [0.02959, 0.99048, -0.01707],
                [-0.00923, 0.01508, 0.75168],
            ]
        )
        columns = (d65_to_d50 @ image_file._to_xyz(primaries)).T
        for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True):
            tags[name] = xyz(*column)
        tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), gamma_curve(gamma))
    table, data, start = b"", b"", 128 + 4 + 12 * len(tags)
    for name, body in tags.items():
        table += name + struct.pack(">II", start + len(data), len(body))
        data += body
    head = struct.pack(
        ">I4sI4s4s4s", start + len(data), b"lcms", 0x02400000, b"mntr", space, b"XYZ "
    )
    head += bytes(12) + b"acsp" + bytes(28) + s15(0.9642) + s15(1.0) + s15(0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


ADOBE = profile(image_file.ADOBE, 2.19921875)


def adobe(levels):
    """The levels of AdobeRGB of an sRGB image, by pillow."""
    srgb, made = Image.fromarray(levels), io.BytesIO(ADOBE)
    converted = ImageCms.profileToProfile(
        srgb, ImageCms.createProfile("sRGB"), ImageCms.ImageCmsProfile(made)
    )
    return np.asarray(converted)


def soft(seed=0):
    """Colours that both spaces hold."""
    return (64 + noise(8, 8, 3, seed=seed) // 2).astype(np.uint8)


def marked():
    """EXIF data by which a camera says that it stored AdobeRGB."""
    exif = Image.Exif()
    exif[0x8769] = {image_file.INTEROPERABILITY: {1: "R03"}}
    return exif


@pytest.mark.parametrize("said", [{"icc_profile": ADOBE}, {"exif": marked()}], ids=["icc", "exif"])
def test_an_adobe_rgb_copy_is_the_srgb_image_again(tmp_path, said):
    stored = adobe(soft())
    assert np.abs(stored.astype(int) - soft()).mean() > 2
    Image.fromarray(stored).save(tmp_path / "a.png", **said)
    image = read_image(tmp_path / "a.png", COLOUR)
    assert image.remarks == (image_file.CONVERTED,)
    assert np.abs(image.levels.astype(int) - soft()).max() <= 2


@pytest.mark.parametrize("made", [{"icc_profile": SRGB}, {"icc_profile": b""}, {}])
def test_what_is_srgb_is_not_touched(tmp_path, made):
    for mode in ("RGB", "L", "RGBA", "P"):
        stored = Image.fromarray(noise(8, 8, 3)).convert(mode)
        stored.save(tmp_path / "a.png", **made)
        stored.save(tmp_path / "b.png")
        with_profile, without = (read_image(tmp_path / name, COLOUR) for name in ("a.png", "b.png"))
        np.testing.assert_array_equal(with_profile.levels, without.levels)
        assert image_file.CONVERTED not in with_profile.remarks
        assert image_file.KEPT not in with_profile.remarks


def png_with(levels, *chunks):
    """A PNG file with chunks between its header and its levels."""
    memory = io.BytesIO()
    Image.fromarray(levels).save(memory, "PNG")
    data = memory.getvalue()
    return data[:33] + b"".join(chunk(*part) for part in chunks) + data[33:]


def gama(value):
    return b"gAMA", struct.pack(">I", round(100_000 * value))


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8)])
def test_linear_light_becomes_srgb(tmp_path, shape):
    levels = noise(*shape)
    (tmp_path / "a.png").write_bytes(png_with(levels, gama(1.0)))
    image = read_image(tmp_path / "a.png", COLOUR)
    light = levels / 255.0
    wanted = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055) * 255
    wanted = wanted if len(shape) == 3 else np.repeat(wanted[..., None], 3, -1)
    assert image.remarks == (image_file.CONVERTED,)
    assert np.abs(image.levels - wanted).max() <= 0.51


@pytest.mark.parametrize("chunks", [[gama(0.45455)], [gama(1.0), (b"sRGB", b"\0")], [gama(0.0)]])
def test_a_gamma_of_srgb_changes_nothing_and_srgb_has_the_last_word(tmp_path, chunks):
    (tmp_path / "a.png").write_bytes(png_with(noise(8, 8, 3), *chunks))
    image = read_image(tmp_path / "a.png", COLOUR)
    assert not image.remarks
    np.testing.assert_array_equal(image.levels, noise(8, 8, 3))


@pytest.mark.parametrize("places", [(0, 0), (0.64, 0.33)])
def test_impossible_primaries_keep_the_levels_and_it_is_said(tmp_path, places):
    stored = struct.pack(">8I", *(round(1e5 * v) for v in (*image_file.WHITE, *places * 3)))
    (tmp_path / "a.png").write_bytes(png_with(noise(8, 8, 3), gama(1.0), (b"cHRM", stored)))
    image = read_image(tmp_path / "a.png", COLOUR)
    assert image.remarks == (image_file.KEPT,)
    np.testing.assert_array_equal(image.levels, noise(8, 8, 3))


def test_grey_profiles_and_transparency_are_kept_apart(tmp_path):
    grey, linear = noise(8, 8), profile(None, 1.0, b"GRAY")
    Image.fromarray(grey).save(tmp_path / "a.png", icc_profile=linear)
    image = read_image(tmp_path / "a.png", ImageRules(8, 1))
    assert image.remarks == (image_file.CONVERTED,) and image.levels.mean() > grey.mean() + 20
    clear = np.dstack([adobe(soft()), np.where(grey < 128, 0, 255).astype(np.uint8)])
    Image.fromarray(clear).save(tmp_path / "b.png", icc_profile=ADOBE)
    levels = read_image(tmp_path / "b.png", COLOUR).levels
    assert (levels[grey < 128] == 255).all()
    assert np.abs(levels[grey >= 128].astype(int) - soft()[grey >= 128]).max() <= 2


@pytest.mark.parametrize("broken", [b"no profile", ADOBE[:150], profile(None, 1.0, b"GRAY")])
def test_a_profile_that_does_not_fit_keeps_the_levels_and_is_said(tmp_path, broken):
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / "a.png", icc_profile=broken)
    image = read_image(tmp_path / "a.png", COLOUR)
    assert image.remarks == (image_file.KEPT,)
    np.testing.assert_array_equal(image.levels, noise(8, 8, 3))


def test_deep_grey_keeps_its_levels_and_says_so(tmp_path):
    levels = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    (tmp_path / "a.png").write_bytes(png_with(levels, gama(1.0)))
    image = read_image(tmp_path / "a.png", ImageRules(8, 1, bits=16))
    assert image_file.KEPT in image.remarks
    np.testing.assert_array_equal(image.levels[..., 0], levels)


def test_a_folder_names_the_images_that_were_converted(tmp_path):
    fill(tmp_path, ["a.png", "b.png"])
    Image.fromarray(adobe(soft())).save(tmp_path / "c.png", icc_profile=ADOBE)
    assert f"{image_file.CONVERTED}: 1: c.png" in read_corpus(tmp_path, COLOUR).notes
