"""Finds out which functions of a program can be called, and from where, without running it.

TensorFlow finds functions by name in the whole library. A name therefore counts as a call wherever
it occurs: in an object, an operation, an attribute (also nested), a default or a gradient.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Reach(NamedTuple):
    """The names of the functions that can be reached, by where the calls start.

    Attributes:
      called: functions reached from objects, signatures, gradients and the graph's own nodes.
      saving: functions reached from the node that saves the variables.
      restoring: functions reached from the node that restores the variables, which runs at loading.
    """

    called: set[str]
    saving: set[str]
    restoring: set[str]


def reach(graph: Any, functions: Mapping[str, Any]) -> Reach:
    """Return the names of a MetaGraphDef's functions, by where their calls can start."""
    calls = calls_of(functions)
    save, restore = saver_nodes(graph)
    nodes = [node for node in graph.graph_def.node if node.name not in (save, restore)]
    roots = [*_object_functions(graph), *_gradients(graph)]
    roots += [name for node in nodes for name in called_by(node)]
    sides = ([n for n in graph.graph_def.node if n.name == name] for name in (save, restore))
    of_saver = ([name for node in side for name in called_by(node)] for side in sides)
    return Reach(
        reachable_keys(calls, roots), *(reachable_keys(calls, names) for names in of_saver)
    )


def saver_nodes(graph: Any) -> tuple[str, str]:
    """Return the names of the nodes that save and that restore the variables.

    A name is "" if a signature also runs the node, or if restoring also runs the node that saves.
    """
    saver = graph.saver_def
    save, restore = node_of(saver.save_tensor_name), node_of(saver.restore_op_name)
    outputs = [
        info.name
        for signature in graph.signature_def.values()
        for info in signature.outputs.values()
    ]
    sources = {node.name: [node_of(name) for name in node.input] for node in graph.graph_def.node}
    drawn = reachable_keys(sources, [node_of(name) for name in outputs])
    restored = reachable_keys(sources, [restore])
    saves_alone = save not in drawn | restored
    return save if saves_alone else "", restore if restore not in drawn else ""


def node_of(tensor: str) -> str:
    """Return the name of the node of a tensor `name:0` or of a control input `^name`."""
    return tensor.removeprefix("^").partition(":")[0]


def called_by(node: Any) -> list[str]:
    """Return the names that a node may call: its operation, and the functions in its attributes."""
    return [node.op, *_function_names(node.attr.values())]


def calls_of(functions: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names that each function, a FunctionDef, may call."""
    return {
        name: [
            *(called for node in function.node_def for called in called_by(node)),
            *_function_names(function.attr.values()),
            *_function_names(attribute.default_value for attribute in function.signature.attr),
            *_function_names(
                value for each in function.arg_attr.values() for value in each.attr.values()
            ),
        ]
        for name, function in functions.items()
    }


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
    found = list(graph.object_graph_def.concrete_functions)
    for saved in graph.object_graph_def.nodes:
        found += saved.function.concrete_functions
        found.append(saved.bare_concrete_function.concrete_function_name)
    return found


def _gradients(graph: Any) -> list[str]:
    library = graph.graph_def.library
    found = [each.gradient_func for each in library.registered_gradients]
    return found + [each.gradient_func for each in library.gradient]
