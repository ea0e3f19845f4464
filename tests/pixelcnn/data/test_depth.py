"""Images of more than 8 bits: what is taken as it is, what is scaled, and what is said of it."""

import numpy as np
import pytest
from image_files import COLOUR, GREY
from PIL import Image

from pixelcnn.config import PRESETS, ImageRules
from pixelcnn.data.corpus import read_corpus, read_dev
from pixelcnn.data.detection import Stored, detect_format, detect_options
from pixelcnn.data.image_file import (
    ImageError,
    depth_of,
    dtype_of,
    min_log_scale_of,
    read_image,
    rescale_levels,
)

TWELVE = ImageRules(8, 1, bits=12)
HIGHEST = 3913  # of 12 bits
ENDINGS = ("png", "tiff", "npy")


def ramps(count, highest=HIGHEST, dtype=np.uint16, side=8):
    """Images [count, side, side] of all levels, evenly; the last one is the brightest."""
    return np.linspace(0, highest, count * side**2).astype(dtype).reshape(count, side, side)


def write(folder, images, endings=ENDINGS):
    """Files of the images, of one ending after another; names by number."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        ending = endings[i % len(endings)]
        path = folder / f"{i:02d}.{ending}"
        if ending == "npy":
            np.save(path, image)
        else:
            Image.fromarray(image).save(path)
    return folder


def all_of(corpus):
    named = [pair for s in corpus.splits.values() for pair in zip(s.names, s.images, strict=True)]
    return np.stack([image for _, image in sorted(named, key=lambda pair: pair[0])])[..., 0]


def test_grey_files_of_twelve_bits_are_taken_as_they_are_and_averaged_exactly(tmp_path):
    images = ramps(9)
    corpus = read_corpus(write(tmp_path / "own", images), TWELVE)
    found = all_of(corpus)
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, images)
    assert ", 1 channel, 12 bits, as stored" in corpus.notes[0] and len(corpus.notes) == 1
    images = ramps(3, side=16)
    found = all_of(read_corpus(write(tmp_path / "larger", images), TWELVE))
    means = images.reshape(3, 8, 2, 8, 2).astype(np.int64).sum((2, 4))
    np.testing.assert_array_equal(found, (2 * means + 4) // 8)


def test_twelve_bits_in_sixteen_keep_their_range_in_eight_and_it_is_said(tmp_path):
    images = ramps(9)
    corpus = read_corpus(write(tmp_path, images), GREY)
    found = all_of(corpus)
    np.testing.assert_array_equal(found, np.floor(images * (255 / 4095) + 0.5))
    assert len(np.unique(found)) > 200  # 16 if they were taken for 16 bits
    note = "12-bit in 16-bit files, scaled to 8 bits: 9: 00.png, 01.tiff, 02.npy"
    assert any(line.startswith(note) for line in corpus.notes)


def test_the_brightest_image_of_a_folder_says_the_depth_of_all(tmp_path):
    dark, bright = ramps(3, 900), ramps(3, 60_000)
    found = all_of(read_corpus(write(tmp_path, [*dark, *bright]), GREY))
    np.testing.assert_array_equal(found[:3], (dark.astype(int) + 128) // 257)
    alone = write(tmp_path / "alone", dark)
    np.testing.assert_array_equal(all_of(read_corpus(alone, GREY)), rescale_levels(dark, 10, 8))


def test_eight_bit_files_among_deeper_ones_are_scaled_up_and_named(tmp_path):
    write(tmp_path / "grey", ramps(4), ("png",))
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "grey" / "99.png")
    corpus = read_corpus(tmp_path / "grey", TWELVE)
    assert all_of(corpus)[-1].min() == 4095
    assert "8-bit, scaled to 12 bits: 1: 99.png" in corpus.notes
    colours = np.stack([np.full((8, 8, 3), 255, np.uint8), np.zeros((8, 8, 3), np.uint8)])
    folder = write(tmp_path / "colour", colours, ("png",))
    found = read_corpus(folder, ImageRules(8, 3, bits=12)).splits
    assert {int(s.images.max()) for s in found.values()} == {0, 4095}
    assert read_corpus(folder, COLOUR).splits["train"].images.dtype == np.uint8


def test_a_level_beyond_the_bits_is_refused_with_its_file(tmp_path):
    write(tmp_path / "files", [*ramps(3), *ramps(1, 5000)], ("png",))
    np.savez(tmp_path / "deep.npz", images=ramps(4, 5000))
    for source, name in {"files": "03.png", "deep.npz": "deep[3]"}.items():
        line = f"too bright: 1: {name} (a level of 5,000, 12 bits hold 0 to 4,095)"
        assert any(line in note for note in read_corpus(tmp_path / source, TWELVE).notes)


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_one_file_of_many_deep_images_is_read(tmp_path, ending):
    images = ramps(6)
    path = tmp_path / f"deep.{ending}"
    if ending == "npz":
        np.savez(path, images=images)
    else:
        np.save(path, images)
    np.testing.assert_array_equal(all_of(read_corpus(path, TWELVE)), images)
    corpus = read_corpus(path, GREY)
    np.testing.assert_array_equal(all_of(corpus), rescale_levels(images, 12, 8))
    assert any("12-bit in 16-bit files, scaled to 8 bits: 6: deep[0], " in n for n in corpus.notes)


def test_a_train_and_a_dev_file_are_scaled_alike(tmp_path):
    np.savez(tmp_path / "x_train.npz", images=ramps(4))
    np.savez(tmp_path / "x_dev.npz", images=ramps(4, 900))
    corpus = read_corpus(tmp_path, GREY)
    dev = corpus.splits["dev"].images[..., 0]
    np.testing.assert_array_equal(dev, rescale_levels(ramps(4, 900), 12, 8))
    deep = read_dev(tmp_path, TWELVE, ()).splits["dev"].images[..., 0]
    np.testing.assert_array_equal(deep, ramps(4, 900))


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.zeros((8, 8), np.float32), "no known range: float32 levels"),
        (np.zeros((8, 8, 2), np.uint8), "broken: an array [8, 8, 2], wanted [height, width]"),
        (np.full((8, 8), -1, np.int16), "no known range: 32-bit integers from -1 to -1"),
        (np.zeros((4, 8), np.uint16), "too small: 8x4"),
    ],
)
def test_an_array_that_is_no_image_is_refused(tmp_path, array, what):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ImageError) as caught:
        read_image(tmp_path / "a.npy", TWELVE)
    assert str(caught.value).startswith(what)


def test_scaling_keeps_both_ends_and_the_depth_is_the_least_that_has_the_level():
    levels = np.arange(256)
    for bits in (8, 10, 12, 16):
        up = rescale_levels(levels, 8, bits)
        assert (up.dtype, up[0], up[-1]) == (dtype_of(bits), 0, 2**bits - 1)
        np.testing.assert_array_equal(rescale_levels(up, bits, 8), levels)
    depths = {0: 8, 255: 8, 256: 10, 1023: 10, 1024: 12, 4095: 12, 4096: 14, 65535: 16}
    assert {level: depth_of(level) for level in depths} == depths
    assert (min_log_scale_of(8), min_log_scale_of(12)) == (-7.0, pytest.approx(-9.7726, abs=1e-3))


def test_what_a_folder_holds_is_found(tmp_path):
    assert detect_format(write(tmp_path / "deep", ramps(5))) == Stored(1, 12)
    grey = ramps(3, 255, np.uint8)
    assert detect_format(write(tmp_path / "grey", grey, ("png",))) == Stored(1, 8)
    write(tmp_path / "mixed", grey, ("png",))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "mixed" / "c.png")
    assert detect_format(tmp_path / "mixed") == Stored(3, 8)
    np.savez(tmp_path / "a.npz", images=ramps(2, 60_000))
    assert detect_format(tmp_path / "a.npz") == Stored(1, 16)
    np.savez(tmp_path / "b.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    assert detect_format(tmp_path / "b.npz") == Stored(3, 8)
    assert detect_format("tfds:mnist") is None and detect_format(tmp_path / "no") is None


GREY_WORDS = ["--data.channels", "1", "--output.channels", "1"]
DEEP_WORDS = ["--data.bits", "12", "--output.levels", "4096", "--output.min-log-scale", "-9.773"]


@pytest.mark.parametrize(
    ("said", "added"),
    [
        ([], [*GREY_WORDS, *DEEP_WORDS]),
        (["--data.channels", "1"], [*GREY_WORDS[2:], *DEEP_WORDS]),
        (["--output.channels=1"], [*GREY_WORDS[:2], *DEEP_WORDS]),
        (["--data.channels=3"], []),
        (["--data.bits", "8"], GREY_WORDS),
        (["--data.bits", "16", *GREY_WORDS], ["--output.levels", "65536",
                                              "--output.min-log-scale", "-12.545"]),
        (["--output.min_log_scale", "-8"], [*GREY_WORDS, *DEEP_WORDS[:4]]),
        (["--output.likelihood", "softmax"], GREY_WORDS),
    ],
)  # fmt: skip
def test_options_that_are_not_said_follow_the_images(tmp_path, said, added):
    folder, config = write(tmp_path, ramps(5)), PRESETS["pixelcnn-cpu-32"].config
    assert detect_options(config, ["--data", str(folder), *said]) == added


def test_colour_a_preset_of_grey_and_a_run_are_left_as_they_are(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "c.png")
    for preset in ("pixelcnn-cpu-32", "pixelcnn-smoke"):
        assert detect_options(PRESETS[preset].config, [f"--data={tmp_path}"]) == []
    assert detect_options(PRESETS["pixelcnn-cpu-32"].config, ["--workdir", "x"]) == []
    words = ["--data", str(write(tmp_path / "deep", ramps(5))), "--workdir", str(tmp_path)]
    for begun, added in (
        ('{"data": {"channels": 3}}', []),
        ('{"data": {"channels": 1, "bits": 12}}', [*GREY_WORDS, *DEEP_WORDS]),
    ):
        (tmp_path / "config.json").write_text(begun)
        assert detect_options(PRESETS["pixelcnn-cpu-32"].config, words) == added
