"""A folder holds a network without code; a damaged or hostile one is refused."""

import json

import numpy as np
import pytest

import onepass
from onepass.networks.from_torch.graph import (
    GRAPH_FILE,
    WEIGHTS_FILE,
    Block,
    Graph,
    Input,
    Node,
    Tensor,
    as_number,
    drop_unused_nodes,
    read_folder,
    write_folder,
)

SHAPE = [None, None, 1]


def node(name, operation, *arguments, **options):
    return Node(name, operation, list(arguments), options)


def graph():
    """Return a network x -> cond(x . w + b > 0): twice itself or minus infinity at most."""
    nodes = [
        node("unused", "relu", {"value": "x"}),
        node("y", "linear", {"value": "x"}, {"tensor": "layer.weight"}, {"tensor": "layer.bias"}),
        node("low", "clamp", {"value": "y"}, as_number(float("-inf")), None),
        node("half", "mul.Scalar", {"value": "low"}, 0.5),
        node("out", "to.dtype", {"value": "half"}, {"dtype": "float64"}),
    ]
    tensors = {
        "layer.weight": Tensor(np.array([[2.0], [4.0]], np.float32), True),
        "layer.bias": Tensor(np.array([1.0, -1.0], np.float32), False),
    }
    main = Block(["x"], nodes, {"value": "out"})
    return Graph([Input("x", "float32", SHAPE)], drop_unused_nodes(main), {}, tensors)


@pytest.fixture
def folder(tmp_path):
    return write_folder(graph(), tmp_path / "network")


def test_a_folder_is_the_network_that_was_written(folder):
    found = read_folder(folder)
    assert found.main == graph().main and found.inputs == graph().inputs
    assert "unused" not in [each.name for each in found.main.nodes]
    network = onepass.load_network(folder)
    x = np.array([[[1.0], [2.0]]], np.float32)
    assert network(x).numpy().tolist() == [[[1.5, 1.5], [2.5, 3.5]]]
    assert network(x).dtype == "float64"
    assert network.weights["layer.weight"].trainable and not network.weights["layer.bias"].trainable


def test_others_read_the_weights(folder):
    safetensors = pytest.importorskip("safetensors.numpy")
    written = {name: each.array for name, each in graph().tensors.items()}
    found = safetensors.load_file(folder / WEIGHTS_FILE)
    assert found.keys() == written.keys()
    assert all((found[name] == written[name]).all() for name in written)


def change(folder, *path, value):
    described = json.loads((folder / GRAPH_FILE).read_text())
    part = described
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    (folder / GRAPH_FILE).write_text(json.dumps(described))


DEEP = "[" * 100_000 + "]" * 100_000
CHANGES = {
    "format": (["format"], 2),
    "no input": (["inputs"], []),
    "kind": (["inputs", 0, "kind"], "pickle"),
    "input dtype": (["inputs", 0, "dtype"], "object"),
    "shape": (["inputs", 0, "shape"], [None, -1]),
    "negative length": (["inputs", 0, "smallest"], "1"),
    "hop of text": (["inputs", 0, "hop"], "4"),
    "extra frames of text": (["inputs", 0, "extra"], None),
    "further field": (["inputs", 0, "code"], "import os"),
    "unknown value": (["main", "outputs"], {"value": "missing"}),
    "later value": (["main", "nodes", 0, "arguments"], [{"value": "out"}]),
    "unknown tensor": (["main", "nodes", 0, "arguments", 1], {"tensor": "other"}),
    "unknown reference": (["main", "nodes", 0, "arguments", 1], {"python": "os.system"}),
    "two keys": (["main", "nodes", 0, "arguments", 1], {"value": "x", "tensor": "layer.bias"}),
    "unknown block": (["main", "nodes", 0, "arguments", 1], {"block": "other"}),
    "dtype": (["main", "nodes", 3, "arguments", 1], {"dtype": "object"}),
    "list as a name": (["main", "nodes", 0, "name"], ["y"]),
    "huge shape": (["main", "nodes", 0, "shape"], [1 << 60]),
    "trainable": (["tensors", "layer.bias", "trainable"], "yes"),
    "fewer tensors": (["tensors"], {}),
    "arguments": (["main", "nodes", 1, "arguments"], []),
    "more arguments": (["main", "nodes", 1, "arguments"], [{"value": "y"}] * 9),
    "wrong type": (["main", "nodes", 2, "arguments"], [{"value": "low"}, "half"]),
    "endless recursion": (
        ["blocks"],
        {"b": {"inputs": ["x"], "outputs": {"value": "z"}, "nodes": [
            {"name": "z", "operation": "cond", "arguments": [True, {"block": "b"}], "options": {}}
        ]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_description_is_refused_in_one_line(folder, name):
    path, value = CHANGES[name]
    change(folder, *path, value=value)
    with pytest.raises(ValueError) as caught:
        onepass.load_network(folder)
    assert isinstance(caught.value, onepass.UserError | onepass.UnsupportedNetworkError)
    assert "\n" not in str(caught.value)


def refused(folder, match):
    with pytest.raises(onepass.UserError, match=match) as caught:
        onepass.load_network(folder)
    assert "\n" not in str(caught.value)


def test_a_deep_or_broken_description_is_refused(folder):
    for text in (DEEP, "{", "[]", "", '{"format": 1}'):
        (folder / GRAPH_FILE).write_text(text)
        refused(folder, "contains no network")


def test_a_missing_file_is_refused(folder, tmp_path):
    refused(tmp_path / "other", "contains no network")
    (folder / WEIGHTS_FILE).unlink()
    refused(folder, "contains no network")


HEADERS = {
    "larger": ("layer.weight", {"shape": [1 << 39, 1]}),
    "longer": ("layer.weight", {"shape": [1 << 38], "data_offsets": [0, 1 << 40]}),
    "overlapping": ("layer.bias", {"data_offsets": [0, 8]}),
    "unknown": ("layer.bias", {"dtype": "O"}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_sizes_are_compared_with_the_file_before_memory_is_taken(folder, name):
    data, (tensor, changed) = (folder / WEIGHTS_FILE).read_bytes(), HEADERS[name]
    length = int.from_bytes(data[:8], "little")
    described = json.loads(data[8 : 8 + length])
    described[tensor] |= changed
    text = json.dumps(described).encode()
    content = len(text).to_bytes(8, "little") + text + data[8 + length :]
    (folder / WEIGHTS_FILE).write_bytes(content)
    refused(folder, "contains no network")


def test_cut_weights_are_refused(folder):
    whole = (folder / WEIGHTS_FILE).read_bytes()
    for size in (0, 5, 12, len(whole) - 1):
        (folder / WEIGHTS_FILE).write_bytes(whole[:size])
        refused(folder, "contains no network")
    (folder / WEIGHTS_FILE).write_bytes((1 << 62).to_bytes(8, "little") + whole[8:])
    refused(folder, "header")


def test_an_unknown_operation_of_a_folder_is_named(folder):
    change(folder, "main", "nodes", 0, "operation", value="mylib.smooth")
    with pytest.raises(onepass.UnsupportedNetworkError, match=r"mylib\.smooth"):
        onepass.load_network(folder)
