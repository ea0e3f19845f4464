"""Export the passes F, B and W of a pipeline's stages as StableHLO, to run with JAX.

A stage and its gradient are traced into one graph, which is then cut:

    F  operations that the outputs need
    B  further operations that the gradients of the inputs need
    W  further operations that the gradients of the variables need

A tensor that crosses a cut is passed from one function to the next unless it depends on no input:
variables are read, and constants computed, on both sides. Shapes are static and therefore constant.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.foundation.files import make_folder, write_npz
from onepass.planning.pipeline.schedule import GRADIENT, KEPT, LOSS, WEIGHTS, function_name
from onepass.replicator.portable.export import export_function, specs_of
from onepass.replicator.portable.manifest import manifest_of, write_manifest

Tensors = dict[str, tf.Tensor]
Specs = dict[str, tf.TensorSpec]
PureFn = Callable[[Tensors], Tensors]
OF_SHAPES = ("Shape", "ShapeN")  # operations that read only shapes


class Part(NamedTuple):
    """A function from tensors to tensors by name, with its input and output specs in order."""

    run: PureFn
    inputs: Specs
    outputs: Specs


def split(
    run: PureFn, inputs: Mapping[str, tf.TensorSpec], variables: Mapping[str, tf.Variable]
) -> dict[str, Part]:
    """Return the passes of a stage by kind: F, B and W; `run` and `variables` as in `Stage`.

    F maps the inputs to the outputs, B maps `gradient/OUTPUT` to `gradient/INPUT` for float inputs,
    W returns `gradient/VARIABLE`; tensors `kept/NUMBER` are passed between them.
    """
    graph, known = _trace_stage(run, inputs, variables)
    given, returned = known["inputs"], known["outputs"]
    coming, leaving, found = (known[kind] for kind in ("coming", "leaving", "found"))
    varying = _reach_from([*given.values(), *coming.values()])
    starts = {t.op for t in coming.values()}
    # Every operation belongs to the first pass that needs it; later passes receive its result.
    forward = _ancestors(returned.values()) | {t.op for t in given.values()}
    backward = _ancestors(leaving.values()) - forward - starts
    weights = _ancestors(found.values()) - forward - backward - starts
    for_backward = _crossing(leaving.values(), backward, varying)
    for_weights = _crossing(found.values(), weights, varying)
    of_forward = [t for t in dict.fromkeys(for_backward + for_weights) if t.deref().op in forward]
    of_backward = [t for t in for_weights if t.deref().op not in forward]
    names = {t: f"{KEPT}{number}" for number, t in enumerate(of_forward + of_backward)}

    def tensors_by_name(references: Iterable[Any]) -> Tensors:
        return {names[t]: t.deref() for t in references}

    ends = {
        "F": (given, returned | tensors_by_name(of_forward)),
        "B": (
            coming | tensors_by_name(t for t in of_forward if t in for_backward),
            leaving | tensors_by_name(of_backward),
        ),
        "W": (tensors_by_name(for_weights), found),
    }
    return {kind: _part(graph, takes, gives) for kind, (takes, gives) in ends.items()}


def _part(graph: tf.Graph, takes: Tensors, gives: Tensors) -> Part:
    # Shapes are static; as constants, they avoid keeping a tensor only for its shape.
    reading = [operation for operation in graph.get_operations() if operation.type in OF_SHAPES]
    shapes = {
        output.name: {"value": source.shape.as_list(), "dtype": output.dtype}
        for operation in reading
        for source, output in zip(operation.inputs, operation.outputs, strict=True)
    }
    captured = {internal.name: external for external, internal in graph.captures}
    operations = _ancestors(gives.values(), {t.ref() for t in takes.values()})
    nodes = _graph_def(graph, operations)
    used = {tensor.name for operation in operations for tensor in operation.inputs}

    @tf.function(autograph=False)
    def run(given: Tensors) -> Tensors:
        here = tf.compat.v1.get_default_graph()
        known = {tensor.name: given[name] for name, tensor in takes.items()}
        known |= {n: tf.constant(**shapes[n]) for n in used & shapes.keys()}
        known |= {n: here.capture(captured[n]) for n in used & captured.keys()}
        made = [tensor.name for tensor in gives.values() if tensor.name not in known]
        inputs = {n: known[n] for n in used & known.keys()}
        results = tf.graph_util.import_graph_def(nodes, inputs, made, name="part")
        known |= dict(zip(made, results, strict=True))
        return {name: known[tensor.name] for name, tensor in gives.items()}

    return Part(run, specs_of(takes), specs_of(gives))


def _graph_def(graph: tf.Graph, operations: set[tf.Operation]) -> tf.compat.v1.GraphDef:
    whole, names = graph.as_graph_def(), {operation.name for operation in operations}
    part = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    for node in whole.node:
        if node.name in names:
            new = part.node.add()
            new.CopyFrom(node)
            new.input[:] = [name for name in node.input if not name.startswith("^")]
    return part


def _trace_stage(
    run: PureFn, inputs: Mapping[str, tf.TensorSpec], variables: Mapping[str, tf.Variable]
) -> tuple[tf.Graph, dict[str, Tensors]]:
    known: dict[str, Tensors] = {}

    @tf.function(autograph=False, input_signature=list(inputs.values()))
    def whole(*arguments: tf.Tensor) -> list[tf.Tensor]:
        given = dict(zip(inputs, arguments, strict=True))
        floats = {name: tensor for name, tensor in given.items() if tensor.dtype.is_floating}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([floats, list(variables.values())])
            outputs = {name: tf.identity(tensor) for name, tensor in run(dict(given)).items()}
        # The gradients of the outputs come from the next stage when B runs.
        coming = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in outputs.values()]
        sources = [floats, dict(variables)]
        leaving, found = tape.gradient(list(outputs.values()), sources, coming, "zero")
        known["inputs"], known["outputs"] = given, outputs
        known["coming"] = _gradients(dict(zip(outputs, coming, strict=True)))
        known["leaving"], known["found"] = _gradients(leaving), _gradients(found)
        return list(outputs.values())

    return whole.get_concrete_function().graph, known


def _gradients(tensors: Tensors) -> Tensors:
    return {f"{GRADIENT}{name}": tf.convert_to_tensor(t) for name, t in tensors.items()}


def _ancestors(tensors: Iterable[tf.Tensor], known: Collection = ()) -> set[tf.Operation]:
    """Return the operations that compute tensors, stopping at those whose reference is `known`."""
    found: set[tf.Operation] = set()
    waiting = [tensor for tensor in tensors if tensor.ref() not in known]
    while waiting:
        operation = waiting.pop().op
        if operation not in found and operation.type not in OF_SHAPES:
            found.add(operation)
            waiting += [tensor for tensor in operation.inputs if tensor.ref() not in known]
    return found


def _reach_from(tensors: Iterable[tf.Tensor]) -> set:
    found, waiting = set(), list(tensors)
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() not in found:
            found.add(tensor.ref())
            users = [user for user in tensor.consumers() if user.type not in OF_SHAPES]
            waiting += [output for user in users for output in user.outputs]
    return found


def _crossing(ends: Iterable[tf.Tensor], operations: set[tf.Operation], varying: set) -> list:
    """Return references to varying tensors from outside that the operations or ends need."""
    taken = [*ends, *(t for operation in operations for t in operation.inputs)]
    found = [t.ref() for t in taken if t.op not in operations and t.ref() in varying]
    return sorted(set(found), key=lambda reference: reference.deref().name)


class Stage(NamedTuple):
    """Consecutive layers of a network.

    `run` is a function from the previous stage's outputs and the entries of the batch that `batch`
    names, by name, to float tensors by name; the last stage returns only the `loss` [].
    """

    run: PureFn
    batch: tuple[str, ...]
    variables: Mapping[str, tf.Variable]  # the trained ones, at least one
    frozen: Mapping[str, tf.Variable] = MappingProxyType({})  # others that `run` reads


def export_stages(
    folder: Path, stages: Sequence[Stage], batch_spec: Mapping[str, tf.TensorSpec]
) -> Path:
    """Write the passes of every stage, and the weights, for `execution.Pipeline`.

    `batch_spec` has the static shape and dtype of every entry of a microbatch.
    """
    folder = make_folder(folder)
    arriving: dict[str, tf.TensorSpec] = {}
    for number, stage in enumerate(stages):
        inputs = arriving | {name: batch_spec[name] for name in stage.batch}
        passes = split(stage.run, inputs, stage.variables)
        outputs = passes["F"].outputs
        arriving = {n: spec for n, spec in outputs.items() if not n.startswith(KEPT)}
        if number == len(stages) - 1 and list(arriving) != [LOSS]:
            raise ValueError(f"The last stage must return `{LOSS}` only, got {list(arriving)}.")
        for kind, part in passes.items():
            export_function(
                part.run, part.inputs, folder, function_name(number, kind),
                variables=stage.frozen, state=stage.variables, tensor_float_32=False,
            )  # fmt: skip
    variables = {name: v for stage in stages for name, v in stage.variables.items()}
    write_npz(folder / WEIGHTS, {name: v.numpy() for name, v in variables.items()})
    write_manifest(folder, manifest_of(folder) | {"stages": len(stages)})
    return folder
