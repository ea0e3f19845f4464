"""Write the graph of an exported program as a `Graph`."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onepass.foundation.rules import UserError
from onepass.networks.from_torch import graph as neutral
from onepass.networks.from_torch.graph import Block, Graph, Input, Node, Tensor

LAYERS = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
FUNCTIONS: dict[str, Any] = {
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
    "GRU": torch.gru,
    "LSTM": torch.lstm,
}


@torch.library.custom_op("onepass::recurrent", mutates_args=())
def recurrent(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    mode: str,
    layers: int,
    ways: int,
) -> list[torch.Tensor]:
    """Return the outputs [batch, time, channels] of recurrent layers, and their last states.

    `weights` are two of each layer and way, or four with biases; `ways` is 2 if bidirectional.
    """
    first: Any = states if mode == "LSTM" else states[0]
    has_bias = len(weights) == 4 * layers * ways
    found = FUNCTIONS[mode](x, first, weights, has_bias, layers, 0.0, False, ways == 2, True)
    return [each.clone() for each in found]


@recurrent.register_fake
def _shapes(x: torch.Tensor, states: list[torch.Tensor], *layer: Any) -> list[torch.Tensor]:
    *_, ways = layer
    channels = states[0].shape[-1] * ways
    return [x.new_empty(*x.shape[:2], channels), *(torch.empty_like(each) for each in states)]


def _forward(layer: Any, x: Any, states: Any = None) -> tuple[torch.Tensor, Any]:
    if not isinstance(x, torch.Tensor) or x.dim() != 3:
        raise TypeError("recurrent layers must read a batch [batch, time, channels], not packed")
    x = x if layer.batch_first else x.transpose(0, 1)
    mode, is_lstm = layer.mode, layer.mode == "LSTM"
    layers, ways = layer.num_layers, 2 if layer.bidirectional else 1
    if states is None:
        zeros = x.new_zeros(layers * ways, x.shape[0], layer.hidden_size)
        states = (zeros, zeros) if is_lstm else zeros
    torch._check(x.shape[-1] == layer.input_size)  # known, though x may come from a condition
    weights = [getattr(layer, name) for names in layer._all_weights for name in names]
    y, *last = recurrent(x, list(states) if is_lstm else [states], weights, mode, layers, ways)
    return y if layer.batch_first else y.transpose(0, 1), tuple(last) if is_lstm else last[0]


@contextlib.contextmanager
def as_operations(module: torch.nn.Module) -> Iterator[None]:
    """Let the recurrent layers of a module run as custom operations inside the block."""
    layers: list[Any] = [each for each in module.modules() if isinstance(each, LAYERS)]
    for layer in layers:
        layer.forward = functools.partial(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


# Arguments of operations that say where and how values are stored.
STORAGE = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
STORED = (torch.device, torch.layout, torch.memory_format, torch.Generator)
CHECKS = re.compile(r"_assert|sym_constrain|_check|sym_size_hint")


class Axes:
    """Which axes of a program's arguments are the batch and time."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        names = [str(name) for name in program.graph_signature.user_inputs]
        self.values = [placeholders[name].meta["val"] for name in names]
        first = self.values[0].shape
        self.batch = _symbols(first[0])
        self.times = [axis for axis in range(1, len(first)) if _symbols(first[axis])]
        self._time = [_symbols(first[axis]) for axis in self.times]
        self._ranges = program.range_constraints

    def find_fixed_size(self) -> str:
        """Return "batch size" or "length" if the elements have a fixed one, else ""."""
        return "batch size" if not self.batch else "" if self.times else "length"

    def channels_that_vary(self) -> list[int]:
        """Return the elements' axis of channels, before time, if export has not found its size."""
        value = self.values[0]
        if len(self.times) < max(2, value.dim() - 1):
            return []
        return [1 if value.dtype.is_floating_point or value.dim() == 4 else 2]

    def frames(self, name: str, value: torch.Tensor) -> tuple[int, int] | None:
        """Return a condition's time steps in a frame, and the extra frames; None for no frames."""
        first = self.values[0].shape
        times = {str(first[axis]) for axis in self.times}
        for axis in self.over_time(value):
            if str(value.shape[axis]) in times:
                continue
            found = _whole_frames(first[self.times[0]], value.shape[axis])
            if found is None or len(self.times) > 1:
                raise UserError(
                    f"the condition `{name}` must have one entry for each time step or frame, but"
                    f" the elements have {first[self.times[0]]} time steps where it has"
                    f" {value.shape[axis]} entries; convert what upsamples it as a network of its"
                    " own."
                )
            return found
        return None

    def over_time(self, value: torch.Tensor) -> list[int]:
        """Return the axes of a value whose sizes depend on the elements' lengths, in order."""
        sizes = [_symbols(size) - self.batch for size in value.shape]
        return [n for wanted in self._time for n, found in enumerate(sizes) if found & wanted]

    def bounds(self) -> tuple[int, int | None]:
        """Return the smallest and the largest length; 1 and None without a bound."""
        lower, upper = 1, None
        length: Any = self.values[0].shape[self.times[0]].node.expr
        for symbol in self._time[0]:
            found = self._ranges.get(symbol)
            if found is not None:
                ends = [length.subs(symbol, end) for end in (found.lower, found.upper)]
                lower = int(ends[0]) if int(found.lower) > 2 else 1
                upper = int(ends[1]) if found.upper < 1 << 31 else None
        return lower, upper


