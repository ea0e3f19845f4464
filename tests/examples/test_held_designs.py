"""Designs of known subjects that training does not see."""

import numpy as np
import pytest

from examples.held_designs import held_pairs, subject_of, write_held
from pixelcnn.data.sources import DataError, read_arrays

DESIGNS = ("round", "square", "flat")


def folder_of(path, subjects=40):
    """A folder of two files: every subject of train in every design, one of dev."""
    names = np.repeat([f"1f{i:03x}" for i in range(subjects)], len(DESIGNS))
    styles = np.tile(DESIGNS, subjects)
    captions = np.array([f"thing {n}, {s}" for n, s in zip(names, styles, strict=True)])
    images = np.arange(len(names), dtype=np.uint8)[:, None, None, None] + np.zeros([8, 8, 3], int)
    arrays = {"images": images.astype(np.uint8), "names": names, "styles": styles}
    arrays |= {"captions": captions, "labels": np.arange(len(names)) % 2}
    path.mkdir()
    np.savez(path / "x_train.npz", **arrays, classes=np.array(["even", "odd"]))
    np.savez(path / "x_dev.npz", **{key: array[:1] for key, array in arrays.items()})
    return path, arrays


def test_train_and_held_are_the_source_and_no_held_subject_is_unknown(tmp_path):
    source, given = folder_of(tmp_path / "from")
    count = write_held(source, tmp_path / "to", 0.5, ["thing 1f000, flat"])
    keys = (*given, "classes")
    train = read_arrays(tmp_path / "to" / "x_train.npz", keys)
    held = read_arrays(tmp_path / "to" / "held" / "x_held_dev.npz", keys)
    assert (source / "x_dev.npz").read_bytes() == (tmp_path / "to" / "x_dev.npz").read_bytes()
    assert len(held["names"]) == count and 10 <= count <= 30  # about half of the 40 subjects
    assert "thing 1f000, flat" in held["captions"]
    assert set(held["captions"]).isdisjoint(train["captions"])
    assert set(held["names"]) <= set(train["names"])
    for key, array in given.items():
        both = np.concatenate([train[key], held[key]])
        order = np.argsort(np.concatenate([train["captions"], held["captions"]]))
        np.testing.assert_array_equal(both[order], array[np.argsort(given["captions"])])
        assert list(train["classes"]) == list(held["classes"]) == ["even", "odd"]


def test_all_skin_tones_of_a_subject_are_held_together():
    names = ["1f44b-1f3fb", "1f44b-1f3ff", "1f44b", "1f468-1f3fb-200d-1f9b2", "1f3f4-200d-2620"]
    subjects = ["1f44b", "1f44b", "1f44b", "1f468-200d-1f9b2", "1f3f4-200d-2620"]
    assert [subject_of(name) for name in names] == subjects
    subjects, designs = ["a", "a", "a", "a"], ["flat", "flat", "round", "round"]
    held = held_pairs(subjects, designs, 1.0, [False] * 4)
    assert held.tolist() in ([True, True, False, False], [False, False, True, True])
    wanted = held_pairs(subjects, designs, 0.0, [False, True, False, False])
    assert wanted.tolist() == [True, True, False, False]


def test_a_subject_of_one_design_is_never_chosen_and_cannot_be_asked_for():
    assert not held_pairs(["a", "b"], ["flat", "flat"], 1.0, [False, False]).any()
    with pytest.raises(DataError, match=r"^a: no design would be left to train on\.$"):
        held_pairs(["a", "b"], ["flat", "flat"], 0.0, [True, False])


def test_what_a_source_lacks_is_named(tmp_path):
    source, _ = folder_of(tmp_path / "from", 2)
    with pytest.raises(DataError, match=r"x_train\.npz: no image has the caption a dog\.$"):
        write_held(source, tmp_path / "to", 0.1, ["a dog"])
    np.savez(source / "x_train.npz", images=np.zeros([1, 8, 8], np.uint8))
    with pytest.raises(DataError, match=r"x_train\.npz: has no array `names`\.$"):
        write_held(source, tmp_path / "to", 0.1, [])
    with pytest.raises(DataError, match=r"needs a \*_train\.npz and a \*_dev\.npz\.$"):
        write_held(tmp_path, tmp_path / "to", 0.1, [])


def test_a_file_that_is_none_is_refused_as_one_line(tmp_path):
    source, given = folder_of(tmp_path / "from")
    with pytest.raises(DataError, match=r"is the source; name another folder\.$"):
        write_held(source, source, 0.5, [])
    np.savez(source / "x_train.npz", **given | {"styles": given["styles"][:-1]})
    with pytest.raises(DataError, match=r"`styles` must have the shape \[120\], got \[119\]\.$"):
        write_held(source, tmp_path / "to", 0.5, [])
    for content in (b"", b"no archive", (source / "x_train.npz").read_bytes()[:200]):
        (source / "x_train.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"x_train\.npz: is not an npz file\.$"):
            write_held(source, tmp_path / "to", 0.5, [])
    assert not (tmp_path / "to").exists()
