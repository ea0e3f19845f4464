"""What is run is what was scanned, the same bytes, wherever a program comes from."""

import ast
import functools
import json
import re
import shutil
import tempfile
from pathlib import Path

import hostile_programs
import made_once
import numpy as np
import own_models
import pytest
import tensorflow as tf
from hostile_programs import EDITS, edited, with_model
from processes import ROOT

import onepass
import serving
from onepass import likelihoods
from onepass.bundles import bundle
from onepass.bundles.manifest import write_manifest
from onepass.foundation.errors import UserError
from serving.engine.versions import bundle_loader
from serving.settings import Settings

TRUST = "If you trust its author, load it with `trust=True` (on the command line: `--trust`)."
REFUSED = {
    "writing": "WriteFile",
    "nested": "WriteFile",
    "telling": "WriteFile",
    "reading": "ReadFile",
}


@functools.cache
def written():
    """The file that the hostile programs of this process write."""
    return Path(tempfile.mkdtemp(dir=made_once.own_folder())) / "written"


@pytest.fixture
def place():
    """A file that no program may write."""
    yield written()
    assert not list(written().parent.glob("written*"))


@functools.cache
def saved_once(what):
    """The folder of a model of `hostile_programs`, or of one of `own_models`."""
    if what in ("pairs", "student"):
        return own_models.saved_folder(what)
    folder = Path(tempfile.mkdtemp(dir=made_once.own_folder())) / "mine"
    return hostile_programs.saved(folder, written(), what)


def saved(folder, what="writing"):
    return Path(shutil.copytree(saved_once(what), folder))


def copied(tmp_path, name="pairs"):
    """A copy of a bundle."""
    return shutil.copytree(own_models.bundle_folder(name), tmp_path / "models" / name / "1")


def refusal(load, *arguments):
    with pytest.raises(UserError) as refused:
        load(*arguments)
    line = str(refused.value)
    assert "\n" not in line and len(line) < 500
    return line


# Folders of `onepass.save`


@pytest.mark.parametrize("what", REFUSED)
def test_a_saved_model_that_does_more_than_compute_is_refused(what, tmp_path, place):
    folder = saved(tmp_path / "mine", what)
    file = folder / "program" / "saved_model.pb"
    line = f"{file} holds a disallowed operation: {REFUSED[what]}. {TRUST}"
    assert refusal(onepass.load, folder) == line


def test_every_command_refuses_it_in_one_line(tmp_path, place, mistake):
    folder = saved(tmp_path / "mine")
    np.save(tmp_path / "x.npy", np.zeros([2, 4], np.float32))
    (tmp_path / "x.onepass").write_bytes(b"")
    new = ("--out", tmp_path / "new" / "1")
    commands = [
        ("sample", folder, "--length", "4", *new),
        ("evaluate", folder, "--data", tmp_path / "x.npy"),
        ("export", folder, "--length", "4", *new),
        ("compress", folder, tmp_path / "x.npy", *new),
    ]
    for words in commands:
        assert mistake(*words).endswith(f"disallowed operation: WriteFile. {TRUST}")
    assert not (tmp_path / "new" / "1").exists()


def test_what_is_trusted_runs(tmp_path):
    assert onepass.load(saved_once("writing"), trust=True).sample(1, 4, 0).shape == (1, 4)
    written().unlink()
    words = ["sample", saved_once("writing"), "--length", "4", "--out", tmp_path / "new", "--trust"]
    assert onepass.main([str(word) for word in words]) == 0
    assert written().read_text() == "written"
    written().unlink()


def test_a_text_of_a_program_is_no_way_round(tmp_path, place):
    from google.protobuf import text_format

    folder = saved(tmp_path / "mine")
    file = folder / "program" / "saved_model.pb"
    text = text_format.MessageToString(hostile_programs.program_of(file))
    file.with_suffix(".pbtxt").write_text(text)
    file.unlink()
    assert refusal(onepass.load, folder).startswith(f"{folder} contains no model that `save`")


