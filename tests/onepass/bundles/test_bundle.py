"""A bundle is checked before it is loaded, runs alone, and its inputs are checked by rule."""

import errno
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from image_bundles import (
    bundle_folder,
    copied,
    edit_program,
    model,
    model_folder,
    resigned,
    without_lowered,
)
from tensorflow.python.framework import op_def_registry

import serving
from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.manifest import files_of
from onepass.bundles.signature import Signature, TensorInfo, check, example
from onepass.foundation.allowed_operations import ALLOWED, RESTORING, SAVING
from onepass.foundation.rules import UserError
from onepass.replicator.portable.export import serialize_text

# What a signature lets through

SIGNATURE = Signature(
    {
        "frames": TensorInfo(np.dtype(np.float32), (None, None, 2), low=-9),
        "num_frames": TensorInfo(np.dtype(np.int32), (None,), 1, 50),
        "seed": TensorInfo(np.dtype(np.int64), (None,), default=0),
        "heat": TensorInfo(np.dtype(np.float32), (None, 3), low=0, default=1),
        "picture": TensorInfo(np.dtype(np.uint8), (None, 1), default=0),
    },
    {"sound": TensorInfo(np.dtype(np.float32), (None, None))},
)
GOOD = {"frames": np.zeros([2, 4, 2]), "num_frames": [3, 4]}


def test_a_signature_survives_json():
    assert Signature.from_dict(json.loads(json.dumps(SIGNATURE.to_dict()))) == SIGNATURE


def test_what_is_left_out_is_filled_in_for_every_row():
    arrays = check(SIGNATURE, GOOD)
    assert list(arrays) == list(SIGNATURE.inputs)
    for name, info in SIGNATURE.inputs.items():
        assert arrays[name].dtype == info.dtype
    np.testing.assert_array_equal(arrays["heat"], np.ones([2, 3]))
    np.testing.assert_array_equal(arrays["num_frames"], [3, 4])


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"num_frames": [3, 51]}, "`num_frames` must be between 1 and 50, got 51."),
        ({"num_frames": [0, 1]}, "`num_frames` must be between 1 and 50, got 0."),
        ({"num_frames": [1_234_567, 2]}, "`num_frames` must be between 1 and 50, got 1234567."),
        ({"num_frames": [1.0, 2.0]}, "`num_frames` must be int32, got float64."),
        ({"num_frames": [2**40, 1]}, f"`num_frames` must be int32, got {2**40}."),
        ({"num_frames": ["1", "2"]}, "`num_frames` must be int32, got text."),
        ({"num_frames": [True, False]}, "`num_frames` must be int32, got bool."),
        ({"num_frames": [[1], [1]]}, "`num_frames` must have the shape [any], got [2, 1]."),
        ({"num_frames": 3}, "`num_frames` must have the shape [any], got []."),
        ({"num_frames": [1]}, "`num_frames` must have 2 rows as `frames`, got 1."),
        ({"num_frames": [None, 1]}, "`num_frames` must be int32, got object."),
        ({"num_frames": [2**70, 1]}, "`num_frames` must be int32, got object."),
        ({"frames": [[[1, 2]], [[1]]]}, "`frames` must be rectangular and of numbers."),
        ({"frames": np.zeros([2, 0, 2])}, "`frames` must not be empty, got [2, 0, 2]."),
        ({"frames": np.zeros([2, 4, 3])}, "`frames` must have the shape [any, any, 2], got [2, 4,"),
        ({"frames": np.full([2, 4, 2], np.inf)}, "`frames` must be finite, got inf at [0, 0, 0]."),
        ({"frames": [[[0, 0]], [[0, np.nan]]]}, "`frames` must be finite, got nan at [1, 0, 1]."),
        ({"frames": np.full([2, 1, 2], 1e300)}, "`frames` must be finite, got inf at [0, 0, 0]."),
        ({"frames": np.full([2, 4, 2], -9.5)}, "`frames` must be at least -9, got -9.5."),
        ({"heat": np.ones([2, 3]) * 1j}, "`heat` must be float32, got complex128."),
        ({"picture": [[256], [0]]}, "`picture` must be uint8, got 256."),
        ({"picture": [[0], [-1]]}, "`picture` must be uint8, got -1."),
        ({"else": 1}, "`else` is not an input; there are frames, num_frames, seed, heat, picture."),
        ({"x" * 99: 1}, f"`{'x' * 64}...` is not an input; there are frames"),
    ],
)
def test_a_broken_rule_is_named_with_its_field(changed, complaint):
    with pytest.raises(InvalidInput) as refused:
        check(SIGNATURE, GOOD | changed)
    assert str(refused.value).startswith(complaint)


