"""`Graph`: a network as data, without torch and without TensorFlow.

An argument of a node is None, a bool, a number, a string, a list of arguments or a dict of one
entry: {"value": name} of an input or an earlier node, {"tensor": name} of a parameter or buffer,
{"dtype": name}, {"block": name} of a function that an operation calls, {"float": "inf"}.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

KINDS = ("elements", "condition", "memory", "frames")
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
# What a dtype of an operation may also be, though no tensor of a graph is stored in it.
OTHER_DTYPES = ("float16", "bfloat16", "complex64", "complex128")
REFERENCES = ("value", "tensor", "dtype", "block", "float")


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument of a network."""

    name: str
    dtype: str
    shape: list[int | None]  # sizes, the batch first; None where a size may vary
    kind: str = "elements"  # "elements", "condition", "memory" or "frames"
    smallest: int = 1  # smallest, largest: fewest and most time steps, if export has found a bound
    largest: int | None = None
    hop: int = 1  # hop, extra: of frames, as for `onepass.Frames`
    extra: int = 0


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation."""

    name: str
    operation: str  # name of the operation, without "aten." and ".default"
    arguments: list[Any]
    options: dict[str, Any]
    module: str = ""  # path of the module that ran it, such as "layers.0.attention"
    source: str = ""  # file and line of that module, such as "model.py:16"
    shape: list[int | None] | None = None
    dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class Block:
    """A function: names of its inputs, its nodes in order, and its results."""

    inputs: list[str]
    nodes: list[Node]
    outputs: Any


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A parameter or a buffer; `trainable` is None for a buffer."""

    array: np.ndarray
    trainable: bool | None = None


@dataclasses.dataclass(frozen=True)
class Graph:
    """A network."""

    inputs: list[Input]  # its arguments, the elements first
    main: Block
    blocks: dict[str, Block]
    tensors: dict[str, Tensor]  # parameters and buffers by the module's names; tied parameters once

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes of all functions."""
        for block in (self.main, *self.blocks.values()):
            yield from block.nodes

    def without_arrays(self) -> "Graph":
        """Return the graph without its parameters and buffers."""
        return dataclasses.replace(self, tensors={})


def map_references(argument: Any, function: Callable[[str, Any], Any]) -> Any:
    """Return an argument with `function(key, value)` in place of every dict {key: value}."""
    if isinstance(argument, list):
        return [map_references(each, function) for each in argument]
    if isinstance(argument, dict):
        ((key, value),) = argument.items()
        return function(key, value)
    return argument


def references(argument: Any, kind: str) -> list[str]:
    """Return the names of one kind, such as "value", to which an argument refers."""
    found: list[str] = []
    map_references(argument, lambda key, value: found.append(value) if key == kind else None)
    return found


def as_number(value: float) -> Any:
    """Return a float as an argument; those that JSON cannot write become {"float": name}."""
    return value if math.isfinite(value) else {"float": str(float(value))}


def drop_unused_nodes(block: Block) -> Block:
    """Return a block without the nodes that its results do not depend on."""
    used, kept = set(references(block.outputs, "value")), []
    for node in reversed(block.nodes):
        if node.name in used:
            kept.append(node)
            used |= set(references([node.arguments, *node.options.values()], "value"))
    return dataclasses.replace(block, nodes=kept[::-1])
