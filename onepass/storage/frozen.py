"""Functions of TensorFlow frozen into one graph of plain operations: data, without objects.

`Frozen` makes the graph. A function is traced, and its operations are written anew: calls are
inlined, a read of a variable becomes the value of a weight, which is an input of the graph, and
what only asserts or prints is left out. A masked convolution may assign the masked kernel to the
kernel, as in Keras' PixelCNN example; a read after it becomes the assigned value, and the weight
stays as it is.

A function with a gradient of its own, such as `tf.nn.silu` or one of `tf.recompute_grad`, has its
gradient frozen as a function of the graph, too. It takes the inputs of the operation that carries
the gradient, to which the tensors that the gradient reads are added, and then the gradients of the
outputs. The gradients of a frozen gradient are those of its operations.

`FrozenProgram` runs such a graph, read once from its files and scanned. The functions of its loops
and choices get names that no other model in the process has. Its gradients are registered under the
digest of the graph, once for all models with the same one. `graph.pb` is a GraphDef with the
functions that its loops and choices call. What each weight is and which of its nodes are arguments
and outputs of the model's functions, `autoregressive.json` says.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2
from tensorflow.python.framework import func_graph, function_def_to_graph, ops  # no public names
from tensorflow.python.ops import control_flow_util_v2

from onepass.foundation.allowed_operations import (
    MOST_PROGRAM_BYTES,
    check_frozen,
    node_of,
    ordered_functions,
    reachable_keys,
)
from onepass.foundation.files import open_plain, read_plain
from onepass.foundation.rules import UserError
from onepass.step.replay import (
    BRANCHING,
    CALLS,
    LOOPS,
    called_graph,
    captures_by_name,
    graph_named,
    operations_for,
)

GRADIENT = "_gradient_op_type"  # attribute of an operation with a gradient of its own
NO_GRADIENT = "none"  # its value where the gradient has no graph
SHAPES = "_output_shapes"  # attribute of an argument of a function
PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")  # they call functions of this process


@dataclasses.dataclass
class Held:
    """A variable where a graph has its handle: its value, and the `id` of the eager handle."""

    value: tf.Tensor
    handle: int


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a frozen graph, by the names of its tensors."""

    arguments: list[str]
    outputs: list[str]
    gradients_of: list[int] | None = None  # of a gradient: the inputs whose gradients it returns


Known = dict[str, Any]  # tensors, and `Held` for handles, by their names in a trace


