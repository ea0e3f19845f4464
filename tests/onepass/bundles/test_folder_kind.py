"""What a folder of a model holds is decided once, and what holds two kinds is refused."""

import pytest

import onepass
from onepass.bundles.manifest import folder_kind
from onepass.foundation.errors import UserError


def made(folder, names):
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
    assert folder_kind(made(tmp_path, names)) == kind


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
    folder = made(tmp_path / "mine" / "1", names)
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
    folder = made(tmp_path / "carried", names)
    line = f"{folder} holds functions for {runtime}, which runs them; it is no model."
    with pytest.raises(UserError) as refused:
        onepass.load(folder)
    assert str(refused.value) == line
    assert mistake("sample", folder, "--out", tmp_path / "out") == line


def test_a_mark_that_is_a_link_to_nothing_counts(tmp_path):
    made(tmp_path, "saved_model.pb")
    (tmp_path / "autoregressive.json").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="ambiguous"):
        folder_kind(tmp_path)
