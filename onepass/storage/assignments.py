"""Rewrite networks that assign to their variables in a call as programs without assignments.

A masked convolution may assign the masked kernel to the kernel, as in Keras' PixelCNN example. A
stored program must not change its weights, so a read after an assignment returns the assigned value
instead.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.model import Autoregressive
from onepass.networks.condition_specs import conditions_of, plain
from onepass.step.replay import CALLS, called_graph, captures_by_name, operations_for, run_op

ASSIGN, READ = "AssignVariableOp", "ReadVariableOp"


def without_assignments(
    call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec]
) -> Callable[..., tf.Tensor]:
    """Return a network with the same outputs and no assignments."""
    traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    assigned = {op.type for op in operations_for(traced.graph.outputs, assigns=True)}
    if ASSIGN not in assigned:
        return call
    graph, names = traced.graph, [x.name for x in traced.graph.inputs[: len(specs)]]

    def run(*arguments: tf.Tensor) -> tf.Tensor:
        for variable in traced.variables:  # a trace lists only variables read from Python
            variable.read_value()
        values = captures_by_name(graph) | dict(zip(names, arguments, strict=True))
        return _run(values, graph.outputs, {})[0]

    return run


def _run(
    values: Mapping[str, tf.Tensor], fetches: Sequence[tf.Tensor], written: dict[int, tf.Tensor]
) -> list[tf.Tensor]:
    """Run a graph as `run_graph` does; update `written`, values by `id` of a variable's handle."""
    known = dict(values)
    for op in operations_for(fetches, known, assigns=True):
        inputs = [known[tensor.name] for tensor in op.inputs]
        if op.type in CALLS:
            body = called_graph(op, "f")
            inner = dict(zip((x.name for x in body.inputs), inputs, strict=True))
            outputs = _run(inner, body.outputs, written)
        elif op.type == ASSIGN:
            written[id(inputs[0])] = inputs[1]
            outputs = []
        elif op.type == READ and id(inputs[0]) in written:
            outputs = [written[id(inputs[0])]]
        else:
            outputs = run_op(op, inputs)
        known.update(zip((tensor.name for tensor in op.outputs), outputs, strict=True))
    return [known[tensor.name] for tensor in fetches]


def assigning_nothing(model: Any) -> Any:
    """Return an image model without assignments in its network, any other model as it is."""
    network: Any = getattr(model, "symbol_network", None)
    if model.order != "raster" or not hasattr(network, "call"):
        return model
    specs = [network.inputs, *map(plain, conditions_of(network).values())]
    call = without_assignments(network.call, specs)
    if call is network.call:
        return model
    changed = copy.copy(network)
    changed.call = call
    made = Autoregressive.of_symbols(changed, model.distribution, model.codec, "raster")
    made.sample_rate_hz = model.sample_rate_hz
    return made
