"""The TensorFlow operations that a program may use, which are checked before it runs.

They compute only from their inputs and from variables: no files, no network, no Python, no custom
operations. Only functions that the saver's own nodes reach may save and restore variables.

TensorFlow finds functions by name in the whole library. A name therefore counts as a call wherever
it occurs: in an object, an operation, an attribute (also nested), a default or a gradient.
"""

import graphlib
import itertools
import math
import re
import tomllib
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from onepass.foundation.files import read_plain
from onepass.foundation.rules import UserError


class Reach(NamedTuple):
    """The names of the functions that can be reached, by where the calls start."""

    called: set[str]  # from objects, signatures, gradients and the graph's own nodes
    saving: set[str]  # from the node that saves the variables
    restoring: set[str]  # from the node that, at loading, restores them


def reach(graph: Any, functions: Mapping[str, Any]) -> Reach:
    """Return the names of a MetaGraphDef's functions, by where their calls can start."""
    calls = calls_of(functions)
    save, restore = saver_nodes(graph)
    nodes = [node for node in graph.graph_def.node if node.name not in (save, restore)]
    roots = _object_functions(graph) + [name for node in nodes for name in list_called(node)]
    sides = ([n for n in graph.graph_def.node if n.name == name] for name in (save, restore))
    of_saver = ([name for node in side for name in list_called(node)] for side in sides)
    called, saving, restoring = (reachable_keys(calls, names) for names in (roots, *of_saver))
    return Reach(called, saving, restoring)


def saver_nodes(graph: Any) -> tuple[str, str]:
    """Return the names of the nodes that save and that restore the variables.

    A name is "" if a signature also runs the node, or if restoring also runs the node that saves.
    """
    saver = graph.saver_def
    save, restore = node_of(saver.save_tensor_name), node_of(saver.restore_op_name)
    signatures = graph.signature_def.values()
    outputs = [node_of(info.name) for each in signatures for info in each.outputs.values()]
    sources = {node.name: [node_of(name) for name in node.input] for node in graph.graph_def.node}
    drawn = reachable_keys(sources, outputs)
    restored = reachable_keys(sources, [restore])
    saves_alone = save not in drawn | restored
    return save if saves_alone else "", restore if restore not in drawn else ""


def node_of(tensor: str) -> str:
    """Return the name of the node of a tensor `name:0` or of a control input `^name`."""
    return tensor.removeprefix("^").partition(":")[0]


def list_called(node: Any) -> list[str]:
    """Return the names that a node may call: its operation, and the functions in its attributes."""
    return [node.op, *_function_names(node.attr.values())]


