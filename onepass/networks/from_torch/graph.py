"""`Graph`: a network as data, without torch and TensorFlow, in memory and as a folder.

An argument of a node is None, a bool, a number, a string, a list of arguments or a dict of one
entry: {"value": name} of an input or an earlier node, {"tensor": name} of a parameter or buffer,
{"dtype": name}, {"block": name} of a function that an operation calls, {"float": "inf"}.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.files import make_folder, replacing, write_text
from onepass.foundation.rules import UserError

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


GRAPH_FILE, WEIGHTS_FILE = "graph.json", "weights.safetensors"
FORMAT = 1
MAX_JSON_BYTES = 256 << 20  # of the graph, and of the header of the weights
MAX_DEPTH = 20  # lists within lists, of an argument
NAMES = {  # dtypes in a safetensors file
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32"},
    **{"I64": "int64", "F32": "float32", "F64": "float64"},
}
PREFIX_BYTES = 8  # the header's size, before the header


def write_folder(graph: Graph, folder: str | Path) -> Path:
    """Write a graph to a folder, which is created if missing, and return it."""
    folder = make_folder(Path(folder))
    arrays = {name: each.array for name, each in graph.tensors.items()}
    described = dataclasses.asdict(graph.without_arrays()) | {
        "format": FORMAT,
        "tensors": {name: {"trainable": each.trainable} for name, each in graph.tensors.items()},
    }
    _write_weights(folder / WEIGHTS_FILE, arrays)
    write_text(folder / GRAPH_FILE, json.dumps(described, allow_nan=False) + "\n")
    return folder


def read_folder(folder: str | Path) -> Graph:
    """Return the graph in a folder of `write_folder`, after checking every name, dtype and size."""
    folder = Path(folder)
    try:
        described = json.loads(_bytes(folder / GRAPH_FILE))
        if described["format"] != FORMAT:
            raise ValueError(f"its format is {described['format']!r}, not {FORMAT}")
        arrays = _read_weights(folder / WEIGHTS_FILE)
        graph = _graph(described, arrays)
        _check(graph)
    except OSError as error:
        raise UserError(f"{folder} contains no network: {error.strerror}.") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        line = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise UserError(
            f"{folder} contains no network that `python -m onepass.torch_network` wrote: {line}."
        ) from error
    return graph


def _bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes, more than {MAX_JSON_BYTES:,}")
    return path.read_bytes()


def _graph(described: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Graph:
    flags = described["tensors"]
    if flags.keys() != arrays.keys():
        raise ValueError(f"{GRAPH_FILE} and {WEIGHTS_FILE} list different tensors")
    return Graph(
        [Input(**each) for each in described["inputs"]],
        _block(described["main"]),
        {name: _block(each) for name, each in described["blocks"].items()},
        {name: Tensor(arrays[name], flags[name]["trainable"]) for name in flags},
    )


def _block(described: Mapping[str, Any]) -> Block:
    nodes = [Node(**each) for each in described["nodes"]]
    return Block(list(described["inputs"]), nodes, described["outputs"])


def _check(graph: Graph) -> None:
    for each in graph.inputs:
        _expect(each.kind in KINDS and each.dtype in DTYPES, f"the input {each.name!r}")
        _expect(_is_shape(each.shape) and len(each.shape) > 0, f"the shape of {each.name!r}")
        bounds = each.smallest, 1 if each.largest is None else each.largest, each.hop, each.extra
        _expect(all(type(n) is int for n in bounds), f"the lengths of {each.name!r}")
    _expect(bool(graph.inputs) and len(graph.inputs) == len(graph.main.inputs), "the inputs")
    for tensor in graph.tensors.values():
        _expect(tensor.trainable in (None, True, False), "what is trainable")
    for place, (name, block) in enumerate([("", graph.main), *graph.blocks.items()]):
        # A function calls those listed after it, so that none calls itself.
        later = set(list(graph.blocks)[place:])
        _check_block(block, name, set(graph.tensors), later)


def _check_block(block: Block, name: str, tensors: set[str], blocks: set[str]) -> None:
    known = {"value": set(block.inputs), "tensor": tensors, "block": blocks}
    for node in block.nodes:
        texts = (node.name, node.operation, node.module, node.source)
        _expect(all(isinstance(text, str) for text in texts), f"a name in block {name!r}")
        _expect(node.shape is None or _is_shape(node.shape), f"the shape of {node.name!r}")
        _expect(node.dtype in (None, *DTYPES, *OTHER_DTYPES), f"the dtype of {node.name!r}")
        _expect(isinstance(node.arguments, list), f"the arguments of {node.name!r}")
        _check_argument([node.arguments, *node.options.values()], known)
        known["value"].add(node.name)
    _check_argument(block.outputs, known)


def _check_argument(argument: Any, known: Mapping[str, set[str]], depth: int = 0) -> None:
    _expect(depth < MAX_DEPTH, "an argument")
    if isinstance(argument, list):
        for each in argument:
            _check_argument(each, known, depth + 1)
    elif isinstance(argument, dict):
        ((key, value),) = argument.items()
        dtypes = {*DTYPES, *OTHER_DTYPES}
        names = {**known, "dtype": dtypes, "float": {"inf", "-inf", "nan"}}
        _expect(key in REFERENCES and value in names[key], f"the reference {argument}")
    else:
        _expect(argument is None or isinstance(argument, bool | int | float | str), "an argument")


def _is_shape(shape: Any) -> bool:
    sizes = isinstance(shape, list) and all(n is None or type(n) is int for n in shape)
    return sizes and all(n is None or 0 <= n < 1 << 40 for n in shape)


def _expect(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"{what} is invalid")


def _write_weights(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    names, header, start = {name: key for key, name in NAMES.items()}, {}, 0
    for name, array in arrays.items():
        span = [start, start + array.nbytes]
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": span,
        }
        start = span[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(PREFIX_BYTES, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)


def _read_weights(path: Path) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(PREFIX_BYTES), "little")
        if not 0 < length <= min(size - PREFIX_BYTES, MAX_JSON_BYTES):
            raise ValueError(f"the header of {path.name} is said to have {length:,} bytes")
        header = json.loads(file.read(length))
    first, arrays = PREFIX_BYTES + length, {}
    header.pop("__metadata__", None)
    spans = sorted(each["data_offsets"] for each in header.values())
    ends = [0, *(end for _, end in spans)]
    if [start for start, _ in spans] != ends[:-1] or first + ends[-1] != size:
        raise ValueError(f"the arrays of {path.name} do not fill its {size:,} bytes")
    for name, each in header.items():
        dtype, (start, end) = np.dtype(NAMES[each["dtype"]]).newbyteorder("<"), each["data_offsets"]
        _expect(_is_shape(each["shape"]) and None not in each["shape"], f"the shape of {name!r}")
        if math.prod(each["shape"]) * dtype.itemsize != end - start:
            raise ValueError(f"the tensor {name!r} has {end - start:,} bytes for its shape")
        count = math.prod(each["shape"])
        flat = np.memmap(path, dtype, "r", first + start, (count,)) if count else np.empty(0, dtype)
        arrays[name] = flat.reshape(each["shape"])
    return arrays