def test_what_must_be_given_is_asked_for():
    with pytest.raises(InvalidInput, match="`num_frames` must be given"):
        check(SIGNATURE, {"frames": np.zeros([1, 1, 2])})


def test_examples_pass_the_check_at_every_size():
    for rows, bucket in ((1, 20), (3, 50)):
        inputs = example(SIGNATURE, rows, bucket)
        assert inputs["frames"].shape == (rows, bucket, 2) and set(inputs["num_frames"]) == {bucket}
        checked = check(SIGNATURE, inputs)
        assert all(np.array_equal(checked[name], inputs[name]) for name in inputs)


# What is loaded


def refusal(path):
    with pytest.raises(UserError) as refused:
        serving.load(path)
    line = str(refused.value)
    assert "\n" not in line and len(line) < 400
    return line


def edited(folder, edit, file="saved_model.pb"):
    """A copy of a bundle whose program, in that file, was edited, and whose manifest knows."""
    path = (
        copied("pixelcnn", folder) if file == "lowered.pb" else without_lowered("pixelcnn", folder)
    )
    edit_program(path / file, edit)
    return resigned(path)


def drawing(graph):
    """The functions of a program but for those that save and restore."""
    functions = graph.graph_def.library.function
    return [f for f in functions if "traced" not in f.signature.name]


@pytest.mark.parametrize("op", ["WriteFile", "EagerPyFunc", "Evil"])
@pytest.mark.parametrize(
    ("place", "file"),
    [("function", "saved_model.pb"), ("graph", "saved_model.pb"), ("function", "lowered.pb")],
)
def test_a_program_that_could_reach_out_is_refused_by_name(tmp_path, op, place, file):
    def edit(graph):
        nodes = drawing(graph)[0].node_def if place == "function" else graph.graph_def.node
        nodes.add(name="innocent", op=op)

    path = edited(tmp_path, edit, file)
    assert refusal(path) == f"{path}/{file} holds a disallowed operation: {op}."


def calls_of_modules(graph):
    functions = graph.graph_def.library.function
    return [n for f in functions for n in f.node_def if n.op == "XlaCallModule"]


REACHES_OUT = """
func.func @main(%arg0: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.abs %arg0 {a = "a quote after @"} : tensor<f32>
  %1 = stablehlo.custom_call @evil(%0) {b = ""} : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}
"""


@pytest.mark.parametrize(
    ("module", "version", "complaint"),
    [
        (serialize_text(REACHES_OUT), 9, "a disallowed operation: stablehlo.custom_call."),
        (REACHES_OUT.encode(), 9, "a disallowed operation: stablehlo.custom_call."),
        (REACHES_OUT.encode(), 3, "a module that is not a portable artifact."),
        (b"ML\xefR\x01", 9, "a module that is not a portable artifact."),
    ],
)
def test_a_module_that_could_reach_out_is_refused(tmp_path, module, version, complaint):
    def edit(graph):
        call = calls_of_modules(graph)[-1]
        call.attr["module"].s, call.attr["version"].i = module, version

    path = edited(tmp_path, edit, "lowered.pb")
    assert refusal(path) == f"{path}/lowered.pb holds {complaint}"


def with_function(graph, name, op):
    """Adds a function that holds one operation."""
    function = graph.graph_def.library.function.add()
    function.signature.name = name
    function.node_def.add(name="innocent", op=op)


