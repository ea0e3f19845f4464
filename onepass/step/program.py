"""A step's program for one batch size, from a network's graphs for two lengths, and its caches."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.networks.conditions import is_at_rate
from onepass.step.analysis import EXTENT, POSITION, Analysis, Horizon, State, too_long
from onepass.step.loops import Rolled
from onepass.step.replay import (
    captures_by_name,
    fits,
    forget,
    move_axis,
    operations_for,
    run_graph,
    values_by_name,
)
from onepass.step.streams import Call, Keys, Part, Stream, Table, UnsupportedNetworkError
from onepass.step.tracing import (
    Traces,
    first_difference,
    match_operations,
    rate_of,
    spec_of_length,
    trace,
)


def read_delays(
    ring: tf.Tensor | None, rows: tf.Tensor, position: tf.Tensor, delays: Sequence[int], axis: int
) -> list[tf.Tensor]:
    """Return the rows at each of several delays, of rows the first of which is at `position`.

    The rows have time at `axis`; the ring of those before, [size, ...], is None without delays.
    """
    if ring is None:
        return [rows] * len(delays)
    size = ring.shape[0]
    if rows.shape[axis] == 1:
        return [
            rows if delay == 0 else _row(ring, position + (size - delay), axis) for delay in delays
        ]
    # Slot `position` modulo size contains the oldest row; starting there, rows are in order.
    past = tf.gather(ring, tf.math.floormod(position + tf.range(size), size))
    whole = tf.concat([past, move_axis(rows, axis, 0)], 0)
    starts = [size - delay for delay in delays]
    return [move_axis(whole[start : start + rows.shape[axis]], 0, axis) for start in starts]


def push_rows(ring: tf.Tensor, rows: tf.Tensor, position: tf.Tensor, axis: int) -> tf.Tensor:
    """Return the ring after writing `rows`, the first of which belongs to time step `position`."""
    size, count = ring.shape[0], rows.shape[axis]
    if count == 1:
        slot = tf.math.floormod(position, size)
        row = tf.squeeze(rows, axis)[tf.newaxis]
        return tf.tensor_scatter_nd_update(ring, tf.reshape(slot, [1, 1]), row)
    past = tf.gather(ring, tf.math.floormod(position + tf.range(size), size))
    last = tf.concat([past, move_axis(rows, axis, 0)], 0)[-size:]
    # `last` starts at time step position + count - size; each row goes to slot time modulo size.
    return tf.gather(last, tf.math.floormod(tf.range(size) - position - count, size))


def _row(ring: tf.Tensor, time: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.expand_dims(ring[tf.math.floormod(time, ring.shape[0])], axis)


def write_cache(cache: tf.Tensor, rows: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Return a cache [horizon, ...] with `rows` [n, ...] written from time step `position` on."""
    count, size = rows.shape[0], cache.shape[0]
    if count == 1:
        return tf.tensor_scatter_nd_update(cache, tf.reshape(position, [1, 1]), rows)
    shape = [size, *[1] * (cache.shape.rank - 1)]
    times = tf.reshape(tf.range(size), shape)
    padded = tf.pad(rows[:size], [[0, max(size - count, 0)], *[[0, 0]] * (cache.shape.rank - 1)])
    is_new = (times >= position) & (times < position + count)
    return tf.where(is_new, tf.roll(padded, position, 0), cache)