def _symbols(size: Any) -> set[Any]:
    return set() if isinstance(size, int) else set(size.node.expr.free_symbols)


def _whole_frames(time: Any, entries: Any) -> tuple[int, int] | None:
    """Return hop and extra frames if time = hop (entries - extra), symbolically; else None."""
    symbols = list(_symbols(time) | _symbols(entries))
    formulas = [size.node.expr.as_poly(symbols[0]) for size in (time, entries)]
    lines = [[] if formula is None else formula.all_coeffs() for formula in formulas]
    if len(symbols) > 1 or [len(line) for line in lines] != [2, 2]:
        return None
    (steps, more), (each, others) = lines
    hop, rest = divmod(steps, each)
    extra, behind = divmod(others * hop - more, hop)
    is_whole = not rest and not behind and hop > 0 and extra >= 0
    return (int(hop), int(extra)) if is_whole else None


def graph_of(
    program: torch.export.ExportedProgram,
    names: Sequence[str],
    output: Any,
    axes: Axes,
    one_hot: bool = False,
) -> Graph:
    """Return an exported program without operations in place, with time before channels."""
    writer = _Writer(program)
    main = writer.block(program.graph_module)
    inputs = [
        _input(name, number, value, axes)
        for number, (name, value) in enumerate(zip(names, axes.values, strict=True))
    ]
    main, result = _one_output(main, program, output)
    arguments = [str(name) for name in program.graph_signature.user_inputs]
    before, renamed = [], {}
    for number, (name, value) in enumerate(zip(arguments, axes.values, strict=True)):
        order = _time_first(value, axes)
        if order is not None:
            shape = [inputs[number].shape[axis] for axis in order]
            inputs[number] = dataclasses.replace(inputs[number], shape=shape)
            back = [order.index(axis) for axis in range(len(order))]
            renamed[name] = f"{name}.channels_first"
            before.append(_permute_node(renamed[name], name, back))
    if one_hot:
        inputs[0], vectors = _one_hot(inputs[0], arguments[0])
        first = arguments[0]
        source = vectors[-1].name
        before = [*vectors, *(_rename_values(node, {first: source}) for node in before)]
        renamed.setdefault(first, source)
    nodes = [*before, *(_rename_values(node, renamed) for node in main.nodes)]
    after, last = _output_nodes(renamed.get(result.name, result.name), result.meta["val"], axes)
    outputs = {"value": last}
    main = neutral.drop_unused_nodes(Block(arguments, [*nodes, *after], outputs))
    blocks = {name: neutral.drop_unused_nodes(block) for name, block in writer.blocks.items()}
    used = {
        name
        for block in (main, *blocks.values())
        for node in block.nodes
        for name in neutral.references([node.arguments, *node.options.values()], "tensor")
    }
    tensors = {name: each for name, each in writer.tensors.items() if name in used}
    return Graph(inputs, main, blocks, tensors)