@pytest.mark.parametrize("op", sorted(SAVING | RESTORING))
def test_what_saves_variables_must_not_be_reached_by_a_call(tmp_path, op):
    def edit(graph):
        with_function(graph, "inner", op)
        known = graph.object_graph_def.concrete_functions
        root = next(f for f in drawing(graph) if f.signature.name in known)
        root.node_def.add(name="call", op="PartitionedCall").attr["f"].func.name = "inner"

    assert f"a disallowed operation: {op}." in refusal(edited(tmp_path, edit))


@pytest.mark.parametrize("op", ["SaveV2", "RestoreV2", "MergeV2Checkpoints", "AssignVariableOp"])
def test_a_function_that_only_an_object_names_is_held_to_what_calls_may_do(tmp_path, op):
    def edit(graph):
        with_function(graph, "unlisted", op)
        objects = graph.object_graph_def.nodes
        target = next(n for n in objects if n.WhichOneof("kind") == "bare_concrete_function")
        target.bare_concrete_function.concrete_function_name = "unlisted"

    assert f"a disallowed operation: {op}." in refusal(edited(tmp_path, edit))


def signature_that_saves(graph):
    for output in graph.signature_def["compiled"].outputs.values():
        output.name = graph.saver_def.save_tensor_name


def function_that_nothing_calls(graph):
    with_function(graph, "unlisted", "SaveV2")


def function_with_the_name_of_an_operation(graph, name="ReadFile"):
    with_function(graph, name, "Identity")
    drawing(graph)[0].node_def.add(name="call", op=name)


def function_with_the_name_of_an_allowed_operation(graph):
    function_with_the_name_of_an_operation(graph, "Identity")


def two_functions_of_one_name(graph):
    graph.graph_def.library.function.add().CopyFrom(drawing(graph)[0])


def object_that_saves_itself(graph):
    graph.object_graph_def.nodes[0].saveable_objects["x"].save_function = 1


def object_of_another_library(graph):
    graph.object_graph_def.nodes[0].user_object.identifier = "_tf_keras_model"


def constant_that_would_fill_the_memory(graph):
    node = next(n for f in drawing(graph) for n in f.node_def if n.op == "Const")
    tensor = node.attr["value"].tensor
    tensor.dtype = tf.float32.as_datatype_enum
    for size in (2**20, 2**20):
        tensor.tensor_shape.dim.add(size=size)


def missing_signature(graph):
    graph.signature_def.pop("complete")


def other_signature(graph):
    graph.signature_def["complete"].inputs["given"].tensor_shape.dim[1].size = 16


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (signature_that_saves, "a disallowed operation: "),
        (function_that_nothing_calls, "a function that nothing calls: unlisted."),
        (function_with_the_name_of_an_operation, "the name of an operation: ReadFile."),
        (function_with_the_name_of_an_allowed_operation, "the name of an operation: Identity."),
        (two_functions_of_one_name, "two functions of one name: "),
        (object_that_saves_itself, "disallowed object: saveable."),
        (object_of_another_library, "disallowed object: _tf_keras_model."),
        (constant_that_would_fill_the_memory, "1048576], which is too large."),
        (missing_signature, "has no signature `complete`, which model.json declares."),
        (other_signature, "model.json differ in the signature `complete`."),
    ],
)
def test_a_program_that_is_not_as_exported_is_refused(tmp_path, edit, complaint):
    path = edited(tmp_path, edit)
    line = refusal(path)
    assert line.startswith(f"{path}/saved_model.pb ") and complaint in line


def test_a_program_that_is_none_is_one_line(tmp_path):
    path = without_lowered("pixelcnn", tmp_path)
    (path / "saved_model.pb").write_bytes(b"\xff" * 100)
    assert refusal(resigned(path)).startswith(f"{path}/saved_model.pb cannot be read: ")
    (path / "saved_model.pb").unlink()
    assert refusal(resigned(path)) == f"{path} is not a bundle: it has no saved_model.pb."


