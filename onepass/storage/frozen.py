"""A stored program: its files, which are read once and scanned, and its functions.

The functions of its loops and choices get names that no other model in the process has. Its
gradients are registered under the digest of the graph, once for all models with the same one.

`graph.pb` is a GraphDef with the functions that its loops and choices call. What each weight is and
which of its nodes are arguments and outputs of the model's functions, `autoregressive.json` says.
"""

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import function_def_to_graph, ops  # they have no public names
from tensorflow.python.ops import control_flow_util_v2

from onepass.foundation.allowed_operations import (
    MOST_PROGRAM_BYTES,
    check_frozen,
    node_of,
    ordered_functions,
    reachable_keys,
)
from onepass.foundation.errors import UserError
from onepass.foundation.folders import open_plain, read_plain
from onepass.step.replay import BRANCHING
from onepass.storage.freezing import (
    GRADIENT,
    NO_GRADIENT,
    Frozen,
    Function,
    cleaned,
    has_gradient,
    nodes_of,
    weight_name,
)

LOWERED = "_lower_using_switch_merge"  # as TensorFlow marks what it executes in parallel
MOST_TRACES = 64
Run = Callable[..., Any]


class FrozenFunction:
    """A function of tensors, differentiable, with the `weights` that it reads after its arguments.

    It is traced once for every combination of shapes.
    """

    def __init__(self, run: Run, specs: Sequence[tf.TensorSpec], weights: Sequence[Any]) -> None:
        self.specs, self._weights = list(specs), weights
        self._run, self._traces = tf.function(run, autograph=False), dict[tuple, Any]()

    def __call__(self, *arguments: Any) -> Any:
        """Return the output, or a list of several."""
        pairs = zip(arguments, self.specs, strict=True)
        given = [tf.convert_to_tensor(each, spec.dtype) for each, spec in pairs]
        # Read outside of the function, so that it takes the values of any copy of a variable.
        given += [tf.convert_to_tensor(each) for each in self._weights]
        key = tuple((str(each.shape), each.dtype) for each in given)
        if key not in self._traces:
            while len(self._traces) >= MOST_TRACES:
                del self._traces[next(iter(self._traces))]
            specs = [tf.TensorSpec(each.shape, each.dtype) for each in given]
            self._traces[key] = self._run.get_concrete_function(*specs)
        outputs = self._traces[key](*given)
        return outputs[0] if len(outputs) == 1 else outputs