def _one_output(
    main: Block, program: torch.export.ExportedProgram, output: Any
) -> tuple[Block, torch.fx.Node]:
    (last,) = (node for node in program.graph.nodes if node.op == "output")
    found = [
        node
        for node, spec in zip(last.args[0], program.graph_signature.output_specs, strict=True)
        if spec.kind.name == "USER_OUTPUT"
    ]
    spec = program.call_spec.out_spec
    keys = getattr(spec, "context", None) if spec is not None else None
    names = [str(key) for key in keys] if isinstance(keys, list) else []
    place = names.index(output) if output in names else output
    if place is None and len(found) > 1 and "logits" in names:
        place = names.index("logits")
    place = 0 if place is None and len(found) == 1 else place
    if not isinstance(place, int) or not -len(found) <= place < len(found):
        choices = ", ".join(map(repr, names or range(len(found))))
        raise ValueError(f"`output` must be one of the outputs {choices}, got {output!r}.")
    return main, found[place]


def _input(name: str, number: int, value: torch.Tensor, axes: Axes) -> Input:
    kind = "elements"
    over_time, frames = axes.over_time(value), None
    if number:
        frames = axes.frames(name, value)
        varying = [size for size in value.shape[1:] if _symbols(size)]
        kind = "condition" if over_time or not varying else "memory"
    shape = [None if _symbols(size) else int(size) for size in value.shape]
    lower, upper = (1, None) if number else axes.bounds()
    kind, (hop, extra) = (kind, (1, 0)) if frames is None else ("frames", frames)
    return Input(name, _dtype(value.dtype), [None, *shape[1:]], kind, lower, upper, hop, extra)


def _one_hot(elements: Input, name: str) -> tuple[Input, list[Node]]:
    """Return the integers that a graph takes in place of vectors, and nodes that make vectors."""
    *others, classes = elements.shape
    if len(others) != 2 or classes is None or "float" not in elements.dtype:
        raise ValueError(
            "`one_hot` must be False unless `inputs` are floats [batch, classes, time], got"
            f" {elements.dtype} {elements.shape}."
        )
    vectors = [
        Node(f"{name}.one_hot", "one_hot", [{"value": name}, classes], {}),
        Node(f"{name}.floats", "to", [{"value": f"{name}.one_hot"}, {"dtype": elements.dtype}], {}),
    ]
    return dataclasses.replace(elements, shape=others, dtype="int64"), vectors


def _time_first(value: torch.Tensor, axes: Axes) -> list[int] | None:
    varying = [axis for axis in range(1, value.dim()) if _symbols(value.shape[axis])]
    order = [0, *varying, *(axis for axis in range(1, value.dim()) if axis not in varying)]
    return None if order == sorted(order) else order


def _permute_node(name: str, source: str, order: Sequence[int]) -> Node:
    return Node(name, "permute", [{"value": source}, list(order)], {})


def _rename_values(node: Node, names: dict[str, str]) -> Node:
    def new(key: str, value: Any) -> Any:
        return {key: names.get(value, value) if key == "value" else value}

    arguments = neutral.map_references(node.arguments, new)
    options = {key: neutral.map_references(each, new) for key, each in node.options.items()}
    return dataclasses.replace(node, arguments=arguments, options=options)


def _output_nodes(name: str, value: torch.Tensor, axes: Axes) -> tuple[list[Node], str]:
    times = axes.over_time(value)
    if len(times) != len(axes.times):
        raise ValueError(
            f"`output` must have the time axis of `inputs`, got shape {_format_shape(value.shape)}."
        )
    nodes, others = [], [n for n in range(1, value.dim()) if n not in times]
    # Of [batch, parameters, channels, height, width], the parameters of a channel stay together.
    order = [0, *times, *(reversed(others) if others and others[0] < times[0] else others)]
    if order != sorted(order):
        nodes.append(_permute_node(f"{name}.channels_last", name, order))
        name = nodes[-1].name
    if len(others) > 1:
        flat = [{"value": name}, 1 + len(times), -1]
        nodes.append(Node(f"{name}.merged", "flatten.using_ints", flat, {}))
        name = nodes[-1].name
    elif not others:
        nodes.append(Node(f"{name}.parameter", "unsqueeze", [{"value": name}, -1], {}))
        name = nodes[-1].name
    return nodes, name


