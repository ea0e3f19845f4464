"""Forget the gradients of gradients of a stored program.

A SavedModel holds the gradients of a network's own functions, such as those of `recompute_grad`,
but not the gradients of these gradients. It keeps their names, though, and a process that knows a
function of that name takes it for the gradient: the model, loaded and trained there, cannot be
stored again, since such a function may be one that TensorFlow cannot trace.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

NAME = "_gradient_op_type"  # attribute of an operation with a gradient of its own


def forget_gradients(path: Path) -> None:
    """Remove the names of gradients that a program does not hold."""
    stored = SavedModel.FromString(path.read_bytes())
    unknown = [node for graph in stored.meta_graphs for node in _unknown(graph.graph_def)]
    for node in unknown:
        del node.attr[NAME]
    if unknown:
        path.write_bytes(stored.SerializeToString(deterministic=True))


def _unknown(graph: Any) -> Iterator[Any]:
    library = graph.library
    known = {each.registered_op_type for each in library.registered_gradients}
    for nodes in (graph.node, *(function.node_def for function in library.function)):
        for node in nodes:
            if NAME in node.attr and node.attr[NAME].s.decode() not in known:
                yield node
