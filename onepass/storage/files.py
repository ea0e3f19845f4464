"""The files of a stored program: a graph and its weights, which are read once and then scanned.

`graph.pb` is a GraphDef with the functions that its loops and choices call. What each weight is and
which of its nodes are arguments and outputs of the model's functions, `autoregressive.json` says.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from onepass.foundation.allowed_operations import MOST_PROGRAM_BYTES, check_frozen
from onepass.foundation.errors import UserError
from onepass.foundation.plain_files import open_plain, read_plain
from onepass.storage.freezing import Frozen, Function, weight_name
from onepass.storage.frozen import FrozenProgram, spec_of

GRAPH_FILE, WEIGHTS_FILE = "graph.pb", "weights.safetensors"
MOST_HEADER_BYTES = 2**27
TYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    **{f"I{size}": f"int{size}" for size in (8, 16, 32, 64)},
    **{f"U{size}": f"uint{size}" for size in (8, 16, 32, 64)},
}


def write_program(folder: Path, frozen: Frozen) -> dict[str, str]:
    """Write a frozen graph and the values of its weights, and return the digests of the files."""
    arrays = {}
    for index, weight in enumerate(frozen.weights):
        if weight.dtype.name not in TYPES.values():
            raise UserError(
                f"The model cannot be stored: its weight {weight.name} has the type"
                f" {weight.dtype.name}."
            )
        arrays[weight_name(index)] = np.asarray(tf.convert_to_tensor(weight))
    contents = {
        GRAPH_FILE: frozen.graph.SerializeToString(deterministic=True),
        WEIGHTS_FILE: safetensors.numpy.save(arrays),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def read_program(folder: Path, spec: dict[str, Any]) -> FrozenProgram:
    """Read a program, for the values in `autoregressive.json`; raise UserError unless it computes.

    It may raise any error for damaged files, of which `load` makes one line.
    """
    path = folder / GRAPH_FILE
    content = read_plain(path, MOST_PROGRAM_BYTES)
    _check_digest(path, content, spec)
    graph = graph_pb2.GraphDef.FromString(content)
    check_frozen(path, graph)
    functions = {name: _function(described) for name, described in spec["functions"].items()}
    specs = {node.name: spec_of(node) for node in graph.node if node.op == "Placeholder"}
    expected = [specs[weight_name(index)] for index in range(len(spec["weights"]))]
    arrays = _read_weights(folder, spec, expected)
    pairs = zip(arrays, spec["weights"], strict=True)
    return FrozenProgram(graph, functions, [_weight(each, *kind) for each, kind in pairs])


def _weight(array: np.ndarray, kind: str, name: str) -> tf.Variable | tf.Tensor:
    if kind == "constant":
        return tf.constant(array)
    return tf.Variable(array, trainable=kind == "trained", name=name)


def _check_digest(path: Path, content: bytes, spec: dict[str, Any]) -> None:
    if hashlib.sha256(content).hexdigest() != spec["sha256"][path.name]:
        raise UserError(f"{path} is damaged: it is not the file that was saved.")


def _function(described: dict[str, Any]) -> Function:
    function = Function(**described)
    names, numbers = [*function.arguments, *function.outputs], [*function.weights]
    numbers += function.gradients_of or []
    if not all(isinstance(each, str) for each in names):
        raise ValueError("the names of a function's tensors must be texts")
    if not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise ValueError("the indices of a function's weights must be whole numbers")
    return function


def _read_weights(
    folder: Path, spec: dict[str, Any], specs: Sequence[tf.TensorSpec]
) -> list[np.ndarray]:
    """Return the weights, each of the type and shape that the graph gives it."""
    path = folder / WEIGHTS_FILE
    least = sum(math.prod(each.shape) * each.dtype.size for each in specs)
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not least <= size <= least + MOST_HEADER_BYTES:
            raise UserError(f"{path} must have {least:,} bytes of weights, got {size:,} in all.")
        content = file.read(size)
    _check_digest(path, content, spec)
    found = dict(safetensors.deserialize(content))
    if found.keys() != {weight_name(index) for index in range(len(specs))}:
        raise UserError(f"{path} must have the {len(specs)} weights of the graph and no others.")
    return [_array(path, weight_name(n), found[weight_name(n)], x) for n, x in enumerate(specs)]


def _array(path: Path, name: str, found: dict[str, Any], spec: tf.TensorSpec) -> np.ndarray:
    dtype, shape = TYPES.get(found["dtype"], found["dtype"]), list(found["shape"])
    if (dtype, shape) != (spec.dtype.name, spec.shape.as_list()):
        raise UserError(
            f"{path}: {name} must be {spec.dtype.name} {spec.shape.as_list()}, got {dtype} {shape}."
        )
    return np.frombuffer(found["data"], spec.dtype.as_numpy_dtype).reshape(shape)
