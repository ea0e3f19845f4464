"""Images from folders, npz files and named data sets, with their splits, classes and captions."""

import os
import socket
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from hostile_files import refused
from image_files import COLOUR, GREY, fill, mistake, noise
from image_runs import replaced
from PIL import Image

from onepass.foundation.rules import UserError
from pixelcnn.config import PRESETS
from pixelcnn.data.corpus import DataError, ImageRules, read_corpus
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.detection import Stored, detect_format
from pixelcnn.data.sources import gather


def names_of(corpus):
    return {split: set(members.names) for split, members in corpus.splits.items()}


def test_the_folders_train_and_dev_are_the_split_and_their_sub_folders_the_classes(tmp_path):
    fill(tmp_path, ["train/cat/a.png", "train/cat/deep/b.png", "train/ant/c.bmp", "dev/cat/d.png"])
    fill(tmp_path, ["dev/ant/a.png"])  # which train has too
    corpus = read_corpus(tmp_path, COLOUR)
    assert corpus.classes == ("ant", "cat")
    train, dev = corpus.splits["train"], corpus.splits["dev"]
    labels = dict(zip(train.names, train.labels.tolist(), strict=True))
    assert labels == {"train/ant/c.bmp": 0, "train/cat/a.png": 1, "train/cat/deep/b.png": 1}
    labels = dict(zip(dev.names, dev.labels.tolist(), strict=True))
    assert labels == {"dev/ant/a.png": 0, "dev/cat/d.png": 1}
    pixels = train.images[train.names.index("train/ant/c.bmp")]
    np.testing.assert_array_equal(pixels, noise(8, 8, 3, seed=2))
    assert "images of dev that are also in train: 1: dev/ant/a.png" in corpus.notes


def test_a_share_by_the_hash_of_the_name_is_devs_whatever_else_is_there(tmp_path):
    names = [f"{i}.png" for i in range(60)]
    fill(tmp_path / "one", names)
    fill(tmp_path / "two", [*names, *(f"{i}.bmp" for i in range(40))])
    rules = ImageRules(8, 3, dev_share=0.2)
    one, two = (names_of(read_corpus(tmp_path / place, rules)) for place in ("one", "two"))
    assert 4 <= len(one["dev"]) <= 20
    assert one["dev"] == two["dev"] & set(names)
    assert one["train"] | one["dev"] == set(names)


def test_a_drawn_split_leaves_every_class_in_train_and_something_in_dev(tmp_path):
    fill(tmp_path, [f"{kind}/{i}.png" for kind in range(12) for i in range(2)])
    for dev_share in (0.001, 0.5):
        corpus = read_corpus(tmp_path, ImageRules(8, 3, dev_share=dev_share))
        assert set(corpus.splits["train"].labels) == set(range(12))
        assert len(corpus.splits["dev"].names) >= 1


def test_a_table_gives_files_classes_captions_and_splits(tmp_path):
    fill(tmp_path, ["a.png", "sub/b.png", "c.png", "d.png"])
    (tmp_path / "pictures.tsv").write_text(
        "file\tclass\tother\tcaption\tsplit\n"
        'a.png\tred\t1\tA "red" thing\ttrain\nsub/b.png\tblue\t2\tBlue.\tdev\n'
        "./c.png\tblue\t3\tBluer.\ttrain\n"
    )
    corpus = read_corpus(tmp_path, COLOUR)
    assert corpus.classes == ("blue", "red")
    assert corpus.splits["train"].names == ("a.png", "c.png")
    assert corpus.splits["train"].labels.tolist() == [1, 0]
    assert corpus.splits["train"].captions == ('A "red" thing', "Bluer.")
    assert corpus.splits["dev"].captions == ("Blue.",)
    assert "left out, in no table: 1: d.png" in corpus.notes