def write_keyed(
    cache: tf.Tensor, rows: tf.Tensor, position: tf.Tensor, keys: Keys, axis: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Write rows to a cache; return the keys' rows in the order of `keys.times`, and the cache.

    The cache is [horizon, ...], or [window, ...] with time t in slot t modulo the window. Of the
    rows, with time at `axis`, the first belongs to time step `position`.
    """
    if not keys.is_window:
        new = write_cache(cache, move_axis(rows, axis, 0), position)
        return move_axis(new, 0, axis), new
    new, window = push_rows(cache, rows, position, axis), cache.shape[0]
    if rows.shape[axis] == 1:
        return move_axis(new, 0, axis), new
    # With several rows, the first queries read keys that the new ring has already overwritten.
    past = tf.gather(cache, tf.math.floormod(keys.times[: window - 1], window))
    return move_axis(tf.concat([past, move_axis(rows, axis, 0)], 0), 0, axis), new


def as_ring(cache: tf.Tensor, position: tf.Tensor, window: int) -> tf.Tensor:
    """Return the last `window` rows before `position` of a cache [horizon, ...], as a ring."""
    # For each slot, the latest time step before `position` stored in it; negative if there is none.
    times = position - 1 - tf.math.floormod(position - 1 - tf.range(window), window)
    rows = tf.gather(cache, tf.maximum(times, 0))
    shape = [window, *[1] * (cache.shape.rank - 1)]
    return tf.where(tf.reshape(times >= 0, shape), rows, tf.zeros([], cache.dtype))


class Execution:
    """One execution of a step, in the current graph."""

    def __init__(
        self,
        analysis: Analysis,
        horizon: Horizon,
        arguments: Sequence[tf.Tensor],
        state: State,
        phase: int = 0,
    ) -> None:
        self._analysis, self._horizon, self._state = analysis, horizon, state
        self._phase = phase
        self._output = analysis.graphs[0].outputs[0].name
        self._position = state[POSITION]
        self._rows = arguments[0].shape[1]
        timed = [analysis.inputs[index] for index in analysis.timed]
        self._values = captures_by_name(analysis.graphs[0])
        self._values |= zip(timed, arguments, strict=True)
        self._values |= {name: state[f"fixed/{name}"] for name in analysis.fixed}
        self._call = Call(self._rows, self._position, state, self._keys)
        self._known_keys: dict[str, Keys] = {}
        self._read_keys: dict[str, tf.Tensor] = {}

    def run(self) -> tuple[tf.Tensor, State]:
        """Return the parameters of the next n time steps and the state after them."""
        analysis, values = self._analysis, self._values
        for op, part in analysis.parts:
            if not is_due(analysis.clocks[op.name], self._phase):
                continue
            inputs = [self._input(op, part, i) for i in range(len(analysis.sources(op)))]
            outputs = part.run(inputs, self._call) if part.run else []
            values.update(zip((x.name for x in op.outputs), outputs, strict=True))
        pushed = {}
        for name in analysis.memory:
            if name in values:
                stream = analysis.stream(name)
                at = self._row_number(stream)
                pushed[name] = push_rows(self._state[name], values[name], at, stream.axis)
        result = self._delay_rows(self._output, (analysis.lag,))[0]
        changed = {**pushed, **self._call.changed, POSITION: self._position + self._rows}
        return result, {**self._state, **changed}

    def _input(self, op: tf.Operation, part: Part, index: int) -> list:
        name = self._analysis.sources(op)[index].name
        if index in part.tables:
            keys = functools.partial(self._keys, part.group)
            return [self._horizon.read(op, index, self._state, keys, self._rows)]
        if index in part.keys:
            return [self._whole(name, part.group, part.delays[index][0])]
        if name in self._values or self._analysis.root(name) in self._analysis.memory:
            return self._delay_rows(name, part.delays.get(index, (0,)))
        return [None]

    def _keys(self, group: str) -> Keys:
        root = self._analysis.groups.root(group)
        if root not in self._known_keys:
            self._known_keys[root] = self._horizon.keys(group, self._rows, self._position)
        return self._known_keys[root]

    def _whole(self, name: str, group: str, delay: int) -> tf.Tensor:
        key = self._horizon.keys_name(name, self._analysis.groups.root(group))
        if key not in self._read_keys:
            axis = self._analysis.stream(name).axis
            rows = self._delay_rows(name, (delay,))[0]
            self._read_keys[key], self._call.changed[key] = write_keyed(
                self._state[key], rows, self._position, self._keys(group), axis
            )
        return self._read_keys[key]

    def _delay_rows(self, name: str, delays: tuple[int, ...]) -> list[tf.Tensor]:
        if delays == (0,) and name in self._values:
            return [self._values[name]]
        root = self._analysis.root(name)
        stream: Stream = self._analysis.stream(root)
        past: Any = self._state.get(root)
        number = self._row_number(stream)
        if root in self._values:
            return read_delays(past, self._values[root], number, delays, stream.axis)
        return [_row(past, number + past.shape[0] - 1 - each, stream.axis) for each in delays]

    def _row_number(self, stream: Stream) -> tf.Tensor:
        """Return the number of rows of a stream before the present time step, from time 0 on."""
        if stream.period == 1:
            return self._position
        return (self._position + (stream.period - 1 - stream.phase)) // stream.period


def is_due(clock: tuple[int, int], phase: int) -> bool:
    """Return whether an operation with a clock runs at a time step; `phase` is it modulo all."""
    return phase % clock[0] == clock[1]


# Pairs of lengths that are unlikely to equal another size in a network. TensorFlow uses a different
# operation for zeros above 1,000 elements, which may lie between the first two lengths. The last
# pairs are for networks with few positions.
LENGTHS: tuple[tuple[int, int], ...] = ((61, 94), (131, 197), (29, 41), (11, 13), (17, 19))
LONG = 1031  # a longer length, for which the operations must be the same


class StepProgram:
    """The operations of a step for one batch size, and its initial states; see `incremental`.

    `lengths` are those at which a program for another batch size was found.
    """

    def __init__(
        self,
        function: Callable,
        specs: Sequence[tf.TensorSpec],
        names: frozenset[str] = frozenset(),
        lengths: tuple[int, int] | None = None,
    ) -> None:
        self._function, self._specs = function, list(specs)
        self.rate = rate_of(function)
        self._pairs = LENGTHS if lengths is None else (lengths, *LENGTHS)
        self.lengths, self._traced, is_alike = self._trace()
        if not is_alike:
            before = self._function, self.lengths, self._traced
            self._function = Rolled(self._function)
            self.lengths, self._traced, is_alike = self._trace()
            if not is_alike:
                self._function, self.lengths, self._traced = before
        self.graph = self._traced[0].graph
        graphs = [traced.graph for traced in self._traced]
        temporal = [is_at_rate(spec) for spec in specs]
        self._analysis = Analysis(graphs, self.lengths, temporal, names)
        forget(graphs[1])  # cached masks of the longer graph may be large
        clocks = set(self._analysis.clocks.values())
        self.period = math.lcm(*(period for period, _ in clocks))
        # The first time step of each set of operations that a step runs, and its number by phase.
        due = [frozenset(x for x in clocks if is_due(x, n)) for n in range(self.period)]
        self._firsts = [due.index(each) for each in dict.fromkeys(due)]
        self.which = [list(dict.fromkeys(due)).index(each) for each in due]
        self._horizons: dict[int, Horizon] = {}
        self._none = None if self.has_horizon else Horizon(self._analysis, 0, None)

    def _trace(self) -> tuple[tuple[int, int], list, bool]:
        """Return two lengths, if possible with equal operations, both traces, and if they are."""
        found, failure, pairs = None, None, self._pairs
        long = [spec_of_length(spec, LONG) for spec in self._specs]
        if isinstance(self._function, Traces) and self._function.has(long) and self.rate.hop == 1:
            pairs = ((LENGTHS[0][0], LONG), *pairs)  # LONG is already traced
        for one, other in map(self.rate.lengths, pairs):
            lengths = one, other
            try:
                traced = [trace(self._function, self._specs, length) for length in lengths]
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                failure = failure or error  # a table may have fewer positions
                continue
            if not all(fits(each.graph) for each in traced):
                continue
            short, long = (operations_for(each.graph.outputs) for each in traced)
            if first_difference(short, long) is None:
                return lengths, traced, True
            found = found or (lengths, traced, False)
        if found is None:
            raise failure or ValueError("the network could not be traced.")
        return found

    @property
    def has_horizon(self) -> bool:
        """True if a state has a horizon, because of attention or a table of positions."""
        return any(part.tables or part.keys for _, part in self._analysis.parts)

    @property
    def tolerance(self) -> float:
        """Largest allowed rounding difference, relative to the magnitude of the outputs."""
        used = {x.dtype for op in self.graph.get_operations() for x in op.outputs}
        if used & {tf.bfloat16, tf.float16}:
            return 0.1
        return 1e-3 if tf.float32 in used else 1e-6

    def horizon(self, length: int) -> Horizon:
        """Return the `Horizon` for a length, cached; raise ValueError if a table is too short."""
        if self._none is not None:
            return self._none
        if length not in self._horizons:
            graph = None
            if any(part.tables for _, part in self._analysis.parts):
                self._check_positions(length)
                graph = trace(self._function, self._specs, length).graph
            self._horizons[length] = Horizon(self._analysis, length, graph)
        return self._horizons[length]

    def check_operations(self, length: int) -> None:
        """Raise UnsupportedNetworkError if a trace for `length` has different operations."""
        (length,) = self.rate.lengths([length])
        try:
            graph = trace(self._function, self._specs, length).graph
        except (ValueError, tf.errors.OpError):
            return
        if match_operations(self.graph, graph, self._analysis.timed) is None:
            raise UnsupportedNetworkError(
                f"the network has different operations for {length} time steps; no step can be"
                " derived from it"
            )

    def _check_positions(self, length: int) -> None:
        for op in operations_for(self.graph.outputs):
            if op.type in ("Slice", "StridedSlice") and op.inputs[0].shape.rank:
                kind = self._analysis.kinds.get(op.outputs[0].name)
                size = op.inputs[0].shape[0]
                grows = isinstance(kind, Table) and kind.axes[0] == 0
                if grows and self.lengths[0] < size < length:
                    raise too_long(self._analysis.layer(op), size, length)

    def whole(self, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the network's output for arguments of `lengths[0]` time steps."""
        return self._values(arguments, [self.graph.outputs[0]])[0]

    def _values(self, arguments: Sequence[tf.Tensor], fetches: list[tf.Tensor]) -> list[tf.Tensor]:
        return run_graph(values_by_name(self.graph, arguments), fetches)

    def looks_ahead(self, arguments: Sequence[tf.Tensor]) -> str:
        """Return the name of a layer that attends to later time steps; "" if there is none."""
        for weights in self._analysis.groups.weights:
            values = self._values(arguments, [self._analysis.tensors[weights.tensor]])[0].numpy()
            rows = np.abs(np.moveaxis(values, [weights.query, weights.key], [0, 1]))
            later = rows[np.triu_indices(rows.shape[0], 1, rows.shape[1])]
            if np.any(later > 1e-6 * rows.max(initial=0.0)):
                return weights.layer
        return ""

    def initial_state(self, length: int = 0, fixed: Sequence[tf.Tensor] = ()) -> State:
        """Return the state before the first time step, computed with the current weights."""
        analysis, horizon = self._analysis, self.horizon(length)
        state: State = {POSITION: tf.constant(0, tf.int32)}
        starts = [part.start for _, part in analysis.parts if part.start]
        fetches = [analysis.tensors[name] for name in analysis.memory]
        fetches += analysis.fixed.values()
        for start in starts:
            fetches += start.needs
        tensors = {x.name: x for x in fetches}
        values = dict(zip(tensors, self._zeros(list(tensors.values()), fixed), strict=True))
        for name, rows in analysis.memory.items():
            state[name] = self._past(name, values[name], rows)
        for start in starts:
            given = [values[x.name] for x in start.needs]
            state.update(start.states(given, lambda x: self._zeros([x], fixed)[0]))
        state |= {f"fixed/{name}": values[name] for name in analysis.fixed}
        state |= {f"shape/{i}": tf.zeros([*x.shape, 0]) for i, x in enumerate(fixed)}
        for (name, key), size in horizon.names.items():
            tensor, axis = analysis.tensors[name], analysis.stream(name).axis
            rest = (x for i, x in enumerate(tensor.shape) if i != axis)
            state[key] = tf.zeros([size, *rest], tensor.dtype)
        if self.has_horizon:
            state[EXTENT] = self._extent(length)
        return state | horizon.tables(fixed)

    def _extent(self, length: int) -> tf.Tensor:
        return tf.zeros([self._specs[0].shape[0], length, 0])

    def _zeros(self, fetches: list[tf.Tensor], fixed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        inputs = self.graph.inputs[: len(self._analysis.inputs)]
        values = {tensor.name: tf.zeros(tensor.shape, tensor.dtype) for tensor in inputs}
        names = [x.name for i, x in enumerate(inputs) if i not in self._analysis.timed]
        values |= zip(names, fixed, strict=True)
        return run_graph(captures_by_name(self.graph) | values, fetches) if fetches else []

    def _past(self, name: str, whole: tf.Tensor, rows: int) -> tf.Tensor:
        kind = self._analysis.stream(name)
        shape = [size for i, size in enumerate(whole.shape) if i != kind.axis]
        offset = min(max(kind.offset or 0, 0), rows)
        first = (kind.offset or 0) - offset
        past = tf.gather(whole, tf.range(first, first + offset), axis=kind.axis)
        missing = tf.zeros([rows - offset, *shape], whole.dtype)
        return tf.concat([missing, move_axis(past, kind.axis, 0)], 0)

    def lengthen_state(
        self, state: State, before: int, after: int, fixed: Sequence[tf.Tensor]
    ) -> State:
        """Return a state of horizon `before` for the longer horizon `after`, both in time steps."""
        old, new = self.horizon(before), self.horizon(after)
        kept = {k: x for k, x in state.items() if not k.startswith(("table/", "keys/"))}
        for (name, key), size in new.names.items():
            previous, rows = next((k, n) for (stream, k), n in old.names.items() if stream == name)
            if rows == size:
                kept[key] = state[previous]
            elif previous == key:
                cache = state[previous]
                kept[key] = tf.pad(cache, [[0, size - rows], *[[0, 0]] * (cache.shape.rank - 1)])
            elif rows == before:  # with the longer horizon, the last keys suffice
                kept[key] = as_ring(state[previous], state[POSITION], size)
            else:
                raise UnsupportedNetworkError(
                    f"the network reads {size} keys beyond {before} time steps, {rows} before"
                )
        return kept | new.tables(fixed) | {EXTENT: self._extent(after)}

    def step(
        self, arguments: Sequence[tf.Tensor], state: State, length: int = 0
    ) -> tuple[tf.Tensor, State]:
        """Return the next time steps' parameters and the new state of horizon `length`."""
        if self.period > 1 and arguments[0].shape[1] > 1:
            return self._step_in_turn(arguments, state, length)

        def run(phase: int) -> tuple[tf.Tensor, State]:
            return Execution(self._analysis, self.horizon(length), arguments, state, phase).run()

        if self.period == 1:
            return run(0)
        which = tf.gather(tf.constant(self.which), state[POSITION] % self.period)
        return tf.switch_case(which, [functools.partial(run, phase) for phase in self._firsts])

    def _step_in_turn(
        self, arguments: Sequence[tf.Tensor], state: State, length: int
    ) -> tuple[tf.Tensor, State]:
        """Return what `step` does, one time step after another."""
        count = arguments[0].shape[1]
        first, changed = self.step([x[:, :1] for x in arguments], state, length)
        made = tf.TensorArray(first.dtype, count, element_shape=first.shape).write(0, first)

        def body(number: tf.Tensor, state: State, made: tf.TensorArray) -> tuple:
            each = [tf.gather(x, [number], axis=1) for x in arguments]
            row, state = self.step(each, state, length)
            return number + 1, state, made.write(number, row)

        _, state, made = tf.while_loop(lambda number, *_: number < count, body, (1, changed, made))
        return move_axis(tf.squeeze(made.stack(), 2), 0, 1), state