class Frozen:
    """A graph that grows by the functions that are added to it; `weights` are what they read."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.weights: list[tf.Variable | tf.Tensor] = []
        self._graph = tf.Graph()
        self._held: dict[int, Held] = {}
        self._bodies = 0

    @property
    def graph(self) -> Any:
        """The graph, a GraphDef, with placeholders for arguments and weights."""
        graph = cleaned(self._graph.as_graph_def(), lambda name: name.rpartition("_")[0])
        graph.library.function.sort(key=lambda function: function.signature.name)
        return graph

    def add(self, name: str, function: Callable, specs: Sequence[tf.TensorSpec]) -> None:
        """Add a function of tensors, which may return a structure of tensors."""
        traced = tf.function(function, autograph=False, input_signature=list(specs))
        self.add_traced(name, traced.get_concrete_function())

    def add_traced(self, name: str, traced: Any) -> None:
        """Add a concrete function of tensors."""
        graph, inside = traced.graph, captures_by_name(traced.graph)
        inputs = [tensor for tensor in graph.inputs if tensor.name not in inside]
        known: Known = {inner: self._outside(outer, traced) for inner, outer in inside.items()}
        with self._graph.as_default(), tf.name_scope(f"{name}/"):
            arguments = [_placeholder(each) for each in inputs]
            known |= zip((each.name for each in inputs), arguments, strict=True)
            outputs = [tf.identity(_value(x)) for x in self._run(graph.outputs, known, True)]
        self.functions[name] = Function(_names(arguments), _names(outputs))

    def dtype_of(self, name: str) -> tf.DType:
        """Return the type of a function's first output."""
        return self._graph.get_tensor_by_name(self.functions[name].outputs[0]).dtype

    def _outside(self, tensor: tf.Tensor, traced: Any) -> Held | tf.Tensor:
        """Return the weight for what a function captures: a variable, or a constant."""
        is_handle = tensor.dtype == tf.resource
        if id(tensor) not in self._held:
            found = [each for each in traced.variables if each.handle is tensor]
            if is_handle and not found:
                raise UserError(
                    "The model cannot be stored: it reads a table or another resource that is not"
                    " a weight; hold what it reads as a tf.Variable or a constant."
                )
            weight, name = found[0] if is_handle else tensor, weight_name(len(self.weights))
            with self._graph.as_default():
                value = tf.compat.v1.placeholder(weight.dtype, weight.shape, name)
            self.weights.append(weight)
            self._held[id(tensor)] = Held(value, id(tensor))
        held = self._held[id(tensor)]
        return dataclasses.replace(held) if is_handle else held.value  # assigned to in one function

    def _run(
        self, fetches: Sequence[tf.Tensor], known: Known, keeps_gradients: bool
    ) -> list[tf.Tensor]:
        """Write what computes `fetches` into the default graph, and return what replaces them."""
        for op in operations_for(fetches, known, assigns=True):
            if op.type in CALLS:
                body = called_graph(op, "f")
                given = [known[tensor.name] for tensor in op.inputs]
                inner = dict(zip((x.name for x in body.inputs), given, strict=True))
                made: Sequence[Any] = self._run(body.outputs, inner, keeps_gradients)
            else:
                made = self._operation(op, known, keeps_gradients)
            known.update(zip((x.name for x in op.outputs), made, strict=False))
        return [known[tensor.name] for tensor in fetches]

    def _operation(self, op: tf.Operation, known: Known, keeps_gradients: bool) -> Sequence[Any]:
        inputs = [known[tensor.name] for tensor in op.inputs]
        values = [_value(each) for each in inputs]
        if op.type in PYTHON:
            raise UserError(
                f"The model cannot be stored: {op.name} runs Python code (`tf.py_function`)."
            )
        if op.type == "IdentityN" and keeps_gradients and GRADIENT in op.node_def.attr:
            return self._with_gradient(op, inputs, known)
        if op.type in ("Identity", "IdentityN") and any(isinstance(x, Held) for x in inputs):
            return inputs
        if op.type in BRANCHING:
            return self._branching(op, inputs, keeps_gradients)
        if any(isinstance(each, Held) for each in inputs) or op.type.startswith("Assign"):
            return _on_variable(op, inputs)
        return _create(op, values, _attributes(op))

    def _branching(
        self, op: tf.Operation, inputs: Sequence[Any], keeps_gradients: bool
    ) -> Sequence[Any]:
        """Write a loop or a choice, with values of weights in place of handles."""
        is_loop = op.type in LOOPS
        given = inputs if is_loop else inputs[1:]
        attributes, types = _attributes(op), [_value(each).dtype for each in given]
        for function in _functions_in(attributes):
            body = graph_named(op.graph, function.name)
            function.Clear()
            function.name = self._body(body, given, keeps_gradients)
        attributes["T" if is_loop else "Tin"] = _types(types)
        values = [_value(each) for each in inputs]
        if not is_loop:
            return _create(op, values, attributes)
        for shape, each in zip(attributes["output_shapes"].list.shape, given, strict=False):
            if isinstance(each, Held):
                shape.CopyFrom(each.value.shape.as_proto())
        made = _create(op, values, attributes, types)
        pairs = zip(given, made, strict=True)
        return [each if isinstance(each, Held) else new for each, new in pairs]

    def _body(self, body: tf.Graph, given: Sequence[Any], keeps_gradients: bool) -> str:
        """Write a function of a loop or of a choice, and return its name."""
        self._bodies += 1
        # Names of functions are those of the whole process.
        made = func_graph.FuncGraph(f"body_{self._bodies}_{ops.uid()}")
        known: Known = {}
        with made.as_default():
            for inner, outer in zip(body.inputs, given, strict=True):
                is_held = isinstance(outer, Held)
                made.inputs.append(_placeholder(outer.value if is_held else inner))
                new = made.inputs[-1]
                known[inner.name] = Held(new, outer.handle) if is_held else new
            outputs = self._run(body.outputs, known, keeps_gradients)
            made.outputs = [tf.identity(_value(each)) for each in outputs]
        for inner, new in zip(body.inputs, made.inputs, strict=True):
            if _value(known[inner.name]) is not new:
                raise UserError("The model cannot be stored: it assigns to a weight in a loop.")
        if made.captures:
            raise UserError(
                "The model cannot be stored: a gradient in a loop reads a weight that the loop does"
                " not read."
            )
        return control_flow_util_v2.create_new_tf_function(made)

    def _with_gradient(
        self, op: tf.Operation, inputs: Sequence[Any], known: Known
    ) -> Sequence[Any]:
        """Write an operation with a gradient of its own, and with what that gradient reads."""
        traced, gradients_of = _traced_gradient(op)
        inside = {} if traced is None else captures_by_name(traced.graph)
        read = {name: self._read(x, op, known, traced) for name, x in inside.items()}
        more = {id(x): x for x in read.values() if not isinstance(x, np.ndarray)}
        for each in inputs:
            more.pop(id(each), None)
        given, name = [*inputs, *more.values()], NO_GRADIENT
        if traced is not None:
            name = f"gradient_{sum(x.gradients_of is not None for x in self.functions.values())}"
            self._add_gradient(name, traced, given, read, gradients_of)
        types = [_value(each).dtype for each in given]
        attributes = {"T": _types(types), GRADIENT: attr_value_pb2.AttrValue(s=name.encode())}
        made = _create(op, [_value(each) for each in given], attributes, types)
        pairs = zip(inputs, made, strict=False)
        return [each if isinstance(each, Held) else new for each, new in pairs]

    def _read(self, tensor: tf.Tensor, op: tf.Operation, known: Known, traced: Any) -> Any:
        """Return what replaces a tensor that the gradient of an operation reads."""
        if not hasattr(tensor, "graph"):  # eager: a variable's handle, or a constant
            if tensor.dtype != tf.resource:
                return tensor.numpy()
            held = (x for x in known.values() if isinstance(x, Held) and x.handle == id(tensor))
            return next(held, None) or self._outside(tensor, traced)
        if tensor.graph is not op.graph:
            tensor = next(inner for outer, inner in op.graph.captures if outer is tensor)
        return self._run([tensor], known, True)[0]

    def _add_gradient(
        self,
        name: str,
        traced: Any,
        given: Sequence[Any],
        read: Mapping[str, Any],
        gradients_of: list[int],
    ) -> None:
        """Add the gradient of an operation whose inputs are `given`, of which it reads some."""
        upstream = [each for each in traced.graph.inputs if each.name not in read]
        with self._graph.as_default(), tf.name_scope(f"{name}/"):
            arguments = [_placeholder(_value(each)) for each in (*given, *upstream)]
            new = {
                id(old): Held(each, old.handle) if isinstance(old, Held) else each
                for old, each in zip(given, arguments, strict=False)
            }
            known: Known = {
                inner: tf.constant(old) if isinstance(old, np.ndarray) else new[id(old)]
                for inner, old in read.items()
            }
            names = (each.name for each in upstream)
            known |= zip(names, arguments[len(given) :], strict=True)
            outputs = self._run(traced.graph.outputs, known, False)
            outputs = [tf.identity(_value(each)) for each in outputs]
        self.functions[name] = Function(_names(arguments), _names(outputs), gradients_of)


