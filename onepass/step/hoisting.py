"""Compute what depends on conditions alone once, and cut it off where it meets the sequence.

A network with conditions at a frame rate becomes two functions. One maps the conditions to the cut
tensors, for all frames at once, so it may look ahead in them. The other maps the sequence and the
cut tensors, which are conditions with a time axis, to the parameters; a step is derived from it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.rules import must_be
from onepass.networks.any_length import length_of, pad_timed
from onepass.networks.conditions import Frames, Specs, is_at_rate, specs_at
from onepass.networks.network import one_line_errors
from onepass.step.replay import (
    captures_by_name,
    move_axis,
    operations_for,
    run_graph,
    static_value,
    types_of,
    values_by_name,
)
from onepass.step.streams import UnsupportedNetworkError
from onepass.step.tracing import SHAPES, Traces, dependent

ROWS = 2, 3  # of the two calls that are compared, to see which axes grow
MORE = 2  # frames of the second call beyond those of the first
# Frames of the first call: the fewest that the network takes, such as one that reflects frames.
FEWEST = (3, 4, 5, 8, 16, 32)
# Operations with one row for each row of their input, if both have an axis of time.
ROWWISE = types_of("""
    Add AddV2 BatchMatMulV2 BiasAdd Cast Conv2D Einsum ExpandDims Identity MatMul Mul Neg Relu
    Reshape Sigmoid Split SplitV Squeeze StridedSlice Sub Tanh Transpose
""")


@dataclasses.dataclass(frozen=True)
class Cut:
    """A tensor that depends on conditions alone and is read by what depends on the sequence."""

    name: str
    place: int  # index of its operation among those that depend on frames and not on the sequence
    output: int
    axis: int | None  # its axis of time; None: it is the same at every time step

    def in_graph(self, operations: Sequence[tf.Operation]) -> tf.Tensor:
        """Return the tensor in a graph, given its operations that depend on frames alone."""
        return operations[self.place].outputs[self.output]


class InFrames:
    """A network at frame rates, called on sequences whose last frame may be partial."""

    def __init__(self, call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec]) -> None:
        self._call, self._specs = call, list(specs)
        self._first = next(n for n, spec in enumerate(specs) if isinstance(spec, Frames))

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the outputs, as long as the first argument."""
        length, count = (length_of(arguments[n]) for n in (0, self._first))
        spec: Any = self._specs[self._first]
        outputs = self._call(*pad_timed(arguments, self._specs, (count - spec.extra) * spec.hop))
        return outputs[:, :length]