def test_assets_are_refused(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            (tmp_path / "words").write_text("a")
            self.words = tf.saved_model.Asset(str(tmp_path / "words"))

    folder = saved(tmp_path / "mine", "harmless_network")
    tf.saved_model.save(Module(), str(folder / "program"))
    assert "holds a disallowed object: asset" in refusal(onepass.load, folder)


@pytest.mark.parametrize("name", ["pairs", "student"])
def test_the_bytes_that_are_loaded_are_those_that_were_scanned(name, tmp_path, place, monkeypatch):
    folder, hostile = saved(tmp_path / "mine", name), saved_once("writing")
    scan = bundle.scanned_program

    def scan_then_swap(program):
        content = scan(program)
        shutil.copy(hostile / "program" / "saved_model.pb", program / "saved_model.pb")
        return content

    monkeypatch.setattr(bundle, "scanned_program", scan_then_swap)
    expected = own_models.model(name).sample(1, 6, 3)
    np.testing.assert_allclose(onepass.load(folder).sample(1, 6, 3), expected, atol=1e-4)


def test_a_program_of_a_bundle_is_read_once(tmp_path, place, monkeypatch):
    path, scan = copied(tmp_path), bundle.check_program
    expected = own_models.bundle("pairs").sample(1, 6, 3)
    hostile = saved_once("writing")

    def scan_then_swap(folder, signatures):
        graph = scan(folder, signatures)
        shutil.copy(hostile / "program" / "saved_model.pb", folder / "saved_model.pb")
        return graph

    monkeypatch.setattr(bundle, "check_program", scan_then_swap)
    np.testing.assert_array_equal(onepass.load(path).sample(1, 6, 3), expected)


@tf.custom_gradient
def _steep(x):
    return tf.identity(x), lambda upstream: 3.0 * upstream


def test_a_gradient_of_its_own_is_scanned_and_kept(tmp_path):
    model = onepass.Autoregressive(
        lambda x: tf.concat([_steep(x), x], -1), likelihoods.Gaussian(levels=64)
    )
    loaded = onepass.load(onepass.save(model, tmp_path / "mine"))
    x = tf.constant([[[0.5]]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.symbol_network.call(x)
    np.testing.assert_allclose(tape.gradient(y, x), [[[4.0]]])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"inputs": None}, "contains no model"),
        ({"distribution": []}, "contains no model"),
        ({"distribution": {"density": "x"}}, "contains no model"),
        ({"step_rows": "x"}, "contains no model"),
        ({"order": 3}, "contains no model"),
        ({"kind": []}, "which is unknown"),
    ],
)
def test_a_description_that_is_damaged_is_one_line(damage, says, tmp_path):
    folder = saved(tmp_path / "mine", "pairs")
    file = folder / "autoregressive.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    line = refusal(onepass.load, folder)
    assert line.startswith(str(folder)) and says in line


def test_variables_that_are_links_or_cut_are_one_line(tmp_path):
    folder = saved(tmp_path / "mine", "pairs")
    (index,) = (folder / "program" / "variables").glob("*.index")
    content = index.read_bytes()
    index.write_bytes(content[: len(content) // 2])
    assert refusal(onepass.load, folder).startswith(f"{folder} contains no model")
    index.unlink()
    index.symlink_to("/etc/hostname")
    assert refusal(onepass.load, folder) == f"{index} must be a plain file, not a link."


# Bundles


@pytest.mark.parametrize("what", REFUSED)
def test_a_harmless_program_beside_a_hostile_one_hides_nothing(what, tmp_path, place):
    path = copied(tmp_path)
    with_model(path, saved_once(what))
    write_manifest(path)
    file = path / "autoregressive" / "program" / "saved_model.pb"
    line = f"{file} holds a disallowed operation: {REFUSED[what]}."
    assert refusal(lambda: serving.load(path).autoregressive) == line
    shutil.copy(file, path / "saved_model.pb")
    write_manifest(path)
    assert refusal(onepass.load, path).endswith(f"disallowed operation: {REFUSED[what]}.")


@pytest.mark.integration
def test_a_saved_model_inside_a_bundle_is_refused_by_every_way_in(tmp_path, place, mistake):
    path = copied(tmp_path)
    shutil.copytree(saved_once("writing"), path, dirs_exist_ok=True)
    write_manifest(path)
    line = (
        f"{path} is ambiguous: it has both autoregressive.json and saved_model.pb, of two kinds of "
        "models."
    )
    for load in (onepass.load, serving.load, bundle_loader(Settings(load_seconds=300.0))):
        assert refusal(load, path) == line
    assert mistake("sample", path, "--length", "4", "--out", tmp_path / "new") == line


@pytest.mark.parametrize("edit", EDITS)
def test_the_saver_is_no_way_round(edit, tmp_path, place):
    path = copied(tmp_path)
    edited(path / "saved_model.pb", lambda graph: edit(graph, place))
    write_manifest(path)
    line = refusal(serving.load, path)
    assert line.startswith(f"{path}/saved_model.pb holds a disallowed operation: {EDITS[edit]}")


# The code

LOADERS = {
    "saved_model.load": "onepass/storage/load.py",  # of `stored_models`, its one caller
    # made here
    "import_graph_def": "onepass/bundles/bundle.py onepass/planning/pipeline/export.py",
    "mlir_module_serialized": "onepass/replicator/portable/run.py",
    "models.load_model": "",
    "allow_pickle=True": "",
    "pickle.": "",
    "marshal.": "",
    "model_store.load_stored": "onepass/bundles/bundle.py",
    "storage.load import load": "onepass/bundles/bundle.py onepass/storage/__init__.py",
}


def test_programs_of_files_are_run_in_these_places_alone():
    folders = ("wavenet", "pixelcnn", "distill", "serving", "onepass")
    found = {words: [] for words in LOADERS}
    for path in sorted(path for name in folders for path in (ROOT / name).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        likely = [words for words in LOADERS if all(w in text for w in re.findall(r"\w+", words))]
        code = ast.unparse(_without_docstrings(ast.parse(text))) if likely else ""
        for words in likely:
            if re.search(rf"(?<!\w){re.escape(words)}", code):
                found[words].append(path.relative_to(ROOT).as_posix())
    assert found == {words: sorted(places.split()) for words, places in LOADERS.items()}


def _without_docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(0)
    return tree