def calls_of(functions: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names that each function, a FunctionDef, may call."""
    calls = {}
    for name, function in functions.items():
        attributes = [
            *function.attr.values(),
            *(attribute.default_value for attribute in function.signature.attr),
            *(value for each in function.arg_attr.values() for value in each.attr.values()),
        ]
        of_nodes = (called for node in function.node_def for called in list_called(node))
        calls[name] = [*of_nodes, *_function_names(attributes)]
    return calls


def reachable_keys(leads: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    """Return the keys of `leads` that the roots lead to, including roots that are keys."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in leads and name not in found:
            found.add(name)
            waiting += leads[name]
    return found


def _function_names(values: Iterable[Any]) -> list[str]:
    functions = [f for value in values for f in (value.func, *value.list.func) if f.name]
    return [name for f in functions for name in (f.name, *_function_names(f.attr.values()))]


def _object_functions(graph: Any) -> list[str]:
    """Return the functions of a graph's objects, and its gradients."""
    library, found = graph.graph_def.library, list(graph.object_graph_def.concrete_functions)
    for saved in graph.object_graph_def.nodes:
        found += saved.function.concrete_functions
        found.append(saved.bare_concrete_function.concrete_function_name)
    gradients = (*library.registered_gradients, *library.gradient)
    return found + [each.gradient_func for each in gradients]


PROGRAM = "saved_model.pb"
TAG = "serve"
MOST_PROGRAM_BYTES = 2**31 - 1  # protobuf's limit
LARGEST_CONSTANT_BYTES = 2**28  # checked because a few bytes can describe a constant of any size
SAVED_OBJECTS = (
    *("variable", "user_object", "function", "bare_concrete_function"),
    *("constant", "captured_tensor"),  # data: a node of the graph, a tensor of a function
)
CONSTANT = "tf.TrackableConstant"  # TensorFlow's own class of a constant that a function captures
SAVED_CLASSES = (
    "_generic_user_object",
    "signature_map",
    "trackable_dict_wrapper",
    "trackable_list_wrapper",
    "trackable_tuple_wrapper",
)
MODULE, ARTIFACT_VERSION = "XlaCallModule", 4  # the first whose module is a portable artifact
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_BY_KIND = {kind: names.split() for kind, names in _TABLES["tensorflow"].items()}
ALLOWED = frozenset(itertools.chain([MODULE], *_BY_KIND.values()))
# Of a frozen graph, which reads no variables and whose calls are inlined.
FROZEN = ALLOWED.difference(_BY_KIND["variables"], _BY_KIND["calls"])
IN_MODULES = {"func.func", "func.call", "func.return"}.union(
    f"stablehlo.{name}" for name in _TABLES["modules"]["stablehlo"].split()
)
SAVING, RESTORING = (frozenset(names.split()) for names in _TABLES["saver"].values())
RESTORE = "RestoreV2"


def scan_graph(path: Path) -> Any:
    """Return a file's program, a MetaGraphDef; raise UserError if it may do more than compute."""
    graph = _graph(path)
    _check_objects(path, graph)
    _check_operations(path, graph)
    return graph


def check_frozen(path: Path, graph: Any) -> None:
    """Raise UserError unless a GraphDef only computes, of its arguments and weights.

    It has no variables. Every function that an attribute names is its own, and none calls itself.
    """
    functions = _functions(path, graph.library)
    for nodes in (graph.node, *(function.node_def for function in functions.values())):
        for node in nodes:
            _check_node(path, node, FROZEN)
            for name in _function_names(node.attr.values()):
                if name not in functions:
                    raise UserError(f"{path} calls a function that it does not hold: {name[:80]}.")
    try:
        ordered_functions(graph.library)
    except graphlib.CycleError as error:
        raise UserError(f"{path} holds a function that calls itself.") from error


def ordered_functions(library: Any) -> list[Any]:
    """Return a library's functions, each after those that it calls; raise CycleError if none is."""
    functions = {function.signature.name: function for function in library.function}
    calls = {
        name: [called for called in names if called in functions]
        for name, names in calls_of(functions).items()
    }
    return [functions[name] for name in graphlib.TopologicalSorter(calls).static_order()]


def _graph(path: Path) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    stored = saved_model_pb2.SavedModel()
    try:
        stored.ParseFromString(read_plain(path, MOST_PROGRAM_BYTES))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not a bundle: it has no {PROGRAM}.") from error
    except (OSError, DecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    graphs = stored.meta_graphs
    if len(graphs) != 1 or list(graphs[0].meta_info_def.tags) != [TAG]:
        raise UserError(f"{path} must hold one program, tagged `{TAG}`.")
    return graphs[0]


def _check_objects(path: Path, graph: Any) -> None:
    if not graph.object_graph_def.nodes:
        raise UserError(f"{path} must be a program of TensorFlow 2.")
    for saved in graph.object_graph_def.nodes:
        kind = saved.WhichOneof("kind")
        known = ("", CONSTANT) if kind == "constant" else ("",)
        if kind not in SAVED_OBJECTS or saved.registered_name not in known:
            raise UserError(f"{path} holds a disallowed object: {kind}.")
        if kind == "user_object" and saved.user_object.identifier not in SAVED_CLASSES:
            raise UserError(f"{path} holds a disallowed object: {saved.user_object.identifier}.")
        if saved.saveable_objects or saved.registered_saver:
            raise UserError(f"{path} holds a disallowed object: saveable.")
    if graph.asset_file_def:
        raise UserError(f"{path} holds a disallowed object: asset.")


def _check_operations(path: Path, graph: Any) -> None:
    """Raise UserError unless all operations are allowed, and every function can be called.

    Functions that save or restore variables must be reached only from the saver's two nodes. Saving
    is never run; restoring, which loading runs, reads only the program's own variables.
    """
    functions = _functions(path, graph.graph_def.library)
    found = reach(graph, functions)
    for name, function in {**functions, "": graph.graph_def}.items():
        if name and name not in found.called | found.saving | found.restoring:
            raise UserError(f"{path} holds a function that nothing calls: {name[:80]}.")
        of_saver = RESTORING if name in found.restoring else SAVING
        is_savers = name and name not in found.called
        allowed = ALLOWED.union(of_saver if is_savers else (), functions)
        for node in function.node_def if name else function.node:
            _check_node(path, node, allowed)
    _check_restoring(path, graph, {name: functions[name] for name in found.restoring})


def _check_node(path: Path, node: Any, allowed: Container[str]) -> None:
    if node.op not in allowed:
        raise UserError(f"{path} holds a disallowed operation: {node.op[:80]}.")
    if node.op == "Const":
        _check_constant(path, node.attr["value"].tensor)
    if node.op == MODULE:
        _check_module(path, node.attr)


def _check_restoring(path: Path, graph: Any, functions: Mapping[str, Any]) -> None:
    """Raise UserError unless variables are restored only from the file that the loader names.

    The file name must be the first argument of the function that reads, which only the saver calls.
    """
    saver = graph.saver_def
    nodes = {node.name: node for node in graph.graph_def.node}
    restore = nodes.get(node_of(saver.restore_op_name))
    named = nodes.get(node_of(saver.filename_tensor_name))
    inside = {name for names in calls_of(functions).values() for name in names}
    for name, function in functions.items():
        readers = [node for node in function.node_def if node.op == RESTORE]
        first = [argument.name for argument in function.signature.input_arg[:1]]
        if readers and not (
            restore is not None
            and restore.attr["f"].func.name == name
            and name not in inside
            and named is not None
            and named.op == "Placeholder"
            and list(restore.input[:1]) == [named.name]
            and all(list(node.input[:1]) == first for node in readers)
        ):
            raise UserError(f"{path} holds a disallowed operation: {RESTORE} of another file.")


def _functions(path: Path, library: Any) -> dict[str, Any]:
    from tensorflow.python.framework import op_def_registry

    found: dict[str, Any] = {}
    for function in library.function:
        name = function.signature.name
        if name in found:
            raise UserError(f"{path} holds two functions of one name: {name[:80]}.")
        if op_def_registry.get(name) is not None:
            raise UserError(f"{path} holds a function with the name of an operation: {name[:80]}.")
        found[name] = function
    return found


def _check_module(path: Path, attributes: Any) -> None:
    from tensorflow.compiler.mlir.stablehlo import stablehlo
    from tensorflow.python import pywrap_mlir

    try:
        if attributes["version"].i < ARTIFACT_VERSION:
            raise ValueError(attributes["version"].i)
        module = stablehlo.deserialize_portable_artifact_str(attributes["module"].s)
        text = pywrap_mlir.ExperimentalRunPassPipeline(module, "", False)  # to text
    except Exception as error:  # the parser raises many types
        raise UserError(f"{path} holds a module that is not a portable artifact.") from error
    # Function names are ignored; a string that looks like an operation is refused too.
    words = re.findall(r"\b[a-zA-Z_]\w*\.\w+", re.sub(r"@[\w.$-]+", "", text))
    for word in words:
        if word not in IN_MODULES:
            raise UserError(f"{path} holds a disallowed operation: {word[:80]}.")


def _check_constant(path: Path, tensor: Any) -> None:
    import tensorflow as tf

    sizes, dtype = [dim.size for dim in tensor.tensor_shape.dim], tf.as_dtype(tensor.dtype)
    if dtype in (tf.resource, tf.variant):  # a handle, or an object that is made as it is read
        raise UserError(f"{path} holds a constant of a disallowed type: {dtype.name}.")
    bytes_ = math.prod(sizes) * dtype.size
    if min(sizes, default=0) < 0 or bytes_ > LARGEST_CONSTANT_BYTES:
        raise UserError(f"{path} holds a constant of the shape {sizes}, which is too large.")
