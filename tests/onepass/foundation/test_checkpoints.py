"""Checkpoints are whole or not there, the right ones are kept, and damage is noticed."""

import errno
import json
import math
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from runs import assert_same

from onepass.foundation.files import read_npy, read_npz, write_npz, write_text
from onepass.foundation.model_folders import best_or_newest
from onepass.foundation.rules import UserError, in_one_line
from onepass.foundation.run_directory import Checkpoints, RunDirectory
from onepass.replicator import strategies
from onepass.replicator.training.state import assign_arrays, resume_variables


def arrays(step):
    draws = np.random.default_rng(step)
    return {
        "step": np.int32(step),
        "weights/layers/0/kernel": draws.normal(size=(40, 5)).astype(np.float32),
        "average/bias": draws.normal(size=3).astype(np.float32),
    }


@pytest.fixture
def saved(tmp_path):
    """Three checkpoints, the oldest being the best."""
    kept = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step, score in ((10, 1.0), (20, 3.0), (30, 2.0)):
        kept.save(step, arrays(step))
        kept.mark_scored(step, score)
    return kept


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("damaged", "used", "said"),
    [([10], 30, [10]), ([30], 10, []), ([10, 30], 20, [10, 30])],
    ids=["best", "newest", "both"],
)
def test_damaged_weights_that_would_have_been_used_are_named(saved, capsys, damaged, used, said):
    for step in damaged:
        cut_in_half(saved.path(step))
    assert_same(best_or_newest(RunDirectory(saved.folder.parent)), arrays(used))
    assert capsys.readouterr().err.splitlines() == [
        f"{saved.path(step)} is damaged; using step {used} instead." for step in said
    ]


def test_newer_weights_that_were_never_evaluated_are_named_and_not_used(saved, capsys):
    run = RunDirectory(saved.folder.parent)
    assert_same(best_or_newest(run), arrays(10))
    assert capsys.readouterr().err == ""
    saved.save(35, arrays(35))
    assert_same(best_or_newest(run), arrays(10))
    said = f"{run.path}: using step 10; step 35 is not evaluated on dev yet.\n"
    assert capsys.readouterr().err == said


def test_what_was_saved_is_read_bit_for_bit_and_by_numpy(saved):
    found, damaged = saved.newest()
    assert_same(found, arrays(30))
    assert [array.dtype for array in found.values()] == [a.dtype for a in arrays(30).values()]
    assert damaged == []
    with np.load(saved.path(30), allow_pickle=False) as file:
        assert_same(dict(file), arrays(30))


def test_the_newest_are_kept_beside_the_best_or_all(saved):
    assert saved.steps() == [10, 20, 30]
    saved.save(40, arrays(40))
    assert saved.steps() == [10, 30, 40]
    saved.mark_scored(40, 0.5)
    saved.save(50, arrays(50))
    saved.save(60, arrays(60))
    assert saved.steps() == [40, 50, 60]
    assert (saved.best_step(), saved.best_score(), saved.scored_step()) == (40, 0.5, 40)
    saved.save(70, arrays(70), keep_all=True)
    assert saved.steps() == [40, 50, 60, 70]


@pytest.mark.parametrize("score", [math.nan, math.inf, 1.0, 2.5])
def test_a_score_that_is_no_better_is_not_the_best(saved, score):
    assert not saved.mark_scored(30, score)
    assert (saved.best_step(), saved.best_score(), saved.scored_step()) == (10, 1.0, 30)
    (saved.folder / "scores.json").unlink()
    assert saved.mark_scored(30, score) == math.isfinite(score)  # the first one
    assert saved.best_step() == (30 if math.isfinite(score) else None)


def test_a_best_whose_file_is_gone_gives_way_to_the_next(saved):
    saved.path(10).unlink()
    assert (saved.best_step(), saved.best_score()) == (30, 2.0)
    saved.path(20).unlink()
    assert saved.mark_scored(30, 7.0)
    assert (saved.best_step(), saved.best_score()) == (30, 7.0)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '[["x", 1.0]]', "[[10]]", '{"10": 1.0}', "[[10, [1.0]]]"]
)
def test_a_damaged_note_of_the_best_is_no_note(saved, text):
    (saved.folder / "scores.json").write_text(text)
    assert saved.best_step() is None
    assert saved.newest()[0]["step"] == 30


def test_damaged_files_are_passed_over_and_named(saved):
    cut_in_half(saved.path(30))
    found, damaged = saved.newest()
    assert_same(found, arrays(20))
    assert damaged == [saved.path(30)]
    for step in (10, 20):
        cut_in_half(saved.path(step))
    every = "step_00000030.npz, step_00000020.npz, step_00000010.npz"
    with pytest.raises(UserError, match=f"Every checkpoint in .* is damaged .{every}"):
        saved.newest()
    assert saved.steps() == [10, 20, 30]