class Hoisted:
    """A network in two functions: of the conditions alone, and of the sequence and their values.

    It takes `fewest` frames or more. `conditions` are specs of what the function of the sequence
    reads, by name: cut tensors, and the conditions that are not at a frame rate.
    """

    def __init__(
        self, call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec], names: Sequence[str]
    ) -> None:
        self._call, self._specs, self._names = Traces(call), list(specs), list(names)
        self._frames = [n for n, spec in enumerate(specs) if isinstance(spec, Frames)]
        rates = {spec.hop for spec in specs if isinstance(spec, Frames)}
        if len(rates) > 1:
            raise ValueError(must_be("hop", "the same for all conditions", sorted(rates)))
        (self.hop,) = rates
        given = dict(zip(names, specs[1:], strict=True))
        self.conditions: Specs = {n: x for n, x in given.items() if not isinstance(x, Frames)}
        with one_line_errors(specs):
            self.fewest, graphs = self._smallest()
        both = [self._on_frames(graph) for graph in graphs]
        if [op.type for op in both[0]] != [op.type for op in both[1]]:
            raise UnsupportedNetworkError(
                "the network has different operations for another number of frames"
            )
        self._types = [op.type for op in both[0]]
        lengths = [frames * self.hop for frames in (self.fewest, self.fewest + MORE)]
        self.cuts = _Boundary(graphs[0], both, lengths).cuts()
        for cut in self.cuts:
            tensor = cut.in_graph(both[0])
            rest = [size for n, size in enumerate(tensor.shape) if n not in (0, cut.axis)]
            shape = [None, *([] if cut.axis is None else [None]), *rest]
            self.conditions[cut.name] = tf.TensorSpec(shape, tensor.dtype)

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the arguments of the function of the sequence, the elements first."""
        return [self._specs[0], *self.conditions.values()]

    def once(self, condition: Mapping[str, tf.Tensor], length: int) -> dict[str, tf.Tensor]:
        """Return what the function of the sequence reads for conditions [batch, ...], by name."""
        values = [condition[name] for name in self._names]
        with one_line_errors(self._specs):
            graph = self._graph(values[0].shape[0], length, [x.shape for x in values])
        zeros = tf.zeros(graph.inputs[0].shape, graph.inputs[0].dtype)
        known = values_by_name(graph, pad_timed([zeros, *values], self._specs, zeros.shape[1]))
        operations = self._operations_on_frames(graph)
        with one_line_errors(self._specs):
            found = run_graph(known, [cut.in_graph(operations) for cut in self.cuts])
        made = {n: x for n, x in condition.items() if n in self.conditions}
        for cut, value in zip(self.cuts, found, strict=True):
            value = move_axis(value, cut.axis or 1, 1)  # as a condition, [batch, time, ...]
            made[cut.name] = value if cut.axis is None else value[:, :length]
        return {name: made[name] for name in self.conditions}

    def __call__(self, inputs: tf.Tensor, *conditions: tf.Tensor) -> tf.Tensor:
        """Return the parameters for a sequence and `conditions` in order, of any length."""
        given = dict(zip(self.conditions, conditions, strict=True))
        rows, length = inputs.shape[:2]
        fixed = {n: x for n, x in given.items() if not is_at_rate(self.conditions[n])}
        shapes = [tuple(fixed[name].shape) if name in fixed else None for name in self._names]
        try:
            graph = self._graph(rows, length, shapes)
            operations = self._operations_on_frames(graph)
        except (ValueError, TypeError, tf.errors.OpError):
            if length >= self.fewest * self.hop:
                raise
            graph = self._graph(rows, self.fewest * self.hop, shapes)
            operations = self._operations_on_frames(graph)
        padded = pad_timed([inputs, *conditions], self.specs, graph.inputs[0].shape[1])
        given = dict(zip(self.conditions, padded[1:], strict=True))
        values = captures_by_name(graph)
        for name, tensor in zip(["", *self._names], graph.inputs, strict=False):
            if not name or name in given:
                values[tensor.name] = given[name] if name else padded[0]
        for cut in self.cuts:
            value = move_axis(given[cut.name], 1, cut.axis or 1)
            values[cut.in_graph(operations).name] = value
        for op in operations_for(graph.outputs, values):
            if op.type in SHAPES and all(static_value(x) is not None for x in op.outputs):
                values |= {x.name: tf.constant(static_value(x), x.dtype) for x in op.outputs}
        return run_graph(values, graph.outputs, scope="")[0][:, :length]

    def _smallest(self) -> tuple[int, list[tf.Graph]]:
        """Return the fewest frames of `FEWEST` that the network takes, and its graphs for them."""
        faults: list[Exception] = []
        for frames in FEWEST:
            pairs = zip(ROWS, (frames, frames + MORE), strict=True)
            try:
                graphs = [self._graph(rows, count * self.hop) for rows, count in pairs]
                # Whether there are enough frames to reflect, only a call shows.
                zeros = [tf.zeros(x.shape, x.dtype) for x in graphs[0].inputs[: len(self._specs)]]
                found = [x for op in self._on_frames(graphs[0]) for x in op.outputs]
                run_graph(values_by_name(graphs[0], zeros), found)
                return frames, graphs
            except (ValueError, TypeError, tf.errors.OpError) as error:
                faults.append(error)
        raise faults[0]

    def _graph(
        self, rows: int, length: int, shapes: Sequence[Sequence[int] | None] = ()
    ) -> tf.Graph:
        whole = -(-length // self.hop) * self.hop
        specs = specs_at(self._specs, rows, [whole])
        for n, shape in enumerate(shapes, 1):
            if shape is not None and not is_at_rate(self._specs[n]):
                specs[n] = tf.TensorSpec(shape, specs[n].dtype)
        with tf.init_scope():
            return self._call.of(specs).graph

    def _on_frames(self, graph: tf.Graph) -> list[tf.Operation]:
        moving = {graph.inputs[0].op, *dependent(graph, [0])}
        inputs = [graph.inputs[n].op for n in self._frames]
        return [op for op in (*inputs, *dependent(graph, self._frames)) if op not in moving]

    def _operations_on_frames(self, graph: tf.Graph) -> list[tf.Operation]:
        operations = self._on_frames(graph)
        if [op.type for op in operations] != self._types:
            raise UnsupportedNetworkError(
                f"the network has different operations for {graph.inputs[0].shape[1]} time steps"
            )
        return operations


def hoist_frames(
    call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec], names: Sequence[str]
) -> Hoisted | None:
    """Return a network in two functions; None if no condition is at a frame rate."""
    reads_frames = any(isinstance(spec, Frames) for spec in specs)
    return Hoisted(call, specs, names) if reads_frames else None


class _Boundary:
    """Where what depends on frames alone, in two graphs, meets what depends on the sequence."""

    def __init__(
        self, graph: tf.Graph, operations: Sequence[Sequence[tf.Operation]], lengths: Sequence[int]
    ) -> None:
        self._graph, self._longer, self._lengths = graph, operations[1], lengths
        self._indices = {op: n for n, op in enumerate(operations[0])}

    def cuts(self) -> list[Cut]:
        waiting = [
            x
            for op in operations_for(self._graph.outputs)
            if op not in self._indices and op.type not in SHAPES
            for x in op.inputs
            if x.op in self._indices
        ]
        waiting += [x for x in self._graph.outputs if x.op in self._indices]
        found: dict[str, tf.Tensor] = {}
        seen: set[str] = set()
        while waiting:
            tensor = waiting.pop(0)
            if tensor.name in seen:
                continue
            seen.add(tensor.name)
            if self._axes(tensor) is not None:
                found[tensor.name] = tensor
            elif tensor.op.type == "Placeholder":
                raise UnsupportedNetworkError(
                    f"a condition at a frame rate meets the sequence with {tensor.shape[1]} frames,"
                    f" where there are {self._lengths[0]} time steps; what reads any number of"
                    " entries is a onepass.Memory"
                )
            else:
                waiting += self._before(tensor)
        cuts = []
        order = sorted(self._narrow_tensors(found), key=lambda x: self._indices[x.op])
        for number, tensor in enumerate(order):
            (axis,) = self._axes(tensor) or (None,)
            place = self._indices[tensor.op]
            cuts.append(Cut(f"frames/{number}", place, tensor.value_index, axis))
        return cuts

    def _counterpart(self, tensor: tf.Tensor) -> tf.Tensor:
        return self._longer[self._indices[tensor.op]].outputs[tensor.value_index]

    def _axes(self, tensor: tf.Tensor) -> list[int] | None:
        """Return the axes of time of a tensor; None if it is no condition."""
        longer = self._counterpart(tensor)
        if tensor.dtype in (tf.variant, tf.resource) or not tensor.shape.rank:
            return None
        if None in (*tensor.shape, *longer.shape):
            return None
        pairs = list(zip(tensor.shape, longer.shape, strict=True))
        grows = [n for n, (one, other) in enumerate(pairs) if one != other]
        is_time = [pairs[n] == tuple(self._lengths) for n in grows[1:]]
        is_condition = grows[:1] == [0] and pairs[0] == ROWS
        return grows[1:] if is_condition and all(is_time) and len(is_time) < 2 else None

    def _is_flat(self, tensor: tf.Tensor) -> bool:
        shapes = [(x.shape or [None])[0] for x in (tensor, self._counterpart(tensor))]
        return shapes == [rows * n for rows, n in zip(ROWS, self._lengths, strict=True)]

    def _before(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        return [x for x in tensor.op.inputs if x.op in self._indices]

    def _narrow_tensors(self, kept: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Return tensors of which fewer values are stored, by cutting before operations on rows.

        Each layer of a vocoder may have a projection of its own of the same upsampled frames. Its
        rows are several times as wide, and are computed step by step.
        """
        ways: dict[str, list[tf.Tensor]] = {}
        for name, tensor in kept.items():
            ways[name] = [tensor]
            while (earlier := self._of_same_rows(tensor)) is not None:
                tensor = earlier
                ways[name] += [] if self._is_flat(tensor) else [tensor]
        while True:
            best, group, most = None, [], 0.0
            for way in [ways[name] for name in kept]:
                for earlier in way[1:]:
                    users = [n for n in kept if any(x is earlier for x in ways[n])]
                    gain = sum(map(_width, (kept[n] for n in users))) - _width(earlier)
                    if gain > most:
                        best, group, most = earlier, users, gain
            if best is None:
                return list(kept.values())
            kept = {n: x for n, x in kept.items() if n not in group} | {best.name: best}
            ways[best.name] = [best]

    def _of_same_rows(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Return the tensor from whose rows each row of `tensor` is computed; None without one."""
        op, sources = tensor.op, self._before(tensor)
        if op.type not in ROWWISE or len(sources) != 1:
            return None
        both = tensor, sources[0]
        if not all(self._is_flat(x) or self._axes(x) for x in both):
            return None
        times = [None if self._is_flat(x) else (self._axes(x) or [0])[0] for x in both]
        if _sums_over(op, sources[0], times[1] or 0):
            return None
        if op.type == "Conv2D" and list(op.inputs[1].shape[:2]) != [1, 1]:
            return None
        if op.type == "Reshape" and any(time not in (None, 1) for time in times):
            return None  # it may mix times
        strides = static_value(op.inputs[3]) if op.type == "StridedSlice" else None
        return None if strides is not None and any(strides != 1) else sources[0]


def _sums_over(op: tf.Operation, source: tf.Tensor, axis: int) -> bool:
    place = [x is source for x in op.inputs].index(True)
    if op.type == "Einsum":
        terms, _, result = op.get_attr("equation").decode().partition("->")
        term = terms.split(",")[place]
        return "." in term or term[axis] not in result
    if op.type in ("MatMul", "BatchMatMulV2"):
        kind = "transpose" if op.type == "MatMul" else "adj"
        turned = op.get_attr(f"{kind}_{'ab'[place] if op.type == 'MatMul' else 'xy'[place]}")
        return axis == source.shape.rank - (1 if turned == bool(place) else 2)
    return False


def _width(tensor: tf.Tensor) -> float:
    return math.prod(tensor.shape) if tensor.shape.rank else 1