def test_the_tables_train_and_dev_are_the_split_and_may_leave_out_its_folder(tmp_path):
    for folder, files in {"flat": ("a.png", "b.png"), "deep": ("train/a.png", "dev/b.png")}.items():
        fill(tmp_path / folder, files)
        (tmp_path / folder / "train.tsv").write_text("file\tcaption\na.png\tone\n")
        (tmp_path / folder / "dev.tsv").write_text("file\tcaption\nb.png\ttwo\n")
        corpus = read_corpus(tmp_path / folder, COLOUR)
        assert names_of(corpus) == {"train": {files[0]}, "dev": {files[1]}}
        assert corpus.splits["dev"].captions == ("two",)
    (tmp_path / "flat" / "dev.tsv").write_text("file\nb.png\n")
    line = "SOURCE: b.png has no caption, although other images have."
    assert mistake(tmp_path / "flat") == line


def test_what_is_left_out_and_what_was_done_is_in_the_notes(tmp_path):
    fill(tmp_path, ["train/a.png", "train/b.png", "dev/c.png"], size=(12, 10))
    Image.new("RGBA", (40, 30)).save(tmp_path / "train/clear.png")
    Image.new("CMYK", (16, 16)).save(tmp_path / "train/print.jpg")
    Image.new("L", (7, 9)).save(tmp_path / "train/tiny.png")
    (tmp_path / "dev/zero.jpg").write_bytes(b"")
    (tmp_path / "dev/letter.txt").write_text("not an image")
    (tmp_path / "dev/._c.png").write_text("what some systems leave next to every file")
    corpus = read_corpus(tmp_path, GREY)
    assert corpus.notes == (
        "4 images for train, 1 for dev, 8x8, 1 channel, area-averaged from 12x10 to 40x30, "
        "cropped to the centred square",
        "left out, broken: 1: dev/zero.jpg (an empty file)",
        "left out, too small: 1: train/tiny.png (7x9, wanted 8x8)",
        "CMYK, converted to RGB: 1: train/print.jpg",
        "transparent, laid on white: 1: train/clear.png",
        "skipped, of an unknown kind: 1 .txt",
    )


def test_folders_that_are_hidden_or_of_an_archive_are_no_classes_and_are_named(tmp_path):
    names = ["cat/a.png", "cat/b.png", "ant/c.png", ".x/d.png", ".x/deep/e.png", "__MACOSX/f.png"]
    fill(tmp_path, [*names, "ant/.y/g.png", "macosx/h.png", "ant/i.png", "macosx/j.png"])
    (tmp_path / ".empty").mkdir()
    corpus = read_corpus(tmp_path, COLOUR)
    assert corpus.classes == ("ant", "cat", "macosx")
    folders = "3: .x (2 files), __MACOSX (1 file), ant/.y (1 file)"
    note = f"folders that begin with a dot or are __MACOSX, ignored: {folders}"
    assert [each for each in corpus.notes if "ignored" in each] == [note]


def test_sixteen_bit_grey_with_a_transparent_level_is_left_out_by_name(tmp_path):
    fill(tmp_path, ["train/a.png", "dev/b.png"])
    image = Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257)
    image.save(tmp_path / "train/key.png", transparency=0)
    note = "left out, transparent: 1: train/key.png (a transparent level of more than 8 bits)"
    assert note in read_corpus(tmp_path, GREY).notes


@pytest.mark.parametrize(
    ("source", "rules", "words"),
    [
        ((8, 8), COLOUR, "8x8, 3 channels, as stored"),
        ((16, 16), COLOUR, "8x8, 3 channels, area-averaged from 16x16"),
        ((17, 17), ImageRules(8, 1, "subsample"), "8x8, 1 channel, sub-sampled from 17x17"),
    ],
)
def test_the_first_note_says_how_the_images_were_reduced(tmp_path, source, rules, words):
    fill(tmp_path, ["train/a.png", "dev/c.png"], size=source)
    assert read_corpus(tmp_path, rules).notes == (f"1 image for train, 1 for dev, {words}",)


