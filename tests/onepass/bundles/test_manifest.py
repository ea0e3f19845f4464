"""A manifest knows every byte of its folder, and nothing else gets in."""

import hashlib
import json
import os

import pytest

import onepass
from onepass.bundles.manifest import MANIFEST, files_of, folder_kind, verify, write_manifest
from onepass.foundation.rules import UserError


@pytest.fixture
def folder(tmp_path):
    """A folder of two files, one of them deeper, with its manifest."""
    (tmp_path / "variables").mkdir()
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "variables" / "data").write_bytes(b"\0\1\2")
    write_manifest(tmp_path)
    return tmp_path


def refusal(folder):
    with pytest.raises(UserError) as refused:
        verify(folder)
    line = str(refused.value)
    assert "\n" not in line
    return line.removeprefix(f"{folder}").removeprefix(" was changed since its export: ")


def test_the_manifest_holds_what_sha256sum_says(folder):
    said = json.loads((folder / MANIFEST).read_text())
    expected = {"model.json": b"{}", "variables/data": b"\0\1\2"}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in expected.items()}
    assert said == {"format": 1, "sha256": digests}
    verify(folder)


def test_a_single_bit_that_flips_is_seen(folder):
    (folder / "variables" / "data").write_bytes(b"\0\1\3")
    assert refusal(folder) == "variables/data differs."


def test_a_file_too_few_or_too_many_is_named(folder):
    (folder / "more").touch()
    assert refusal(folder) == "more was added."
    (folder / "more").unlink()
    (folder / "model.json").unlink()
    assert refusal(folder) == "model.json is missing."


def test_a_link_is_refused_whatever_it_leads_to(folder):
    same = folder.parent / "same"
    os.replace(folder / "model.json", same)
    (folder / "model.json").symlink_to(same)
    assert refusal(folder) == "/model.json must be a plain file, not a link."
    (folder / "model.json").unlink()
    os.replace(same, folder / "model.json")
    (folder / "inside").symlink_to(folder / "variables")
    assert refusal(folder) == "/inside must be a plain file, not a link."


def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe")
    assert refusal(folder) == "/pipe must be a plain file, not a link."


def test_a_pipe_as_the_manifest_is_not_waited_for(folder):
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    assert refusal(folder) == f"/{MANIFEST} must be a plain file."


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(folder, monkeypatch):
    before = files_of(folder)
    (folder / "model.json").unlink()
    os.mkfifo(folder / "model.json")
    monkeypatch.setattr("onepass.bundles.manifest.files_of", lambda folder: before)
    assert refusal(folder) == "/model.json must be a plain file."


def test_what_would_be_read_without_end_is_refused(folder):
    with open(folder / "sparse", "wb") as file:
        file.truncate(2**40)
    assert refusal(folder) == " must have at most 34,359,738,368 bytes."
    (folder / "sparse").unlink()
    with open(folder / MANIFEST, "ab") as file:
        file.truncate(2**40)
    assert refusal(folder) == f"/{MANIFEST} must have at most 1,048,576 bytes."


def test_more_files_than_a_bundle_has_are_refused(folder):
    for number in range(1001):
        (folder / str(number)).touch()
    assert refusal(folder) == " must have at most 1000 files."


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read: Expecting property name"),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        ("[]", "is not of format 1"),
        ('{"format": 2, "sha256": {}}', "is not of format 1, which this version reads."),
        ('{"format": 1}', "must hold the key `sha256`."),
        ('{"format": 1, "sha256": {"../../etc/passwd": "0"}}', "../../etc/passwd is missing."),
    ],
)
def test_a_manifest_that_is_none_is_one_line(folder, text, complaint):
    (folder / MANIFEST).write_text(text)
    assert complaint in refusal(folder)


def test_a_folder_without_a_manifest_is_no_bundle(folder):
    (folder / MANIFEST).unlink()
    assert refusal(folder) == " is not a bundle: it has no manifest.json."


# What a folder of a model holds is decided once, and what holds two kinds is refused


def filled(folder, names):
    for name in names.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("autoregressive.json program/saved_model.pb", "saved"),
        ("saved_model.pb model.json manifest.json weights.npz", "bundle"),
        ("lowered.pb", "bundle"),
        ("1/saved_model.pb 2/saved_model.pb", "bundle"),
        ("1/autoregressive.json", "trained"),
        ("config.json", "trained"),
        ("model.json weights.npz", "trained"),
        ("other/saved_model.pb", "trained"),
        ("", "trained"),
    ],
)
def test_a_folder_is_known_by_the_names_of_its_files(names, kind, tmp_path):
    assert folder_kind(filled(tmp_path, names)) == kind


@pytest.mark.parametrize(
    ("names", "one", "other"),
    [
        ("autoregressive.json saved_model.pb", "autoregressive.json", "saved_model.pb"),
        ("autoregressive.json lowered.pb", "autoregressive.json", "lowered.pb"),
        ("autoregressive.json manifest.json", "autoregressive.json", "manifest.json"),
        ("autoregressive.json model.json", "autoregressive.json", "model.json"),
        ("autoregressive.json config.json", "autoregressive.json", "config.json"),
        ("autoregressive.json 7/saved_model.pb", "autoregressive.json", "7/saved_model.pb"),
        ("config.json saved_model.pb", "saved_model.pb", "config.json"),
        ("config.json 7/lowered.pb", "7/lowered.pb", "config.json"),
    ],
)
def test_a_folder_of_two_kinds_is_refused_by_every_way_in(names, one, other, tmp_path, mistake):
    folder = filled(tmp_path / "mine" / "1", names)
    line = f"{folder} is ambiguous: it has both {one} and {other}, of two kinds of models."
    with pytest.raises(UserError) as refused:
        onepass.load(folder)
    assert str(refused.value) == line
    for words in (("sample",), ("evaluate",)):
        assert mistake(*words, folder, "--out", tmp_path / "out") == line
    assert mistake("export", folder, "--out", tmp_path / "out/1") == line
    assert mistake("compress", folder, "x.npy", "--out", tmp_path / "x.onepass") == line


@pytest.mark.parametrize(
    ("names", "runtime"),
    [("manifest.json draw.stablehlo run.py", "JAX"), ("manifest.json step.tflite", "LiteRT")],
)
def test_a_folder_of_functions_for_another_runtime_says_what_runs_them(
    names, runtime, tmp_path, mistake
):
    folder = filled(tmp_path / "carried", names)
    line = f"{folder} holds functions for {runtime}, which runs them; it is no model."
    with pytest.raises(UserError) as refused:
        onepass.load(folder)
    assert str(refused.value) == line
    assert mistake("sample", folder, "--out", tmp_path / "out") == line


def test_a_mark_that_is_a_link_to_nothing_counts(tmp_path):
    filled(tmp_path, "saved_model.pb")
    (tmp_path / "autoregressive.json").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="ambiguous"):
        folder_kind(tmp_path)