def _traced_gradient(op: tf.Operation) -> tuple[Any, list[int]]:
    """Return the gradient of an operation, and of which inputs it is; None if it has no graph."""
    gradients_of: list[int] = []

    def run(*upstream: tf.Tensor) -> list[tf.Tensor]:
        left = iter(upstream)
        made = gradient(op, *(next(left) if has_gradient(x) else None for x in op.outputs))
        made = made if isinstance(made, list | tuple) else [made]
        gradients_of[:] = [n for n, each in enumerate(made) if each is not None]
        return [tf.convert_to_tensor(made[n]) for n in gradients_of]

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in op.outputs if has_gradient(x)]
    try:
        gradient = ops.get_gradient_function(op)
        with op.graph.as_default():
            traced = tf.function(run, autograph=False).get_concrete_function(*specs)
    except Exception:  # a user's function may raise any error where it computes only eagerly
        return None, []
    return traced, gradients_of


def weight_name(index: int) -> str:
    """Return the name of a weight, as a node of the graph and in the file of weights."""
    return f"weight_{index}"


def has_gradient(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is of a type that has gradients."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def nodes_of(graph: Any) -> list[Any]:
    """Return all nodes of a GraphDef, those of its functions included."""
    return [*graph.node, *(node for each in graph.library.function for node in each.node_def)]


def _functions_in(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the calls in a node's attributes, each a NameAttrList."""
    found = [each for value in attributes.values() for each in (value.func, *value.list.func)]
    return [each for each in found if each.name]


def cleaned(graph: Any, rename: Callable[[str], str]) -> Any:
    """Return a GraphDef, with other names of functions, after removing all that computes nothing.

    Of the attributes for TensorFlow itself, shapes of arguments and gradients remain.
    """
    for node in nodes_of(graph):
        for name in [name for name in node.attr if name[0] == "_" and name != GRADIENT]:
            del node.attr[name]
        node.ClearField("device")
        for called in _functions_in(node.attr):
            called.name = rename(called.name)
            called.ClearField("attr")
    for function in graph.library.function:
        function.signature.name = rename(function.signature.name)
        function.attr.clear()
        for argument in function.arg_attr.values():
            for name in [name for name in argument.attr if name != SHAPES]:
                del argument.attr[name]
    graph.library.ClearField("gradient")
    graph.library.ClearField("registered_gradients")
    return graph


def _on_variable(op: tf.Operation, inputs: Sequence[Any]) -> list[tf.Tensor]:
    """Return the outputs of an operation on a variable, the first input."""
    variable, given = inputs[0], list(map(_value, inputs[1:]))
    if op.type == "ReadVariableOp":
        return [variable.value]
    if op.type == "ResourceGather":
        axis = op.get_attr("batch_dims")
        return [tf.gather(variable.value, given[0], axis=axis, batch_dims=axis)]
    if op.type == "ResourceGatherNd":
        return [tf.gather_nd(variable.value, given[0])]
    if op.type == "VariableShape":
        return [tf.shape(variable.value, out_type=op.outputs[0].dtype)]
    if op.type == "AssignVariableOp":
        variable.value = given[0]
        return []
    if op.type == "AssignAddVariableOp":
        variable.value += given[0]
        return []
    raise UserError(
        f"The model cannot be stored: its operation {op.name} changes a weight or a table"
        f" ({op.type}); a stored network only reads its weights."
    )


def _create(
    op: tf.Operation,
    values: Sequence[tf.Tensor],
    attributes: Mapping[str, Any],
    dtypes: Sequence[tf.DType] | None = None,
) -> Sequence[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    dtypes = [each.dtype for each in op.outputs] if dtypes is None else dtypes
    made = graph.create_op(op.type, values, dtypes, name=op.name, attrs=dict(attributes))
    return made.outputs


def _attributes(op: tf.Operation) -> dict[str, Any]:
    return {name: value for name, value in sorted(op.node_def.attr.items()) if name[0] != "_"}


def _types(dtypes: Sequence[tf.DType]) -> Any:
    found = [each.as_datatype_enum for each in dtypes]
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=found))


def _value(given: Any) -> tf.Tensor:
    return given.value if isinstance(given, Held) else given


def _placeholder(like: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(like.dtype, like.shape, "argument")


def _names(tensors: Sequence[tf.Tensor]) -> list[str]:
    return [each.name for each in tensors]


LOWERED = "_lower_using_switch_merge"  # as TensorFlow marks what it executes in parallel
MOST_TRACES = 64
Run = Callable[..., Any]


class FrozenFunction:
    """A function of tensors, differentiable, with the `weights` that it reads after its arguments.

    It is traced once for every combination of shapes.
    """

    def __init__(self, run: Run, weights: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> None:
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
        self._parts = {name: self._part(each) for name, each in functions.items()}
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
        return FrozenFunction(*self._parts[name], specs)

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

    def _part(self, function: Function) -> tuple[Run, list[Any]]:
        """Return what writes a part of the graph into the default graph, and weights it reads."""
        ends = {node_of(each) for each in function.arguments}
        leads = {
            name: () if name in ends else map(node_of, node.input)
            for name, node in self._nodes.items()
        }
        found = reachable_keys(leads, map(node_of, function.outputs))
        weights = {weight_name(n): each for n, each in enumerate(self.weights)}
        read = [name for name in weights if name in found]
        inputs = [*function.arguments, *(f"{name}:0" for name in read)]
        nodes = [node for node in self._graph.node if node.name in found - ends - {*read}]
        part = graph_pb2.GraphDef(node=nodes, versions=self._graph.versions)

        def run(*given: tf.Tensor) -> list[tf.Tensor]:
            pairs = zip(inputs, given, strict=True)
            known = {name: tf.identity(x) for name, x in pairs if node_of(name) in found}
            self._add_functions(tf.compat.v1.get_default_graph())
            return tf.graph_util.import_graph_def(
                part, input_map=known, return_elements=function.outputs, name=""
            )

        return run, [weights[name] for name in read]

    def _register_gradients(self) -> None:
        found = {n.attr[GRADIENT].s.decode() for n in nodes_of(self._graph) if GRADIENT in n.attr}
        for name in found:
            gradient = self._gradient(name.partition("/")[2])
            with contextlib.suppress(KeyError):  # the same one is registered
                tf.RegisterGradient(name)(gradient)

    def _gradient(self, name: str) -> Run:
        if name == NO_GRADIENT:
            return _refuse_gradient
        function, (run, _) = self._functions[name], self._parts[name]
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
    weights = [
        tf.constant(array)
        if kind == "constant"
        else tf.Variable(array, trainable=kind == "trained", name=name)
        for array, (kind, name) in pairs
    ]
    return FrozenProgram(graph, functions, weights)


def _check_digest(path: Path, content: bytes, spec: dict[str, Any]) -> None:
    if hashlib.sha256(content).hexdigest() != spec["sha256"][path.name]:
        raise UserError(f"{path} is damaged: it is not the file that was saved.")


def _function(described: dict[str, Any]) -> Function:
    function = Function(**described)
    if not all(isinstance(each, str) for each in (*function.arguments, *function.outputs)):
        raise ValueError("the names of a function's tensors must be texts")
    if not all(isinstance(each, int) and each >= 0 for each in function.gradients_of or []):
        raise ValueError("the indices of a gradient's inputs must be whole numbers")
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
