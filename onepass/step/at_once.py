"""Execute operations of a traced graph eagerly on given tensors.

Building and optimising a function that is called only once or twice takes longer than executing its
operations: with 24 layers, both together take a second, and execution a thirtieth of that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context, execute  # operations by name have no public name

_KEPT = "onepass/at_once"


class Prepared(NamedTuple):
    """Arguments for eager execution of an operation; `attributes` alternates names and values."""

    name: str
    outputs: int
    attributes: tuple
    constant: tf.Tensor | None


class Entry(NamedTuple):
    """An operation of a schedule."""

    op: tf.Operation
    inputs: list[str]
    outputs: list[str]
    last: list[str]  # names of the tensors that are neither fetched nor read by a later operation


def execute_operation(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of an operation for given inputs."""
    known = _cache_of(op.graph)
    name = op.name
    if name not in known:
        dtype = op.outputs[0].dtype if op.outputs else None
        known[name] = prepare_operation(op.node_def, len(op.outputs), dtype)
    return execute_prepared(known[name], inputs)


def execute_prepared(found: Prepared, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of a prepared operation for given inputs."""
    if found.constant is not None:
        return [found.constant]
    return list(
        execute.execute(
            found.name, found.outputs, list(inputs), found.attributes, context.context()
        )
    )


def _cache_of(graph: tf.Graph) -> dict:
    kept = graph.get_collection_ref(_KEPT)
    if not kept or kept[0] is not graph:  # a nested graph copies the collections of the outer one
        kept[:] = [graph, {}]
    return kept[1]


def prepare_operation(node: Any, outputs: int, dtype: tf.DType | None) -> Prepared:
    """Return what the eager execution of an operation needs."""
    if node.op == "Const":
        return Prepared(
            node.op, 1, (), tf.constant(tf.make_ndarray(node.attr["value"].tensor), dtype)
        )
    attributes: list[Any] = []
    for name, value in node.attr.items():
        if name[0] != "_":
            attributes += [name, _plain(value)]
    return Prepared(node.op, outputs, tuple(attributes), None)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        found = next((each for _, each in value.list.ListFields()), ())
        return [_of_kind(each) for each in found]
    return _of_kind(getattr(value, kind)) if kind else None


def _of_kind(value: Any) -> Any:
    if hasattr(value, "unknown_rank"):  # a shape
        return None if value.unknown_rank else [dim.size for dim in value.dim]
    return value.name if hasattr(value, "attr") else value  # function or number


def schedule(
    fetches: Sequence[tf.Tensor], known: Mapping[str, Any], needed: Any, assigns: bool
) -> list[Entry]:
    """Return the operations that compute `fetches`, in order; the result is cached."""
    names = tuple(tensor.name for tensor in fetches)
    found = _cache_of(fetches[0].graph)
    key = names, frozenset(known), assigns
    if key not in found:
        kept, entries = set(names), []
        for op in reversed(needed(fetches, known, assigns)):
            inputs = [tensor.name for tensor in op.inputs]
            outputs = [tensor.name for tensor in op.outputs]
            last = {name for name in (*inputs, *outputs) if name not in kept}
            kept |= last
            entries.append(Entry(op, inputs, outputs, sorted(last)))
        found[key] = entries[::-1]
    return found[key]
