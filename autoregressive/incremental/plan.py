"""The step of a network for one batch size, planned from its graph at two lengths."""

from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from autoregressive.incremental import convolution, loops, rings, rowwise, shifts
from autoregressive.incremental.layer_names import layer_of
from autoregressive.incremental.replay import CALLS, captured, inlined, needed, run_graph
from autoregressive.incremental.sizes import same, static_value
from autoregressive.incremental.streams import (
    Call,
    Kind,
    Node,
    NotCausalError,
    Part,
    Refused,
    Stream,
    UnsupportedNetworkError,
)

# Pairs of lengths that are unlikely to equal another size of a network. TensorFlow writes zeros as
# another operation from 1,000 elements on, which may lie between the lengths of the first pair.
LENGTHS = ((61, 94), (131, 197))
POSITION = "position"
State = dict[str, tf.Tensor]

RULES: dict[str, Callable[[Node], Part]] = {
    **dict.fromkeys(rowwise.ELEMENTWISE | rowwise.OVER_CHANNELS, rowwise.rowwise),
    **dict.fromkeys(convolution.CONVOLUTIONS, convolution.convolution),
    **dict.fromkeys(loops.LOOPS, loops.loop),
    **dict.fromkeys(("Pad", "PadV2"), shifts.pad),
    **dict.fromkeys(("GatherV2", "ResourceGather"), rowwise.gather),
    "BroadcastTo": rowwise.broadcast,
    "ConcatV2": shifts.concatenation,
    "MirrorPad": shifts.mirror_pad,
    "Reshape": rowwise.reshape,
    "Slice": shifts.slices,
    "Squeeze": rowwise.squeeze,
    "StridedSlice": shifts.strided_slices,
    "TensorListFromTensor": loops.list_of_rows,
    "TensorListStack": loops.stacked_list,
}
# Operations whose values depend only on the shapes of their inputs.
SHAPES = ("Shape", "ShapeN", "Size", "Rank")


