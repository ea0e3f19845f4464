"""Checks a bundle's program against the signatures that its model.json declares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bundles.signature import PLAIN, Signature, TensorInfo
from onepass.foundation.allowed_operations import PROGRAM, scanned_graph
from onepass.foundation.errors import UserError
from onepass.foundation.program_functions import called_by, calls_of, node_of, reachable_keys

LOWERED = "lowered.pb"  # without `serving_default`, with programs as StableHLO


def check_program(folder: Path, signatures: Mapping[str, Signature]) -> Any:
    """Return the bundle's program, a MetaGraphDef; raise UserError unless it may be loaded.

    The program must consist of allowed operations, and have the signatures that model.json
    declares. If the bundle has a lowered program, without `serving_default`, that one is used.
    """
    path = Path(folder) / LOWERED
    if path.exists():
        signatures = {name: s for name, s in signatures.items() if name != PLAIN}
    else:
        path = Path(folder) / PROGRAM
    graph = scanned_graph(path)
    for name, signature in signatures.items():
        _check_signature(path, graph, name, signature)
    return graph


def without(graph: Any, signature: str) -> Any:
    """Return a checked MetaGraphDef without a signature and the operations that only it runs."""
    outputs = {
        name: {node_of(info.name) for info in stored.outputs.values()}
        for name, stored in graph.signature_def.items()
    }
    read = {node_of(source) for node in graph.graph_def.node for source in node.input}
    # The signature's outputs that no other node reads and no other signature returns.
    own = outputs.pop(signature) - read.union(*outputs.values())
    nodes = [node for node in graph.graph_def.node if node.name not in own]
    functions = graph.graph_def.library.function
    calls = calls_of({function.signature.name: function for function in functions})
    kept = reachable_keys(calls, [name for node in nodes for name in called_by(node)])
    smaller = type(graph)(meta_info_def=graph.meta_info_def, saver_def=graph.saver_def)
    for name in outputs:
        smaller.signature_def[name].CopyFrom(graph.signature_def[name])
    smaller.graph_def.versions.CopyFrom(graph.graph_def.versions)
    smaller.graph_def.node.extend(nodes)
    smaller.graph_def.library.function.extend(f for f in functions if f.signature.name in kept)
    return smaller


def _check_signature(path: Path, graph: Any, name: str, signature: Signature) -> None:
    if name not in graph.signature_def:
        raise UserError(f"{path} has no signature `{name}`, which model.json declares.")
    stored = graph.signature_def[name]
    sides = ((signature.inputs, stored.inputs), (signature.outputs, stored.outputs))
    for declared, found in sides:
        if _describe_infos(declared) != {key: _of_proto(info) for key, info in found.items()}:
            raise UserError(f"{path} and model.json differ in the signature `{name}`.")


def _describe_infos(infos: Mapping[str, TensorInfo]) -> dict:
    return {name: (info.dtype, info.shape) for name, info in infos.items()}


def _of_proto(info: Any) -> tuple[np.dtype, tuple[int | None, ...]]:
    import tensorflow as tf

    sizes = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
    return np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype), sizes