def test_loose_images_beside_class_folders_mean_no_classes(tmp_path):
    fill(tmp_path, ["cat/a.png", "ant/b.png", "c.png"])
    corpus = read_corpus(tmp_path, COLOUR)
    assert corpus.classes == () and corpus.splits["train"].labels is None
    assert "no classes, for some images have none: 1: c.png" in corpus.notes
    config = replaced(PRESETS["pixelcnn-smoke"].config, conditioning={"kind": "class"})
    with pytest.raises(DataError, match=r"needs \(no classes, for some .* 1: c\.png\)\.$"):
        ImageDataset.read(tmp_path, config)


def test_the_result_does_not_depend_on_the_threads(tmp_path):
    fill(tmp_path, [f"{i}.png" for i in range(20)], size=(30, 20))
    one, many = (gather(tmp_path, COLOUR, workers) for workers in (1, 7))
    for a, b in zip(one.entries, many.entries, strict=True):
        np.testing.assert_array_equal(a.image.levels, b.image.levels)
        assert a.name == b.name
    assert one.notes == many.notes


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


NOT_KNOWN = "(not an image that pillow knows)"
HIDDEN = "folders that begin with a dot or are __MACOSX, ignored: 1: .x (1 file)"
WORDS, IMAGES, TWO = {"a.txt": b"words"}, noise(4, 8, 8), {"a.png": 8, "b.png": 8}
AXES = "`images` must have the shape [any, any, any, 1 or 3], got "
TABLES = {
    b"file\nz.png\n": "z.png in pictures.tsv: no such file.",
    b"file\n../a.png\n": "../a.png in pictures.tsv: no such file.",
    b"name\na.png\n": "pictures.tsv: its first line names no column `file`.",
    b"": "pictures.tsv: its first line names no column `file`.",
    b"file\tcaption\na.png\t \n": "a.png: its caption is empty.",
    b"file\tcaption\na.png\n": "a.png: its caption is empty.",
    b"file\tclass\na.png\t\n": "a.png: its class is empty.",
    b"file\tcaption\na.png\t" + b"x" * 10_000: "may have 200 characters, got 10,000.",
    b"file\tsplit\na.png\ttest\n": 'split must be train or dev, got "test".',
    b"file\na.png\na.png\n": "is listed twice (before in pictures.tsv).",
    b"file\tsplit\na.png\ttrain\nb.png\t\n": "b.png is in no split, although other images",
    b"file\n\xff.png\n": "pictures.tsv: is not UTF-8 text.",
}
ARCHIVES = [
    ({"images": IMAGES / 255}, "`images` must be uint8 or uint16, got float64."),
    ({"images": IMAGES[0]}, AXES + "[8, 8]."),
    ({"images": noise(4, 3, 8, 8)}, AXES + "[4, 3, 8, 8]."),
    ({"images": IMAGES[:0]}, "`images` is empty, [0, 8, 8, 1]."),
    ({"images": IMAGES[:, 1:]}, "no usable image (left out, too small: 4: source[0] (8x7, wan"),
    ({"images": None}, "has no array `images`."),
    ({"labels": np.arange(5)}, "`labels` must have the shape [4], got [5]."),
    ({"labels": np.eye(4, dtype=int)}, "`labels` must have the shape [4], got [4, 4]."),
    ({"labels": np.zeros(4)}, "`labels` must be whole numbers, got float64."),
    ({"labels": np.arange(4), "classes": ["a", "b"]}, "must be in [0, 2), got 0 to 3."),
    ({"labels": [0, 1, 2, 2**40]}, "`labels` must be in [0, 100000), got 0 to 1099511627776."),
    ({"classes": ["a", "a"]}, "`classes` has a name twice."),
    ({"names": ["a"]}, "`names` must have the shape [4], got [1]."),
    ({"captions": ["a", "b", "x" * 300, "d"]}, "source[2]: A caption may have 200 characters, got"),
    ({"captions": ["a", "b", "c", ""]}, "source[3]: its caption is empty."),
    ({"maps": noise(4, 8, 7)}, "`maps` must have the shape [4, 8, 8], got [4, 8, 7]."),
    ({"maps": np.full([4, 8, 8], -1)}, "`maps` must be in [0, 100000), got -1 to -1."),
    ({"images": np.array([Trap()])}, "`images` cannot be read (Object arrays cannot be load"),
]
TRAIN = {"images": IMAGES, "labels": np.arange(4)}
PAIRS = [
    ({"captions": list("abcd")}, "x_train[0] has no caption, although other images have."),
    ({"labels": np.arange(4), "classes": list("abcd")}, "x_dev.npz: their `classes` differ."),
    ({"labels": np.arange(4) + 1}, "class 4 has images for dev but none for train."),
]
SOURCES = [
    (None, "no such file or folder."),
    ({}, "no image file (found no file at all)."),
    (WORDS | {"b.txt": b"", "c.py": b"words"}, "no image file (found 2 .txt, 1 .py)."),
    (WORDS | {"a.png": b"words"}, f"no usable image (left out, broken: 1: a.png {NOT_KNOWN}; skip"),
    ({".x/d.png": 8}, f"no image file (found no file at all; {HIDDEN})."),
    ({"a.png": 8}, "no image for dev, of 1 in all; train and dev need at least one each."),
    ({"train/a.png": 8, "dev/b.png": 5}, "too small: 1: dev/b.png (5x5, wanted 8x8)); train and"),
    ({f"{kind}/a.png": 8 for kind in "abc"}, "3 classes have a single image each, which stays"),
    ({"train/a/a.png": 8, "dev/a/b.png": 8, "dev/b/c.png": 8}, "class b has images for dev but"),
    ({"train/a.png": 8, "val/b.png": 8}, "has train/ and val/ but no dev/; call the folder of "),
    (b"PK?", "is not an npz file."),
    (b"", "is not an npz file."),
    (np.array([1]), "`images` must be uint8 or uint16, got int64."),
    *((TWO | {"pictures.tsv": table}, message) for table, message in TABLES.items()),
    *(({"source.npz": {"images": IMAGES} | arrays}, message) for arrays, message in ARCHIVES),
    *(({"x_train.npz": TRAIN, "x_dev.npz": {"images": IMAGES} | dev}, said) for dev, said in PAIRS),
    ({"x_train.npz": TRAIN}, "needs exactly one *_train.npz and one *_dev.npz, found 1 and 0."),
]


