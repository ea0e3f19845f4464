"""Images from npz files and from named data sets."""

import sys
import types

import numpy as np
import pytest
from image_files import COLOUR, GREY, fill, mistake, noise

from onepass.foundation.errors import UserError
from pixelcnn.data.corpus import ImageRules, read_corpus


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


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


IMAGES = noise(4, 8, 8)


AXES = "`images` must have the shape [any, any, any, 1 or 3], got "


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES / 255}, "`images` must be uint8 or uint16, got float64."),
        ({"images": IMAGES[0]}, AXES + "[8, 8]."),
        ({"images": noise(4, 3, 8, 8)}, AXES + "[4, 3, 8, 8]."),
        ({"images": IMAGES[:0]}, "`images` is empty, [0, 8, 8, 1]."),
        ({"images": IMAGES[:, 1:]}, "no usable image (left out, too small: 4: a[0] (8x7, wanted 8"),
        ({"images": None}, "has no array `images`."),
        ({"labels": np.arange(5)}, "`labels` must have the shape [4], got [5]."),
        ({"labels": np.eye(4, dtype=int)}, "`labels` must have the shape [4], got [4, 4]."),
        ({"labels": np.zeros(4)}, "`labels` must be whole numbers, got float64."),
        ({"labels": np.arange(4), "classes": ["a", "b"]}, "must be in [0, 2), got 0 to 3."),
        ({"labels": [0, 1, 2, 2**40]}, "`labels` must be in [0, 100000), got 0 to 1099511627776."),
        ({"classes": ["a", "a"]}, "`classes` has a name twice."),
        ({"names": ["a"]}, "`names` must have the shape [4], got [1]."),
        ({"captions": ["a", "b", "x" * 300, "d"]}, "a[2]: A caption may have 200 characters, got"),
        ({"captions": ["a", "b", "c", ""]}, "a[3]: its caption is empty."),
        ({"maps": noise(4, 8, 7)}, "`maps` must have the shape [4, 8, 8], got [4, 8, 7]."),
        ({"maps": np.full([4, 8, 8], -1)}, "`maps` must be in [0, 100000), got -1 to -1."),
        ({"images": np.array([Trap()])}, "`images` cannot be read (Object arrays cannot be load"),
    ],
)
def test_a_wrong_npz_file_is_named_in_one_line(tmp_path, arrays, message):
    arrays = {name: a for name, a in ({"images": IMAGES} | arrays).items() if a is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    found = mistake(tmp_path / "a.npz", GREY)
    assert found.startswith("SOURCE: ") and message in found


def test_every_cut_of_an_npz_file_is_refused_in_one_line(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", images=IMAGES, labels=np.arange(4))
    written = (tmp_path / "whole.npz").read_bytes()
    for length in range(0, len(written), 37):
        (tmp_path / "a.npz").write_bytes(written[:length])
        assert mistake(tmp_path / "a.npz", GREY).startswith("SOURCE: ")


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ({"captions": list("abcd")}, "x_train[0] has no caption, although other images have."),
        ({"labels": np.arange(4), "classes": list("abcd")}, "x_dev.npz: their `classes` differ."),
        ({"labels": np.arange(4) + 1}, "class 4 has images for dev but none for train."),
        (None, "needs exactly one *_train.npz and one *_dev.npz, found 1 and 0."),
    ],
)
def test_npz_files_that_disagree_are_refused_in_one_line(tmp_path, dev, message):
    np.savez(tmp_path / "x_train.npz", images=IMAGES, labels=np.arange(4))
    if dev is not None:
        np.savez(tmp_path / "x_dev.npz", images=IMAGES, **dev)
    assert mistake(tmp_path, GREY).endswith(message)


def test_images_of_which_only_some_have_labels_have_no_classes_and_are_named(tmp_path):
    np.savez(tmp_path / "x_train.npz", images=IMAGES, labels=np.arange(4))
    np.savez(tmp_path / "x_dev.npz", images=IMAGES)
    corpus = read_corpus(tmp_path, GREY)
    assert corpus.classes == () and corpus.splits["train"].labels is None
    named = "x_dev[0], x_dev[1], x_dev[2], x_dev[3]"
    assert f"no classes, for some images have none: 4: {named}" in corpus.notes


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