class Plan:
    """The operations of a step, and the past rows that it keeps.

    Args:
      function: from `inputs`, and a condition if there is one, to the parameters.
      specs: of its arguments, with the batch size and without the length: [batch, None, ...].
      names: of the network's layers, for errors.

    Raises:
      NotCausalError: see `incremental`.
      UnsupportedNetworkError: see `incremental`.
    """

    def __init__(
        self,
        function: Callable,
        specs: Sequence[tf.TensorSpec],
        names: frozenset[str] = frozenset(),
    ):
        self._names = names
        for self.lengths in LENGTHS:
            self._traced = [_trace(function, specs, length) for length in self.lengths]
            self.graphs = [traced.graph for traced in self._traced]
            if _first_difference(*self._needed()) is None:
                break
        self.inputs = [tensor.name for tensor in self.graphs[0].inputs[: len(specs)]]
        self.kinds: dict[str, Kind] = dict.fromkeys(self.inputs, Stream(1, 0, 0))
        self.parts: list[tuple[tf.Operation, Part]] = []
        self.memory: dict[str, int] = {}
        self.roots: dict[str, str] = {}
        for op, longer in self._pairs():
            self._plan(op, longer)
        self._check_output()
        self._remember()

    def _root(self, name: str) -> str:
        """Return the tensor with the same rows as another, so that they are kept once."""
        return self.roots.get(name, name)

    def _stream(self, name: str) -> Stream:
        kind = self.kinds[name]
        if not isinstance(kind, Stream):
            raise TypeError(f"{name} must have a time axis, it is {kind}.")
        return kind

    def _layer(self, op: tf.Operation) -> str:
        return layer_of(op.name, self._names)

    def _needed(self) -> list[list[tf.Operation]]:
        """Return the operations of both graphs that the output needs."""
        return [needed(graph.outputs) for graph in self.graphs]

    def _pairs(self) -> Iterator[tuple[tf.Operation, tf.Operation]]:
        """Yield the operations of `_needed`, in pairs."""
        short, long = self._needed()
        first = _first_difference(short, long)
        if first is not None:
            raise UnsupportedNetworkError(
                f"{self._layer(first)} has different operations for a longer input, like"
                " a Python loop over time; no step can be derived from it"
            )
        inside: set[tf.Operation] = set()
        pairs = list(zip(short, long, strict=True))
        for op, _ in pairs:
            whole = convolution.Dilated.ending_at(op) if op.type == "BatchToSpaceND" else None
            inside.update({whole.space, *whole.between} if whole else ())
        yield from (pair for pair in pairs if pair[0] not in inside)

    def _plan(self, op: tf.Operation, longer: tf.Operation) -> None:
        if op.type == "Placeholder":
            return
        tensors, rule = self._sources(op), RULES.get(op.type)
        kinds = [self.kinds.get(tensor.name) for tensor in tensors]
        node = Node((op, longer), self.lengths, kinds, self._layer)
        grows = any(node.moving(i) for i in range(len(op.outputs)))
        if "Random" in op.type or op.type == "Multinomial":
            raise node.refused("draws random numbers of its own; call it without dropout or noise")
        if op.type == "BatchToSpaceND" and any(kinds):
            short, long = (convolution.Dilated.ending_at(x) for x in (op, longer))
            if short is None or long is None:
                raise node.unsupported("it does not end a dilated convolution")
            part = convolution.dilated_convolution(node, short, long)
        elif not node.streams() and op.type not in loops.LOOPS:
            part = rowwise.still(node) if grows else self._constant(node)
        elif op.type in SHAPES:
            part = self._constant(node)
        else:
            part = rule(node) if rule else _no_rule(node)
        self.kinds.update(zip((x.name for x in op.outputs), part.kinds, strict=True))
        if part.run is not None:  # a tensor without a value is refused where it is read
            self.parts.append((op, part))
        if part.is_alias:
            self.roots[op.outputs[0].name] = self._root(tensors[0].name)
        for index, delays in part.delays.items():
            name = self._root(tensors[index].name)
            self.memory[name] = max(self.memory.get(name, 0), *delays)

    def _sources(self, op: tf.Operation) -> list[tf.Tensor]:
        """Return the tensors that an operation reads, treating a dilated convolution as one."""
        whole = convolution.Dilated.ending_at(op) if op.type == "BatchToSpaceND" else None
        return [whole.space.inputs[0], whole.inner.inputs[1]] if whole else list(op.inputs)

    def _constant(self, node: Node) -> Part:
        """Return the part of an operation that neither grows nor reads a time of the sequence."""
        outputs = node.op.outputs
        if not any(node.kinds) and node.type != "Const":
            return Part([None] * len(outputs), rowwise.replayed(node))
        short, long = (static_value(op.outputs[0]) for op in (node.op, node.longer))
        if same(short, long):
            return Part([None], lambda inputs, call: [tf.constant(short, outputs[0].dtype)])
        if node.type in rowwise.LIKE:
            return Part([None], lambda inputs, call: [rowwise.filled(node)])
        refused = [kind for kind in node.kinds if isinstance(kind, Refused)]
        refused += [Refused(f"{node.layer} depends on the length of its input")]
        return Part([refused[0]] * len(outputs), None)

    def _check_output(self) -> None:
        output = self.graphs[0].outputs[0]
        kind, layer = self.kinds.get(output.name), self._layer(output.op)
        if isinstance(kind, Refused):
            raise kind.error()
        if kind is None:
            raise NotCausalError("the output does not depend on the input")
        if kind.axis != 1 or kind.is_merged:
            raise UnsupportedNetworkError(
                f"{kind.merged_by or layer} gives the output another rate or order than [batch,"
                f" time, parameters]: for {self.lengths[0]} inputs it has shape {output.shape}"
            )
        offset, texts = kind.offset or 0, " and ".join(kind.ahead or (layer,))
        if output.shape[1] != self.lengths[0]:
            raise UnsupportedNetworkError(
                f"{texts}: the output must be as long as the input, for {self.lengths[0]} inputs it"
                f" has shape {output.shape}"
            )
        if offset < 0:
            raise NotCausalError(f"{texts}: output t depends on input t + {-offset}")
        if kind.end < -offset:
            raise NotCausalError(f"{texts}: the last outputs consist of padding")
        root = self._root(output.name)
        self.memory[root] = max(self.memory.get(root, 0), offset)
        self.lag = offset

    @property
    def tolerance(self) -> float:
        """Largest difference due to rounding, relative to the size of the outputs."""
        used = {x.dtype for op in self.graphs[0].get_operations() for x in op.outputs}
        if used & {tf.bfloat16, tf.float16}:
            return 0.1
        return 1e-3 if tf.float32 in used else 1e-6

    def _remember(self) -> None:
        """Keep only tensors with a past."""
        self.memory = {name: rows for name, rows in self.memory.items() if rows}
        self._tensors = {x.name: x for op in self.graphs[0].get_operations() for x in op.outputs}

    def whole(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the network's output for arguments of `lengths[0]` times."""
        graph = self.graphs[0]
        values = captured(graph) | dict(zip(self.inputs, arguments, strict=True))
        return tf.function(lambda: run_graph(values, graph.outputs)[0], autograph=False)()

    def initial_state(self) -> State:
        """Return the state before the first time: pads and start values from the weights now."""
        state: State = {POSITION: tf.constant(0, tf.int32)}
        looped = [(op, part) for op, part in self.parts if part.loop]
        fetches = [self._tensors[name] for name in self.memory]
        for op, _ in looped:
            fetches += list(op.inputs)
        tensors = {x.name: x for x in fetches}
        values = dict(zip(tensors, self._whole(list(tensors.values())), strict=True))
        for name, rows in self.memory.items():
            state[name] = self._past(name, values[name], rows)
        for op, part in looped:
            state.update(self._first_states(part, [values[x.name] for x in op.inputs], op))
        return state

    def _whole(self, fetches: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return tensors of a pass over zeros, whose rows before time 0 are constant."""
        graph = self.graphs[0]
        zeros = {
            tensor.name: tf.zeros(tensor.shape, tensor.dtype)
            for tensor in graph.inputs[: len(self.inputs)]
        }
        return run_graph(captured(graph) | zeros, fetches) if fetches else []

    def _past(self, name: str, whole: tf.Tensor, rows: int) -> tf.Tensor:
        kind = self._stream(name)
        shape = [size for i, size in enumerate(whole.shape) if i != kind.axis]
        offset = min(max(kind.offset or 0, 0), rows)
        first = (kind.offset or 0) - offset
        past = tf.gather(whole, tf.range(first, first + offset), axis=kind.axis)
        past = tf.transpose(
            past, [kind.axis, *(i for i in range(whole.shape.rank) if i != kind.axis)]
        )
        return tf.concat([tf.zeros([rows - offset, *shape], whole.dtype), past], 0)

    def _first_states(self, part: Part, variables: list[tf.Tensor], op: tf.Operation) -> State:
        body = part.loop
        states = [variables[index] for index in body.states]
        offset = self._stream(op.inputs[body.reads[0]].name).offset
        if offset:
            rows = [self._rows_of(op.inputs[index], offset) for index in body.reads]
            _, states = body.scan(variables, rows, states)
        return {body.key(i): state for i, state in zip(body.states, states, strict=True)}

    def _rows_of(self, rows: tf.Tensor, count: int) -> tf.Tensor:
        """Return the first rows of the tensor that a list was made from."""
        source = rows
        while source.op.type in ("Identity", "TensorListFromTensor"):
            source = source.op.inputs[0]
        return self._whole([source])[0][:count]

    def step(self, arguments: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
        """Return the parameters of the next times and the new state, in the current graph.

        Args:
          arguments: inputs [batch, n, ...], and the condition if there is one.
          state: from `initial_state` or a previous step.
        """
        rows = arguments[0].shape[1]
        call, position = Call(rows, state), state[POSITION]
        values = captured(self.graphs[0]) | dict(zip(self.inputs, arguments, strict=True))

        def past(name: str, delays: tuple[int, ...]) -> list[tf.Tensor]:
            if delays == (0,):
                return [values[name]]
            name = self._root(name)
            axis = self._stream(name).axis
            return rings.delayed(state.get(name), values[name], position, delays, axis)

        for op, part in self.parts:
            names = [tensor.name for tensor in self._sources(op)]
            inputs = [
                past(name, part.delays.get(i, (0,))) if name in values else [None]
                for i, name in enumerate(names)
            ]
            outputs = part.run(inputs, call) if part.run else []
            values.update(zip((x.name for x in op.outputs), outputs, strict=True))
        pushed = {
            name: rings.pushed(state[name], values[name], position, self._stream(name).axis)
            for name in self.memory
        }
        output = self.graphs[0].outputs[0].name
        result = past(output, (self.lag,))[0]
        return result, {**state, **pushed, **call.changed, POSITION: position + rows}


def _no_rule(node: Node) -> Part:
    node.refuse_kinds()
    raise node.unsupported("there is no rule for it")


def _first_difference(
    short: Sequence[tf.Operation], long: Sequence[tf.Operation]
) -> tf.Operation | None:
    """Return the first operation for the shorter length that differs from the longer one's."""
    for op, longer in zip(short, long, strict=False):
        if op.type != longer.type:
            return op
    return None if len(short) == len(long) else short[min(len(short), len(long)) - 1]


def _trace(function: Callable, specs: Sequence[tf.TensorSpec], length: int):
    """Return the function traced for one length, without calls of other functions."""
    sized = [tf.TensorSpec([spec.shape[0], length, *spec.shape[2:]], spec.dtype) for spec in specs]
    traced = tf.function(function, autograph=False).get_concrete_function(*sized)
    has_calls = any(op.type in CALLS for op in needed(traced.graph.outputs))
    return inlined(traced, sized) if has_calls else traced
