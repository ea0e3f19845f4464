"""Find the layer in which a network first violates the law of a causal network, by its values."""

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from onepass.step.probes import Fault, exceeding
from onepass.step.replay import CALLS, operations_for
from onepass.step.wide_floats import ERRORS, WideCalls


def describe_fault(
    network: WideCalls, fault: Fault, names: Iterable[str], axes: int = 1, period: int = 1
) -> str:
    """Return a fault as a phrase that names the layer, if its values show it."""
    if not fault.kind:
        return fault.text
    try:
        layer = _layer(_Compared(network, fault, axes, period), frozenset(names))
    except ERRORS:
        layer = ""
    return f"{fault.text}; {layer} {fault.kind}" if layer else fault.text


def drawing_layer(graph: tf.Graph, names: Iterable[str]) -> str:
    """Return a phrase that names the layer of a network that draws random numbers."""
    text = "two calls on the same input differ: the network draws random numbers of its own"
    drawn = (op.name for op in operations_for(graph.outputs) if "Random" in op.type)
    name = next(drawn, "")
    return f"{text}, in {_layer_phrase(name, frozenset(names))}" if name else text


def _layer(compared: "_Compared", names: frozenset[str]) -> str:
    tensor = compared.output if compared.at_fault.get(compared.output.name) else None
    at_fault = None
    while tensor is not None:
        at_fault, tensor = tensor, compared.source(tensor)
    return "" if at_fault is None else _layer_phrase(compared.begin(at_fault).name, names)


class _Compared:
    """The operations of two calls that show a fault; `at_fault` says which violate the law."""

    def __init__(self, network: WideCalls, fault: Fault, axes: int, period: int) -> None:
        graphs = [network.graph(arguments) for arguments in (fault.first, fault.other)]
        self.output, self.at_fault = graphs[0].outputs[0], dict[str, bool]()
        self.changed: set[str] = set()
        pairs = zip(
            network.operations(graphs[0], fault.first),
            network.operations(graphs[1], fault.other),
            strict=True,
        )
        sizes = [tuple(x[0].shape[: 1 + axes]) for x in (fault.first, fault.other)]
        for (op, values), (counterpart, others) in pairs:
            if op.type != counterpart.type:
                raise ValueError(f"{op.name} has no counterpart.")
            for tensor, *two in zip(op.outputs, values, others, strict=True):
                if not _is_number(tensor):
                    continue
                if two[0].shape != two[1].shape or bool(tf.reduce_any(two[0] != two[1])):
                    self.changed.add(op.name)
                rows = [_rows(x, each, period) for x, each in zip(two, sizes, strict=True)]
                if rows[0] is not None and rows[1] is not None:
                    rate = math.prod(sizes[0][1:]) // rows[0].shape[1]
                    first = rows[0][fault.row : fault.row + 1, : fault.times // rate]
                    second = rows[1][:1, : fault.times // rate]
                    exceeds = first.shape == second.shape and exceeding(
                        first, second, network.precision
                    )
                    self.at_fault[tensor.name] = bool(np.any(exceeds))

    def source(self, tensor: tf.Tensor) -> tf.Tensor | None:
        found = (each for op in self._between(tensor) for each in op.inputs)
        return next((each for each in found if self.at_fault.get(each.name)), None)

    def begin(self, tensor: tf.Tensor) -> tf.Operation:
        """Return the first operation between a tensor at fault and tensors that are not."""
        found = [
            op
            for op in self._between(tensor)
            if op.name in self.changed
            and any(x.name in self.at_fault or not x.op.inputs for x in op.inputs)
        ]
        order = {op: place for place, op in enumerate(tensor.graph.get_operations())}
        return min(found or [tensor.op], key=lambda op: order[op])

    def _between(self, tensor: tf.Tensor) -> list[tf.Operation]:
        waiting, found = [tensor.op], []
        while waiting:
            op = waiting.pop(0)
            if op not in found:
                found.append(op)
                waiting += [x.op for x in op.inputs if x.name not in self.at_fault]
        return found


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool


def _rows(value: tf.Tensor, sizes: Sequence[int], period: int) -> tf.Tensor | None:
    """Return a value as [batch, times or pixels, values]; None if it has no such axes."""
    if value.dtype.is_bool:
        return None
    shape, first = tuple(value.shape), tuple(sizes)
    if len(sizes) == 2 and shape[:2] == first[::-1] and shape[:2] != first:
        value = tf.transpose(value, [1, 0, *range(2, len(shape))])  # time comes first
    elif period > 1 and len(shape) > 1 and shape[0] == first[0] and shape[1]:
        rate, rest = divmod(first[1], shape[1])
        if rest or rate > period:
            return None
        first = shape[:2]
    elif shape[: len(first)] != first:
        return None
    return tf.reshape(value, [first[0], math.prod(first[1:]), -1])


def _layer_phrase(operation: str, names: frozenset[str]) -> str:
    scopes = [scope for scope in operation.split("/") if scope not in CALLS]
    path: list[str] = []
    for scope in scopes[:-1]:
        # Keras opens a layer's scope twice, and appends a number to the second one.
        known = next((x for x in (re.sub(r"_\d+$", "", scope), scope) if x in names), "")
        if known and known not in path:
            path.append(known)
    return f"its layer `{'/'.join(path)}`" if path else f"its operation `{'/'.join(scopes)}`"