class FrozenProgram:
    """The functions of a scanned graph by name, and their weights, variables and constants."""

    def __init__(self, graph: Any, functions: Mapping[str, Function], weights: list[Any]) -> None:
        self.weights, self._functions, self._holder = weights, functions, tf.Graph()
        self._graph = graph_pb2.GraphDef.FromString(graph.SerializeToString())
        digest = hashlib.sha256(graph.SerializeToString(deterministic=True))
        digest.update(repr(sorted(functions.items())).encode())
        self._prefix = digest.hexdigest()
        self._prepare_nodes()
        self._add_bodies()
        self._nodes = {node.name: node for node in self._graph.node}
        self._runs = {name: self._part(each) for name, each in functions.items()}
        self._register_gradients()

    @classmethod
    def of(cls, frozen: Frozen) -> "FrozenProgram":
        """Return the functions of a graph that was frozen here, with the same variables."""
        return cls(frozen.graph, frozen.functions, frozen.weights)

    def get(self, name: str) -> FrozenFunction | None:
        """Return a function; None if there is none of that name."""
        return self[name] if name in self._functions else None

    def __getitem__(self, name: str) -> FrozenFunction:
        """Return a function; raise KeyError if there is none of that name."""
        function = self._functions[name]
        specs = [spec_of(self._nodes[node_of(each)]) for each in function.arguments]
        weights = [self.weights[index] for index in function.weights]
        return FrozenFunction(self._runs[name], specs, weights)

    @property
    def variables(self) -> list[tf.Variable]:
        """The weights that are variables."""
        return [each for each in self.weights if isinstance(each, tf.Variable)]

    def _prepare_nodes(self) -> None:
        uid = ops.uid()
        cleaned(self._graph, lambda name: f"{name}_{uid}")
        for node in nodes_of(self._graph):
            if GRADIENT in node.attr:
                node.attr[GRADIENT].s = f"{self._prefix}/{node.attr[GRADIENT].s.decode()}".encode()
            if node.op in BRANCHING:
                node.attr[LOWERED].b = True

    def _add_bodies(self) -> None:
        for function in ordered_functions(self._graph.library):
            with self._holder.as_default():
                made = function_def_to_graph.function_def_to_graph(function)
                made.name = function.signature.name
                self._add_functions(made)  # those that it calls are among them
                control_flow_util_v2.create_new_tf_function(made)
        with tf.Graph().as_default() as graph:  # raises ValueError for what no graph can be
            self._add_functions(graph)
            nodes = graph_pb2.GraphDef(node=self._graph.node, versions=self._graph.versions)
            tf.graph_util.import_graph_def(nodes, name="")

    def _add_functions(self, graph: tf.Graph) -> None:
        for each in list(self._holder._functions.values()):
            graph._add_function_recursive(each)

    def _part(self, function: Function) -> Run:
        """Return a function that writes a part of the graph into the default graph."""
        weights = [f"{weight_name(index)}:0" for index in function.weights]
        inputs = [*function.arguments, *weights]
        ends = {node_of(each) for each in inputs}
        leads = {
            name: () if name in ends else map(node_of, node.input)
            for name, node in self._nodes.items()
        }
        found = reachable_keys(leads, map(node_of, function.outputs))
        nodes = [node for node in self._graph.node if node.name in found - ends]
        part = graph_pb2.GraphDef(node=nodes, versions=self._graph.versions)

        def run(*given: tf.Tensor) -> list[tf.Tensor]:
            pairs = zip(inputs, given, strict=True)
            known = {name: tf.identity(x) for name, x in pairs if node_of(name) in found}
            self._add_functions(tf.compat.v1.get_default_graph())
            return tf.graph_util.import_graph_def(
                part, input_map=known, return_elements=function.outputs, name=""
            )

        return run

    def _register_gradients(self) -> None:
        found = {n.attr[GRADIENT].s.decode() for n in nodes_of(self._graph) if GRADIENT in n.attr}
        for name in found:
            gradient = self._gradient(name.partition("/")[2])
            with contextlib.suppress(KeyError):  # the same one is registered
                tf.RegisterGradient(name)(gradient)

    def _gradient(self, name: str) -> Run:
        if name == NO_GRADIENT:
            return _refuse_gradient
        function, run = self._functions[name], self._runs[name]
        places = function.gradients_of
        if places is None:
            raise ValueError(f"{name} is no gradient")

        def gradient(op: tf.Operation, *upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
            pairs = zip(op.outputs, upstream, strict=True)
            given = [tf.zeros_like(x) if y is None else y for x, y in pairs if has_gradient(x)]
            made = run(*op.inputs, *given[: len(function.arguments) - len(op.inputs)])
            found = dict(zip(places, made, strict=True))
            return [found.get(index) for index in range(len(op.inputs))]

        return gradient


def _refuse_gradient(op: tf.Operation, *upstream: tf.Tensor) -> None:
    raise UserError(
        f"The model cannot be trained: the gradient of {op.name} had no graph when it was saved."
    )


def spec_of(node: Any) -> tf.TensorSpec:
    """Return the spec of a node that is a placeholder."""
    shape, dtype = node.attr["shape"].shape, node.attr["dtype"].type
    return tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype))


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
    weights = [_weight(array, kind, name) for array, (kind, name) in pairs]
    return FrozenProgram(graph, functions, weights)


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
