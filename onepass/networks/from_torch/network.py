"""`TorchNetwork`: a `Graph` as a `tf.Module`, without torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.networks.conditions import Frames, Memory
from onepass.networks.from_torch.graph import (
    Block,
    Graph,
    Input,
    Node,
    map_references,
    read_folder,
    references,
)
from onepass.networks.from_torch.operations import (
    creation,
    elementwise,
    indexing,
    products,
    reductions,
    sequences,
    shapes,
    windows,
)
from onepass.networks.from_torch.table import rule_for
from onepass.step.streams import UnsupportedNetworkError

RULE_MODULES = (creation, elementwise, indexing, products, reductions, sequences, shapes, windows)
Values = dict[str, Any]


class TorchNetwork(tf.Module):
    """A PyTorch network as a function of tensors of TensorFlow.

    `weights` are variables by the names of the module's parameters; those that did not require a
    gradient are not trainable. `input_signature` has the elements' spec, then the conditions'.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(name="torch_network")
        unknown = next((node for node in graph.nodes() if rule_for(node.operation) is None), None)
        if unknown is not None:
            raise UnsupportedNetworkError(_unknown(unknown))
        self.weights: dict[str, tf.Variable] = {}
        self.buffers: dict[str, tf.Tensor] = {}
        for name, each in graph.tensors.items():
            if each.trainable is None:
                self.buffers[name] = tf.constant(each.array)
            else:
                variable = tf.Variable(each.array, trainable=each.trainable, name=name)
                self.weights[name] = variable
        specs = [_spec(each) for each in graph.inputs]
        names = [each.name for each in graph.inputs]
        self.input_signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
        self.conditions = dict(zip(names[1:], specs[1:], strict=True))
        self._graph = graph.without_arrays()

    def __call__(self, inputs: tf.Tensor, *conditions: tf.Tensor) -> tf.Tensor:
        """Return the parameters [batch, time, ...] or [batch, height, width, ...]."""
        arguments = [tf.convert_to_tensor(each) for each in (inputs, *conditions)]
        described = self._graph.inputs
        if len(arguments) != len(described):
            raise ValueError(
                f"the network takes {len(described)} arguments,"
                f" {', '.join(each.name for each in described)}, got {len(arguments)}."
            )
        _check_length(described[0], arguments[0])
        cast = [tf.cast(each, own.dtype) for each, own in zip(arguments, described, strict=True)]
        return _Run(self._graph, {**self.weights, **self.buffers}).block(self._graph.main, cast)


def _spec(described: Input) -> tf.TensorSpec:
    dtype, shape = tf.as_dtype(described.dtype), described.shape
    dtype = tf.int32 if dtype == tf.int64 else dtype
    if described.kind == "frames":
        return Frames(shape, dtype, hop=described.hop, extra=described.extra)
    return (Memory if described.kind == "memory" else tf.TensorSpec)(shape, dtype)


def _check_length(described: Input, elements: tf.Tensor) -> None:
    length = elements.shape[1] if elements.shape.rank and elements.shape.rank > 1 else None
    low, high = described.smallest, described.largest
    if length is not None and (length < low or (high is not None and length > high)):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(
            f"`inputs` must have {bounds} time steps, which torch.export found in the module, got"
            f" {length}."
        )


def _unknown(node: Node) -> str:
    return (
        f"no rule for the operation {node.operation} of {_where(node)}; register one with"
        f' @onepass.aten("{node.operation}") on a function of its arguments'
    )


def _where(node: Node) -> str:
    module = f"module `{node.module}`" if node.module else "the module itself"
    return f"{module} ({node.source})" if node.source else module


class _Run:
    def __init__(self, graph: Graph, tensors: Mapping[str, Any]) -> None:
        self._graph = graph
        self._tensors = {name: tf.convert_to_tensor(each) for name, each in tensors.items()}

    def block(self, block: Block, arguments: Sequence[Any]) -> Any:
        values = dict(zip(block.inputs, arguments, strict=True))
        last = _last_uses(block)
        for place, node in enumerate(block.nodes):
            values[node.name] = self._value(node, values)
            for name in last.get(place, ()):
                values.pop(name, None)
        return map_references(block.outputs, self._resolver(values))

    def _resolver(self, values: Values) -> Callable[[str, Any], Any]:
        def resolve(key: str, value: Any) -> Any:
            if key == "value":
                return values[value]
            if key == "tensor":
                return self._tensors[value]
            if key == "dtype":
                return tf.as_dtype(value)
            if key == "float":
                return float(value)
            body = self._graph.blocks[value]
            return lambda *arguments: self.block(body, arguments)

        return resolve

    def _value(self, node: Node, values: Values) -> Any:
        rule, resolve = rule_for(node.operation), self._resolver(values)
        arguments = map_references(node.arguments, resolve)
        options = {name: map_references(each, resolve) for name, each in node.options.items()}
        if rule is None:
            raise UnsupportedNetworkError(_unknown(node))
        scope = re.sub(r"[^\w./>-]", "_", node.module).lstrip("_") or "torch"
        try:
            with tf.name_scope(f"{scope}/"):
                value = rule(*arguments, **options)
                return _as_recorded(value, node) if tf.is_tensor(value) else value
        except UnsupportedNetworkError:
            raise
        except (TypeError, ValueError, KeyError, tf.errors.OpError) as error:
            line = " ".join(str(error).split())[:300].rstrip(".")
            raise UnsupportedNetworkError(
                f"the operation {node.operation} of {_where(node)} cannot be computed: {line}"
            ) from error


def _as_recorded(value: tf.Tensor, node: Node) -> tf.Tensor:
    if node.dtype is not None and value.dtype != node.dtype:
        value = tf.cast(value, node.dtype)
    if node.shape is not None and not tf.executing_eagerly():
        value.set_shape(node.shape)
    return value


def _last_uses(block: Block) -> dict[int, list[str]]:
    kept = set(references(block.outputs, "value"))
    found: dict[int, list[str]] = {}
    for place in reversed(range(len(block.nodes))):
        node = block.nodes[place]
        used = set(references([node.arguments, *node.options.values()], "value"))
        found[place] = sorted(used - kept)
        kept |= used
    return found


def load_network(folder: str | Path) -> TorchNetwork:
    """Return the network in a folder that `python -m onepass.torch_network` wrote.

    The folder contains no code, and torch need not be installed.

    Args:
      folder: the folder.

    Returns:
      A network as `from_torch` returns it.

    Raises:
      UserError: the folder does not exist or is damaged.
      UnsupportedNetworkError: an operation has no rule.
    """
    network = TorchNetwork(read_folder(folder))
    try:
        tf.function(network, network.input_signature, autograph=False).get_concrete_function()
    except UnsupportedNetworkError:
        raise
    except Exception as error:  # what a damaged graph raises depends on where it is damaged
        line = " ".join(str(error).split())[:200]
        raise UserError(f"{folder} contains no network that can be computed: {line}.") from error
    return network
