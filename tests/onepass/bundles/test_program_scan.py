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
from hostile_files import refused
from image_bundles import edit_program
from processes import ROOT

import onepass
import serving
from onepass import likelihoods
from onepass.bundles import bundle
from onepass.bundles.manifest import write_manifest
from onepass.foundation.allowed_operations import scan_graph
from onepass.storage import frozen
from serving.engine.registry import bundle_loader
from serving.settings import Settings


def hostile_program(folder, place):
    """The file of a SavedModel that writes a file when it is called."""

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, 1])])
        def call(self, x):
            with tf.control_dependencies([tf.io.write_file(str(place), "written")]):
                return tf.identity(x)

    tf.saved_model.save(Module(), str(folder))
    return folder / "saved_model.pb"


# Edits of a program: each has what is dangerous reached in another way.


def functions_of(graph, part):
    return [f for f in graph.graph_def.library.function if part in f.signature.name]


def constant(function, name, value):
    node = function.node_def.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return f"{name}:output:0"


def restoring_that_writes(graph, place):
    """Variables are written to a file where they should be restored."""
    (function,) = functions_of(graph, "traced_restore")
    node = function.node_def.add(name="evil", op="SaveV2")
    for name, value in (("place", str(place)), ("names", ["a"]), ("slices", [""])):
        node.input.append(constant(function, f"evil/{name}", value))
    node.input.append("Identity:output:0")
    node.attr["dtypes"].list.type.append(tf.float32.as_datatype_enum)
    function.control_ret["evil"] = "evil"
    function.signature.control_output.append("evil")
    next(n for n in reversed(function.node_def) if n.op == "NoOp").input.append("^evil")


def restoring_from_another_file(graph, place):
    """Variables are read from a file of another's."""
    (function,) = functions_of(graph, "traced_restore")
    other = constant(function, "evil", str(place))
    for node in function.node_def:
        if node.op == "RestoreV2":
            node.input[0] = other


def restoring_from_a_name_of_its_own(graph, place):
    """The name that the loader gives goes elsewhere."""
    node = graph.graph_def.node.add(name="evil", op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(str(place)))
    restore = next(n for n in graph.graph_def.node if n.name == graph.saver_def.restore_op_name)
    restore.input[0] = "evil"


def restoring_that_runs_the_saver(graph, place):
    """The node that saves runs before the one that restores."""
    restore = next(n for n in graph.graph_def.node if n.name == graph.saver_def.restore_op_name)
    restore.input.append(f"^{graph.saver_def.save_tensor_name.partition(':')[0]}")


def gradient_that_saves(graph, place):
    """The function that saves is the gradient of an operation."""
    (function,) = functions_of(graph, "traced_save")
    graph.graph_def.library.registered_gradients.add(
        gradient_func=function.signature.name, registered_op_type="evil"
    )


def attribute_of_an_attribute(graph, place):
    """The function that saves is given to a function that calls what it is given."""
    (saving,) = functions_of(graph, "traced_save")
    inner = graph.graph_def.library.function.add()
    inner.signature.name = "inner"
    inner.node_def.add(name="call", op="PartitionedCall").attr["f"].placeholder = "given"
    known = graph.object_graph_def.concrete_functions
    library = graph.graph_def.library.function
    root = next(f for f in library if f.signature.name in known)
    call = root.node_def.add(name="evil", op="PartitionedCall").attr["f"].func
    call.name = "inner"
    call.attr["given"].func.name = saving.signature.name


def default_of_an_attribute(graph, place):
    """The function that saves is the default of what a function calls."""
    (saving,) = functions_of(graph, "traced_save")
    known = graph.object_graph_def.concrete_functions
    library = graph.graph_def.library.function
    root = next(f for f in library if f.signature.name in known)
    attribute = root.signature.attr.add(name="given", type="func")
    attribute.default_value.func.name = saving.signature.name


EDITS = {
    restoring_that_writes: "SaveV2",
    restoring_from_another_file: "RestoreV2 of another file",
    restoring_from_a_name_of_its_own: "RestoreV2 of another file",
    restoring_that_runs_the_saver: "",
    gradient_that_saves: "",
    attribute_of_an_attribute: "",
    default_of_an_attribute: "",
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


# Folders of `onepass.save`


@pytest.mark.parametrize("name", hostile_graphs.EDITS)
def test_a_saved_folder_that_does_more_than_compute_or_is_damaged_is_refused(name, tmp_path, place):
    folder = saved(tmp_path / "mine", name)
    line = refused(onepass.load, folder)
    assert line.startswith(str(folder)) and hostile_graphs.EDITS[name] in line


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
    assert refused(onepass.load, folder).endswith("it is not the file that was saved.")


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
    assert refused(onepass.load, folder).endswith("disallowed operation: WriteFile.")


# Bundles


def test_a_harmless_program_beside_a_hostile_one_hides_nothing(tmp_path, place):
    path = copied(tmp_path)
    shutil.rmtree(path / "autoregressive")
    saved(path / "autoregressive", "writing")
    write_manifest(path)
    file = path / "autoregressive" / "program" / "graph.pb"
    line = f"{file} holds a disallowed operation: WriteFile."
    assert refused(lambda: serving.load(path).autoregressive) == line
    shutil.copy(hostile_program(tmp_path / "hostile", place), path / "saved_model.pb")
    write_manifest(path)
    assert refused(onepass.load, path).endswith("disallowed operation: WriteFile.")


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
    assert "holds a disallowed object: asset" in refused(scan_graph, path)


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
        assert refused(load, path) == line
    assert mistake("sample", path, "--length", "4", "--out", tmp_path / "new") == line


@pytest.mark.parametrize("edit", EDITS)
def test_the_saver_is_no_way_round(edit, tmp_path, place):
    path = copied(tmp_path)
    edit_program(path / "saved_model.pb", lambda graph: edit(graph, place))
    write_manifest(path)
    line = refused(serving.load, path)
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