def test_a_folder_without_checkpoints_has_none_and_is_not_made(tmp_path):
    assert Checkpoints(tmp_path / "none").newest() == (None, [])
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match=r"There is no checkpoint .*/none\.npz\."):
        read_npz(tmp_path / "none.npz")


def test_files_of_other_names_are_passed_over(saved):
    names = ("step_x.npz", "step_1.npz.part", "step_00000099.damaged", ".step_7.npz", "step_7.npz")
    for name in (*names, "step_final.npz", "step_00000007 (1).npz", "step_.npz"):
        (saved.folder / name).write_bytes(b"a copy of somebody's")
    assert saved.steps() == [10, 20, 30]


def test_no_flipped_byte_changes_an_array(tmp_path):
    """It may hide one, in the table of contents; `TrainState.restore` then misses it by name."""
    path, expected = tmp_path / "a.npz", arrays(1)
    write_npz(path, expected)
    whole, noticed = path.read_bytes(), 0
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x55
        path.write_bytes(flipped)
        try:
            found = read_npz(path)
            assert_same(found, {name: expected[name] for name in found})
        except UserError as error:
            noticed += 1
            assert str(error).startswith(f"The checkpoint {path} is damaged: ")
    assert noticed > 0.8 * len(whole)


@pytest.mark.parametrize("content", [b"", b"text\n" * 100, b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path, content):
    path = tmp_path / "step_00000001.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"The checkpoint {path} is damaged"):
        read_npz(path)


def test_an_archive_that_unpacks_without_end_is_refused_before_any_of_it_is(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, zeros=np.zeros(2**24, np.uint8))

    def unpacked(*arguments):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr("zipfile.ZipFile.read", unpacked)
    with pytest.raises(UserError, match=r"damaged: its [\d,]+ bytes unpack to 16,777,344, over 20"):
        read_npz(path)


def test_a_full_disk_leaves_the_file_before_and_no_other(saved, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = names(saved.folder)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"Cannot write .*step_00000030\.npz: No space left on dev"):
        saved.save(30, arrays(31))
    with pytest.raises(UserError, match="Earlier files are unchanged"):
        saved.save(40, arrays(40))
    assert names(saved.folder) == before
    assert_same(saved.newest()[0], arrays(30))


def test_a_write_that_the_system_cuts_short_leaves_what_was_there(saved):
    before, (limit, most) = names(saved.folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, most))
    try:
        with pytest.raises(UserError, match=rf"^Cannot write {saved.path(40)}: File too large"):
            saved.save(40, {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert names(saved.folder) == before


def test_a_text_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_text(path, json.dumps({"a": 1}))

    def full(self, text, encoding=None):
        with open(self, "w") as file:
            file.write(text[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"Cannot write .*config\.json: No space left on device"):
        write_text(path, json.dumps({"a": 2}))
    assert json.loads(path.read_text()) == {"a": 1}
    assert names(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"a": np.zeros(2, np.float16)}, "got float16"),
        ({"a": np.zeros(3, np.float32)}, r"got float32 \[3\]"),
        ({"b": None}, "got none"),
    ],
)
def test_an_array_that_does_not_fit_sets_nothing(change, found):
    into = {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(3)}
    arrays = {"a": np.ones(2, np.float32), "b": np.int32(7)} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(UserError, match=f"`{next(iter(change))}` must be .*{found}"):
        assign_arrays(into, arrays)
    assert into["a"].numpy().tolist() == [1.0, 2.0] and into["b"].numpy() == 3


def test_the_newest_checkpoint_is_in_the_variables(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    into = {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(3)}
    resume_variables(strategies.single(), checkpoints, into)
    assert into["b"].numpy() == 3
    for step in (1, 2):
        checkpoints.save(step, {"a": np.full(2, step, np.float32), "b": np.int32(step)})
    resume_variables(strategies.single(), checkpoints, into)
    assert into["a"].numpy().tolist() == [2.0, 2.0] and into["b"].numpy() == 2


def test_a_mistake_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as caught, in_one_line("own"):
        raise UserError("That is wrong.")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "own: That is wrong.\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.npz", "is an npz archive; write its array to a file by `numpy.save`"),
        ("objects.npy", "cannot be read as an npy file: it holds Python objects"),
        ("text.npy", "cannot be read as an npy file: it is invalid"),
        ("number.npy", "must contain one array with at least one axis"),
        ("gone.npy", "no such file"),
        ("folder.npy", "cannot be read as an npy file: Is a directory"),
    ],
)
def test_a_file_that_holds_no_array_is_named_with_the_reason(tmp_path, name, why):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([None], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "number.npy", np.array(3.0))
    with pytest.raises(UserError) as caught:
        read_npy(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name)) and why in str(caught.value)
