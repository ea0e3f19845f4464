"""What is run is what was scanned, the same bytes, wherever a program comes from."""

import ast
import functools
import re
import shutil
import tempfile
from pathlib import Path

import hostile_graphs
import made_once
import numpy as np
import own_models
import pytest
import tensorflow as tf
from hostile_programs import EDITS, edited, hostile_program
from processes import ROOT

import onepass
import serving
from onepass import likelihoods
from onepass.bundles import bundle
from onepass.bundles.manifest import write_manifest
from onepass.foundation.allowed_operations import scan_graph
from onepass.foundation.errors import UserError
from onepass.storage import frozen
from serving.engine.registry import bundle_loader
from serving.settings import Settings


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
def saved_once():
    folder = Path(tempfile.mkdtemp(dir=made_once.own_folder())) / "mine"
    return onepass.save(hostile_graphs.model(), folder)


def saved(folder, edit=""):
    """A copy of a saved folder, with an edit of `hostile_graphs`."""
    shutil.copytree(saved_once(), folder)
    if edit:
        hostile_graphs.edit(folder, written(), edit)
    return folder


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


@pytest.mark.parametrize("name", hostile_graphs.EDITS)
def test_a_saved_folder_that_does_more_than_compute_or_is_damaged_is_refused(name, tmp_path, place):
    folder = saved(tmp_path / "mine", name)
    line = refusal(onepass.load, folder)
    assert line.startswith(str(folder)) and hostile_graphs.EDITS[name][1] in line


def test_every_command_refuses_it_in_one_line(tmp_path, place, mistake):
    folder = saved(tmp_path / "mine", "writing")
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
        assert mistake(*words).endswith("disallowed operation: WriteFile.")
    assert not (tmp_path / "new" / "1").exists()


def test_the_bytes_that_are_loaded_are_those_that_were_scanned(tmp_path, place, monkeypatch):
    folder, scan = saved(tmp_path / "mine"), frozen.check_frozen
    hostile = saved(tmp_path / "hostile", "writing")

    def scan_then_swap(path, graph):
        scan(path, graph)
        shutil.copy(hostile / "program" / "graph.pb", path)

    monkeypatch.setattr(frozen, "check_frozen", scan_then_swap)
    expected = hostile_graphs.model().sample(1, 6, 3)
    np.testing.assert_array_equal(onepass.load(folder).sample(1, 6, 3), expected)
    assert refusal(onepass.load, folder).endswith("it is not the file that was saved.")


@tf.custom_gradient
def _steep(x):
    return tf.identity(x), lambda upstream: 3.0 * upstream


def test_a_gradient_of_its_own_is_scanned_and_kept(tmp_path, place):
    model = onepass.Autoregressive(
        lambda x: tf.concat([_steep(x), x], -1), likelihoods.Gaussian(levels=64)
    )
    folder = onepass.save(model, tmp_path / "mine")
    loaded = onepass.load(folder)
    x = tf.constant([[[0.5]]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.symbol_network.call(x)
    np.testing.assert_allclose(tape.gradient(y, x), [[[4.0]]])
    hostile_graphs.writing(folder, written(), "gradient_0")
    hostile_graphs.seal(folder)
    assert refusal(onepass.load, folder).endswith("disallowed operation: WriteFile.")


# Bundles


def test_a_harmless_program_beside_a_hostile_one_hides_nothing(tmp_path, place):
    path = copied(tmp_path)
    shutil.rmtree(path / "autoregressive")
    saved(path / "autoregressive", "writing")
    write_manifest(path)
    file = path / "autoregressive" / "program" / "graph.pb"
    line = f"{file} holds a disallowed operation: WriteFile."
    assert refusal(lambda: serving.load(path).autoregressive) == line
    shutil.copy(hostile_program(tmp_path / "hostile", place), path / "saved_model.pb")
    write_manifest(path)
    assert refusal(onepass.load, path).endswith("disallowed operation: WriteFile.")


def test_a_program_of_a_bundle_is_read_once(tmp_path, place, monkeypatch):
    path, scan = copied(tmp_path), bundle.check_program
    expected = own_models.bundle("pairs").sample(1, 6, 3)
    hostile = hostile_program(tmp_path / "hostile", place)

    def scan_then_swap(folder, signatures):
        graph = scan(folder, signatures)
        shutil.copy(hostile, folder / "saved_model.pb")
        return graph

    monkeypatch.setattr(bundle, "check_program", scan_then_swap)
    np.testing.assert_array_equal(onepass.load(path).sample(1, 6, 3), expected)


def test_assets_are_refused(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            (tmp_path / "words").write_text("a")
            self.words = tf.saved_model.Asset(str(tmp_path / "words"))

    tf.saved_model.save(Module(), str(tmp_path / "program"))
    path = tmp_path / "program" / "saved_model.pb"
    assert "holds a disallowed object: asset" in refusal(scan_graph, path)


@pytest.mark.integration
def test_a_saved_model_inside_a_bundle_is_refused_by_every_way_in(tmp_path, place, mistake):
    path = copied(tmp_path)
    shutil.copytree(saved(tmp_path / "mine", "writing"), path, dirs_exist_ok=True)
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
    "saved_model.load": "",
    # scanned; made here
    "import_graph_def": "onepass/bundles/bundle.py onepass/planning/pipeline/export.py"
    " onepass/storage/frozen.py",
    # scanned; of operations that were traced here
    "function_def_to_graph(": "onepass/step/replay.py onepass/storage/frozen.py",
    "mlir_module_serialized": "onepass/replicator/portable/run.py",
    "models.load_model": "",
    "allow_pickle=True": "",
    "pickle.": "",
    "marshal.": "",
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