def write_content(path, content):
    """Writes bytes, an array, the arrays of an npz file, or an image of a side; None is no file."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, int):
        fill(path.parent, [path.name], size=(content, content))
    elif isinstance(content, np.ndarray):
        with path.open("wb") as file:
            np.save(file, content)
    elif content is not None:
        np.savez(path, **{name: array for name, array in content.items() if array is not None})


@pytest.mark.parametrize(("made", "message"), SOURCES)
def test_a_source_without_usable_images_is_refused_in_one_line(tmp_path, made, message):
    source, files = tmp_path / "source", made if isinstance(made, dict) else {}
    if made is files:
        source.mkdir()
        for name, content in files.items():
            write_content(source / name, content)
        source = source / "source.npz" if "source.npz" in files else source
    else:
        write_content(source, made)
    found = mistake(source)
    assert message in found
    assert found.startswith("SOURCE: ") or files.keys() & {"pictures.tsv", "x_dev.npz"}


def test_every_cut_of_an_npz_file_is_refused_in_one_line(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", images=IMAGES, labels=np.arange(4))
    written = (tmp_path / "whole.npz").read_bytes()
    for length in range(0, len(written), 37):
        (tmp_path / "a.npz").write_bytes(written[:length])
        assert mistake(tmp_path / "a.npz", GREY).startswith("SOURCE: ")


def test_images_of_which_only_some_have_labels_have_no_classes_and_are_named(tmp_path):
    np.savez(tmp_path / "x_train.npz", images=IMAGES, labels=np.arange(4))
    np.savez(tmp_path / "x_dev.npz", images=IMAGES)
    corpus = read_corpus(tmp_path, GREY)
    assert corpus.classes == () and corpus.splits["train"].labels is None
    named = "x_dev[0], x_dev[1], x_dev[2], x_dev[3]"
    assert f"no classes, for some images have none: 4: {named}" in corpus.notes


def within_reason(made):
    """The result of a call that must not wait for a writer at the other end of a pipe."""
    done = []
    thread = threading.Thread(target=lambda: done.append(made()), daemon=True)
    thread.start()
    thread.join(60)
    assert done, "it waits"
    return done[0]


@pytest.mark.parametrize("ending", [".png", ".npy", ".tsv", "_train.npz"])
def test_what_is_no_file_is_never_opened_and_takes_no_classes_away(tmp_path, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    fill(tmp_path, [f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(4)])
    for name in (f"a_pipe{ending}", "train.tsv", "pictures.tsv"):
        os.mkfifo(name)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(f"a_socket{ending}")
    Path(f"a_device{ending}").symlink_to("/dev/zero")
    Path(f"a_link{ending}").symlink_to("nowhere")
    Path("broken.png").write_bytes(b"words")
    assert within_reason(lambda: detect_format(tmp_path)) == Stored(3, 8)
    corpus = within_reason(lambda: read_corpus(tmp_path, COLOUR))
    assert corpus.classes == ("cat", "dog")
    assert f"left out, broken: 1: broken.png {NOT_KNOWN}" in corpus.notes
    (note,) = [note for note in corpus.notes if "links to nothing" in note]
    assert "ignored: 6: a_device" in note


@pytest.mark.parametrize(("kind", "column"), [("text", "caption"), ("class", "class")])
def test_a_table_of_hugging_face_is_mentioned_where_captions_are_missing(tmp_path, kind, column):
    fill(tmp_path, [f"{i}.png" for i in range(4)])
    (tmp_path / "metadata.csv").write_text("file_name,text\n0.png,a cat\n")
    config = replaced(PRESETS["pixelcnn-smoke"].config, conditioning={"kind": kind})
    said = refused(ImageDataset.read, tmp_path, config)
    assert "metadata.csv is not read: write pictures.tsv, separated by tabs, with the" in said
    assert f"`file` (its `file_name`) and `{column}`" in said


def test_an_npz_pair_is_taken_as_it_is(tmp_path):
    images, labels = noise(9, 8, 8), np.array([2, 0, 1] * 3, np.uint8)
    classes = np.array(["hat", "ant", "cat"])
    np.savez(tmp_path / "x_train.npz", images=images[:6], labels=labels[:6], classes=classes)
    np.savez(tmp_path / "x_dev.npz", images=images[6:], labels=labels[6:], classes=classes)
    corpus = read_corpus(tmp_path, COLOUR)
    assert corpus.classes == ("hat", "ant", "cat")
    np.testing.assert_array_equal(corpus.splits["train"].labels, labels[:6])
    np.testing.assert_array_equal(corpus.splits["dev"].images, np.stack([images[6:]] * 3, -1))


def test_larger_npz_images_are_made_as_files_are(tmp_path):
    fill(tmp_path / "files", [f"train/{i}.png" for i in range(3)] + ["dev/3.png"], size=(19, 14))
    images = np.stack([noise(14, 19, 3, seed=seed) for seed in range(4)])
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays/x_train.npz", images=images[:3])
    np.savez(tmp_path / "arrays/x_dev.npz", images=images[3:])
    files, arrays = (read_corpus(tmp_path / place, COLOUR) for place in ("files", "arrays"))
    assert files.notes == arrays.notes
    for split in ("train", "dev"):
        np.testing.assert_array_equal(files.splits[split].images, arrays.splits[split].images)


def test_classes_without_names_are_numbers_and_a_single_file_is_split(tmp_path):
    np.savez(tmp_path / "a.npz", images=noise(40, 8, 8, 1), labels=np.arange(40) % 4)
    corpus = read_corpus(tmp_path / "a.npz", GREY)
    assert corpus.classes == ("0", "1", "2", "3")
    assert sum(len(members.names) for members in corpus.splits.values()) == 40
    assert corpus.splits["dev"].names


def test_maps_are_cut_and_sub_sampled_with_their_images(tmp_path):
    maps = noise(6, 16, 18)
    images = np.repeat(maps[..., None], 3, axis=-1)
    np.savez(tmp_path / "a.npz", images=images, maps=maps, names=np.array(list("abcdef")))
    corpus = read_corpus(tmp_path / "a.npz", ImageRules(8, 1, "subsample"))
    for members in corpus.splits.values():
        np.testing.assert_array_equal(members.maps, members.images[..., 0])


def test_an_archive_and_an_array_are_known_by_their_contents(tmp_path):
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, IMAGES)
    with open(tmp_path / "several.npy", "wb") as file:
        np.savez(file, images=IMAGES, labels=np.arange(4) % 2)
    one, several = (read_corpus(tmp_path / name, GREY) for name in ("one.npz", "several.npy"))
    assert sum(len(members.names) for members in one.splits.values()) == 4
    assert several.classes == ("0", "1")


def test_a_named_data_set_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UserError, match=r"pip install onepass\[tfds\]$"):
        read_corpus("tfds:mnist", GREY)


class FakeFeatures:
    """Has no `get`, like the real one."""

    def __contains__(self, name):
        return name in ("image", "label")

    def __getitem__(self, name):
        return types.SimpleNamespace(names=["zero", "one"]) if name == "label" else None


class FakeBuilder:
    """The part of a builder of TensorFlow Datasets that is used."""

    def __init__(self, **counts):
        self.info = types.SimpleNamespace(features=FakeFeatures(), splits=dict(counts))

    def download_and_prepare(self):
        pass

    def as_dataset(self, split, shuffle_files):
        images = noise(self.info.splits[split], 8, 8, 1, seed=len(split))
        return [{"image": image, "label": i % 2} for i, image in enumerate(images)]


def fake_library(monkeypatch, builder):
    def find(name):
        if name != "toy":
            raise RuntimeError(f"Dataset {name} not found.\nDid you mean: toy")
        return builder

    library = types.SimpleNamespace(builder=find, as_numpy=lambda dataset: dataset)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", library)


@pytest.mark.parametrize(
    ("counts", "dev"),
    [
        ({"train": 6, "test": 3}, "test"),
        ({"train": 6, "test": 3, "validation": 2}, "validation"),
        ({"train": 60, "extra": 3}, "train"),
    ],
)
def test_a_named_data_set_gives_train_and_the_first_held_out_split(monkeypatch, counts, dev):
    fake_library(monkeypatch, FakeBuilder(**counts))
    corpus = read_corpus("tfds:toy", GREY)
    assert corpus.classes == ("zero", "one")
    assert {name.split("[")[0] for name in corpus.splits["dev"].names} == {dev}
    assert {name.split("[")[0] for name in corpus.splits["train"].names} == {"train"}
    first = corpus.splits["train"].names.index("train[3]")
    np.testing.assert_array_equal(
        corpus.splits["train"].images[first], noise(counts["train"], 8, 8, 1, seed=5)[3]
    )
    assert corpus.splits["train"].labels[first] == 1


def test_an_unknown_name_of_a_data_set_is_one_line(monkeypatch):
    fake_library(monkeypatch, None)
    assert mistake("tfds:other") == "SOURCE: Dataset other not found."
