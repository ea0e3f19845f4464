"""Images of other colour spaces become those of sRGB, and it is said."""

import io
import struct
import zlib

import numpy as np
import pytest
from image_files import COLOUR, fill, noise
from PIL import Image, ImageCms

from pixelcnn.data import image_file
from pixelcnn.data.corpus import ImageRules, read_corpus
from pixelcnn.data.image_file import read_image

RULES = ImageRules(8, 3)
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
    image = read_image(tmp_path / "a.png", RULES)
    assert image.remarks == (image_file.CONVERTED,)
    assert np.abs(image.levels.astype(int) - soft()).max() <= 2


@pytest.mark.parametrize("made", [{"icc_profile": SRGB}, {"icc_profile": b""}, {}])
def test_what_is_srgb_is_not_touched(tmp_path, made):
    for mode in ("RGB", "L", "RGBA", "P"):
        stored = Image.fromarray(noise(8, 8, 3)).convert(mode)
        stored.save(tmp_path / "a.png", **made)
        stored.save(tmp_path / "b.png")
        with_profile, without = (read_image(tmp_path / name, RULES) for name in ("a.png", "b.png"))
        np.testing.assert_array_equal(with_profile.levels, without.levels)
        assert image_file.CONVERTED not in with_profile.remarks
        assert image_file.KEPT not in with_profile.remarks


def png_with(levels, *chunks):
    """A PNG file with chunks between its header and its levels."""
    memory = io.BytesIO()
    Image.fromarray(levels).save(memory, "PNG")
    data, extra = memory.getvalue(), b""
    for name, body in chunks:
        extra += struct.pack(">I", len(body)) + name + body
        extra += struct.pack(">I", zlib.crc32(name + body))
    return data[:33] + extra + data[33:]


def gama(value):
    return b"gAMA", struct.pack(">I", round(100_000 * value))


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8)])
def test_linear_light_becomes_srgb(tmp_path, shape):
    levels = noise(*shape)
    (tmp_path / "a.png").write_bytes(png_with(levels, gama(1.0)))
    image = read_image(tmp_path / "a.png", RULES)
    light = levels / 255.0
    wanted = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055) * 255
    wanted = wanted if len(shape) == 3 else np.repeat(wanted[..., None], 3, -1)
    assert image.remarks == (image_file.CONVERTED,)
    assert np.abs(image.levels - wanted).max() <= 0.51


@pytest.mark.parametrize("chunks", [[gama(0.45455)], [gama(1.0), (b"sRGB", b"\0")], [gama(0.0)]])
def test_a_gamma_of_srgb_changes_nothing_and_srgb_has_the_last_word(tmp_path, chunks):
    (tmp_path / "a.png").write_bytes(png_with(noise(8, 8, 3), *chunks))
    image = read_image(tmp_path / "a.png", RULES)
    assert not image.remarks
    np.testing.assert_array_equal(image.levels, noise(8, 8, 3))


@pytest.mark.parametrize("places", [(0, 0), (0.64, 0.33)])
def test_impossible_primaries_keep_the_levels_and_it_is_said(tmp_path, places):
    stored = struct.pack(">8I", *(round(1e5 * v) for v in (*image_file.WHITE, *places * 3)))
    (tmp_path / "a.png").write_bytes(png_with(noise(8, 8, 3), gama(1.0), (b"cHRM", stored)))
    image = read_image(tmp_path / "a.png", RULES)
    assert image.remarks == (image_file.KEPT,)
    np.testing.assert_array_equal(image.levels, noise(8, 8, 3))


def test_grey_profiles_and_transparency_are_kept_apart(tmp_path):
    grey, linear = noise(8, 8), profile(None, 1.0, b"GRAY")
    Image.fromarray(grey).save(tmp_path / "a.png", icc_profile=linear)
    image = read_image(tmp_path / "a.png", ImageRules(8, 1))
    assert image.remarks == (image_file.CONVERTED,) and image.levels.mean() > grey.mean() + 20
    clear = np.dstack([adobe(soft()), np.where(grey < 128, 0, 255).astype(np.uint8)])
    Image.fromarray(clear).save(tmp_path / "b.png", icc_profile=ADOBE)
    levels = read_image(tmp_path / "b.png", RULES).levels
    assert (levels[grey < 128] == 255).all()
    assert np.abs(levels[grey >= 128].astype(int) - soft()[grey >= 128]).max() <= 2


@pytest.mark.parametrize("broken", [b"no profile", ADOBE[:150], profile(None, 1.0, b"GRAY")])
def test_a_profile_that_does_not_fit_keeps_the_levels_and_is_said(tmp_path, broken):
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / "a.png", icc_profile=broken)
    image = read_image(tmp_path / "a.png", RULES)
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