def test_variables_that_are_gone_or_cut_are_one_line(tmp_path):
    path = copied("pixelcnn", tmp_path)
    (variables,) = (path / "variables").glob("*.data*")
    variables.write_bytes(variables.read_bytes()[:100])
    assert refusal(path).endswith(f"variables/{variables.name} differs.")
    assert refusal(resigned(path)).startswith(f"{path} cannot be loaded: ")
    variables.unlink()
    assert refusal(resigned(path)).startswith(f"{path} cannot be loaded: ")


def test_a_file_on_a_broken_disk_is_named(monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = bundle_folder("pixelcnn")
    monkeypatch.setattr("onepass.bundles.manifest.digest", broken)
    first = files_of(path)[0]
    assert refusal(path) == f"{path}/{first} cannot be read: Input/output error."


def rewritten(folder, **changes):
    """A copy of a bundle whose model.json says something else."""
    path = copied("pixelcnn", folder)
    spec = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps(spec | changes))
    return resigned(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"kind": "sorcery"},
            "must have a `kind` among autoregressive, flow-student, wavenet, "
            "parallel-wavenet, pixelcnn, multiscale.",
        ),
        ({"serving": {"format": 1}}, "is of format 1; this version reads 2."),
        ({"serving": {"format": 2}}, "lacks what is needed to serve it: 'signatures'."),
        (
            {"serving": {"format": 2, "signatures": {}, "allowed_batches": [1]}},
            "lacks what is needed to serve it: 'compiled'.",
        ),
        (
            {"serving": {"format": 2, "signatures": {"compiled": 3}, "allowed_batches": [1]}},
            "lacks what is needed to serve it: 'int' object",
        ),
    ],
)
def test_a_model_json_of_another_version_is_one_line(tmp_path, changes, complaint):
    assert complaint in refusal(rewritten(tmp_path, **changes))


def test_a_model_folder_without_a_program_says_how_to_make_one(tmp_path):
    path = rewritten(tmp_path, serving=None)
    line = refusal(path)
    assert line == f"{path} has no program; add one by `onepass export {path} --out DIR`."


def test_a_folder_that_holds_no_version_is_one_line(tmp_path):
    assert refusal(tmp_path / "no") == f"{tmp_path / 'no'} is not a folder."
    assert refusal(tmp_path) == f"{tmp_path} is not a bundle, and holds no version of one."
    folder = model_folder("pixelcnn")
    words = f"The folder of a bundle must end in NAME/VERSION, such as voice/1, got {folder}: "
    assert refusal(folder).startswith(words)


def test_the_highest_version_is_loaded_in_the_order_of_numbers(tmp_path):
    for version in ("9", "10"):
        path = copied("pixelcnn", tmp_path, version)
    (path.parent / "latest").mkdir()
    (path.parent / ".half").mkdir()
    found = serving.load(path.parent)
    assert (found.name, found.version, found.path) == ("pixelcnn", 10, path)
    assert serving.load(path.parent / "9").version == 9


def test_a_signature_that_there_is_not_is_named():
    bundle = serving.load(bundle_folder("pixelcnn"))
    for ask in (bundle.call, bundle.check):
        with pytest.raises(NotFound, match="has no signature `x`; it has serving_default, comp"):
            ask("x", {})


def test_every_operation_that_is_allowed_exists():
    known = ALLOWED | SAVING | RESTORING
    assert [op for op in known if op_def_registry.get(op) is None] == []


ALONE = """
    bundle = serving.load(sys.argv[1])
    np.save(sys.argv[2], bundle.sample(2, None, 5, "dog"))
"""


@pytest.mark.integration
def test_a_bundle_draws_the_same_in_a_process_without_the_training_packages(
    tmp_path, without_training
):
    without_training(ALONE, bundle_folder("pixelcnn"), tmp_path / "drawn.npy")
    expected = model("pixelcnn").sample(condition="dog", seed=5, num=2)
    np.testing.assert_array_equal(np.load(tmp_path / "drawn.npy"), expected)