def _format_shape(shape: Sequence[Any]) -> str:
    return str([str(size) for size in shape]).replace("'", "")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Writer:
    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.blocks: dict[str, Block] = {}
        self.tensors: dict[str, Tensor] = {}
        self._named: dict[str, str] = {}  # name in `tensors` by that of the placeholder
        same: dict[tuple, str] = {}
        state = {**program.state_dict, **program.constants}
        for spec in program.graph_signature.input_specs:
            kind = spec.kind.name
            if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                continue
            tensor, name = state[spec.target], spec.target.removeprefix("module.")
            storage = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
            key = (*storage, tuple(tensor.shape), tensor.stride(), tensor.dtype)
            name = same.setdefault(key if tensor.numel() else (name,), name)
            self._named[spec.arg.name] = name
            if name not in self.tensors:
                trainable = bool(tensor.requires_grad) if kind == "PARAMETER" else None
                self.tensors[name] = Tensor(tensor.detach().contiguous().numpy(), trainable)

    def block(self, module: torch.fx.GraphModule, path: str = "") -> Block:
        inputs, nodes, outputs = [], [], None
        for node in module.graph.nodes:
            if node.op == "placeholder" and node.name not in self._named:
                inputs.append(node.name)
            elif node.op == "call_function" and not CHECKS.search(str(node.target)):
                nodes.append(self._node(node, module, path))
            elif node.op == "output":
                outputs = self._argument(node.args[0], module, path)
        return Block(inputs, nodes, outputs)

    def _node(self, node: torch.fx.Node, module: torch.fx.GraphModule, path: str) -> Node:
        value: Any = node.meta.get("val")
        is_tensor = isinstance(value, torch.Tensor)
        options = {
            name: self._argument(each, module, path)
            for name, each in node.kwargs.items()
            if name not in STORAGE
        }
        return Node(
            node.name,
            operation_of(node.target),
            [self._argument(each, module, path) for each in node.args],
            options,
            _module_path(node),
            _source(node),
            [None if _symbols(size) else int(size) for size in value.shape] if is_tensor else None,
            _dtype(value.dtype) if is_tensor else None,
        )

    def _argument(self, given: Any, module: torch.fx.GraphModule, path: str) -> Any:
        if isinstance(given, torch.fx.Node):
            if given.op == "get_attr":
                name = f"{path}{given.target}"
                if name not in self.blocks:
                    self.blocks[name] = Block([], [], [])  # listed before those that it calls
                    body = getattr(module, str(given.target))
                    self.blocks[name] = self.block(body, f"{name}/")
                return {"block": name}
            known = self._named.get(given.name)
            return {"value": given.name} if known is None else {"tensor": known}
        if isinstance(given, list | tuple):
            return [self._argument(each, module, path) for each in given]
        if isinstance(given, torch.dtype):
            return {"dtype": _dtype(given)}
        if isinstance(given, float):
            return neutral.as_number(given)
        if given is None or isinstance(given, STORED):
            return None
        if isinstance(given, bool | int | str):
            return given
        raise ValueError(f"`module` must not pass {given!r} to an operation.")


def operation_of(target: Any) -> str:
    """Return the name of an operation: "conv1d", "add.Tensor", "onepass.recurrent", "py.mul"."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removeprefix("aten.").removesuffix(".default")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target.name())
    return f"py.{target.__name__}"


def _module_path(node: torch.fx.Node) -> str:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = re.sub(r"@\d+", "", stack[-1]) if stack else ""
    return path.removeprefix("module").removeprefix(".") if path[:1] != "_" else ""


def _source(node: torch.fx.Node) -> str:
    folders = str(Path(torch.__file__).parent), str(Path(__file__).parent)
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [each for each in found if not each[0].startswith(folders)]
    if not own:
        return ""
    path, line = own[-1]
    return f"{'/'.join(Path(path).parts[-3:])}:{line}"
