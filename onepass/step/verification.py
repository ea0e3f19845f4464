"""Verify the law of a causal network, and that a derived step computes what the network does.

Whether a network is causal is a property of its graph. Rounding is not: in bfloat16 a product has
another value in another batch, and a recurrent layer amplifies it. Every operation of the graph,
loops included, is executed on float64 numbers and on copies of the weights; where an operation has
no float64 kernel, 16-bit numbers become float32, and otherwise everything remains as it is.

A graph shows which rows an operation reads, not whether their values matter; an operation without a
rule shows nothing. So outputs are compared. A head of zeros, a gate of zero or an untrained mask
hides what a network reads; random weights reveal it.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # functions by name have no public interface

from onepass.networks.conditions import is_at_rate, random_tensor, shape_at, specs_at
from onepass.networks.trainable import Weights, weights_among, without_copies
from onepass.step.analysis import horizon_of
from onepass.step.program import LENGTHS, LONG, StepProgram
from onepass.step.replay import (
    Prepared,
    captures_by_name,
    entries,
    execute_prepared,
    operations_for,
    prepare_operation,
    run_op,
    schedule,
)
from onepass.step.streams import NotCausalError, UnsupportedNetworkError
from onepass.step.tracing import Traces, dependent, random_arguments, spec_of_length, specs_of

ERRORS = (ValueError, TypeError, tf.errors.OpError)
HALVES = (tf.float16, tf.bfloat16)


class Precision(NamedTuple):
    """Floating-point types in which a graph is computed, and how far its outputs are rounded."""

    types: Mapping[tf.DType, tf.DType]
    relative: float  # the largest rounding of an output, relative to the output
    of_channel: float  # the largest rounding of an output, relative to the largest in its channel
    unit: float  # the distance between 1 and the next number


DOUBLE = Precision(
    dict.fromkeys((*HALVES, tf.float32), tf.float64) | {tf.complex64: tf.complex128},
    relative=1e-6,
    of_channel=1e-12,
    unit=2.0**-52,
)
SINGLE = Precision(dict.fromkeys(HALVES, tf.float32), 1e-3, 1e-5, 2.0**-23)
UNCHANGED = Precision({}, 5e-2, 5e-2, 2.0**-7)


class WideCalls:
    """A network computed from its graph in the widest floating-point types that it can take.

    Variables that are converted, or that the network assigns to, are copied once; assignments
    change the copies. `weights`, by the `id` of a handle, replace variables' own values. All
    weights change at random by the relative size `shake`, to measure how rounding grows.
    """

    def __init__(
        self,
        call: Callable[..., tf.Tensor],
        weights: Mapping[int, Any] | None = None,
        precisions: Sequence[Precision] = (DOUBLE, SINGLE, UNCHANGED),
        shake: float = 0.0,
    ) -> None:
        self._call = call if isinstance(call, Traces) else Traces(call)
        self._weights, self._precisions = dict(weights or {}), list(precisions)
        self._shake, self._generator = shake, np.random.default_rng(0)
        self._begin()

    def _begin(self) -> None:
        self._outside: dict[int, tuple[Any, Any]] = {}  # by `id`: the original and its copy
        self._prepared: dict[tf.Graph, dict[str, Prepared]] = {}
        self._functions = _Functions(self.precision.types)

    @property
    def precision(self) -> Precision:
        """The types of the calls; known after the first call."""
        return self._precisions[0]

    def __call__(self, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the network's output for arguments, in the types of `precision`."""
        graph = self.graph(arguments)
        while True:
            try:
                return self._output(graph, arguments)
            except ERRORS:
                if len(self._precisions) == 1:
                    raise
                del self._precisions[0]
                self._begin()

    def graph(self, arguments: Sequence[tf.Tensor]) -> tf.Graph:
        """Return the network's graph for arguments."""
        return self._call.of(specs_of(arguments)).graph

    def _output(self, graph: tf.Graph, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
        output = graph.outputs[0]
        found = dict(zip((x.name for x in graph.inputs), arguments, strict=False)).get(output.name)
        for op, made in self.operations(graph, arguments):
            if op is output.op:
                found = made[output.value_index]
        return self._wide(found)

    def operations(
        self, graph: tf.Graph, arguments: Sequence[tf.Tensor]
    ) -> Iterator[tuple[tf.Operation, list[tf.Tensor]]]:
        """Yield the operations that compute the first output, in order, with their values."""
        assigns = any(op.type.startswith("Assign") for op in graph.get_operations())
        known = {name: self._copy(x, assigns) for name, x in captures_by_name(graph).items()}
        inputs = (tensor.name for tensor in graph.inputs[: len(arguments)])
        known |= zip(inputs, map(self._wide, arguments), strict=True)
        for op, names, outputs, last in schedule(graph.outputs[:1], known, operations_for, True):
            made = run_op(op, [known[name] for name in names], execute=self._execute_wide)
            known.update(zip(outputs, made, strict=True))
            yield op, made
            for name in last:
                del known[name]

    def shake_weights(self) -> "WideCalls":
        """Return the network with weights that are changed by a unit in the last place."""
        found = WideCalls(self._call, self._weights, self._precisions, self.precision.unit)
        found._prepared, found._functions = self._prepared, self._functions
        return found

    def shake(self, values: tf.Tensor) -> tf.Tensor:
        """Return floats with random changes of the relative size `shake`; other values as given."""
        if not self._shake or not values.dtype.is_floating:
            return values
        scales = np.array([1 - self._shake, 1 + self._shake], values.dtype.as_numpy_dtype)
        signs = self._generator.integers(0, 2, values.shape.as_list(), np.int8)
        return values * tf.constant(scales[signs])

    def _wide(self, values: tf.Tensor) -> tf.Tensor:
        wide = self.precision.types.get(values.dtype)
        return values if wide is None else tf.cast(values, wide)

    def _copy(self, outside: Any, assigns: bool) -> Any:
        if id(outside) not in self._outside:
            self._outside[id(outside)] = outside, self._copy_wide(outside, assigns)
        copy = self._outside[id(outside)][1]
        return copy.handle if isinstance(copy, tf.Variable) else copy

    def _copy_wide(self, outside: Any, assigns: bool) -> Any:
        if outside.dtype != tf.resource:
            return self.shake(self._wide(outside))
        dtype = variable_dtype(outside)
        if dtype is None:  # not a variable
            return outside
        given = self._weights.get(id(outside))
        is_same = given is None and not (dtype.is_floating and self._shake)
        if is_same and not assigns and dtype not in self.precision.types:
            return outside
        if given is None:
            given = tf.raw_ops.ReadVariableOp(resource=outside, dtype=dtype)
        wide = self.precision.types.get(dtype, dtype)
        return tf.Variable(self.shake(tf.cast(given, wide)), trainable=False)

    def _execute_wide(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        known = self._prepared.setdefault(op.graph, {})
        if op.name not in known:
            node = type(op.node_def)()
            node.CopyFrom(op.node_def)
            self._functions.widen(node)
            dtype = op.outputs[0].dtype if op.outputs else None
            wide = self.precision.types.get(dtype, dtype)
            known[op.name] = prepare_operation(node, len(op.outputs), wide)
        return execute_prepared(known[op.name], inputs)


class _Functions:
    """Copies of functions that operations call, such as a loop's body, in wide types."""

    def __init__(self, types: Mapping[tf.DType, tf.DType]) -> None:
        self._types = {x.as_datatype_enum: wide.as_datatype_enum for x, wide in types.items()}
        self._names: dict[str, str] = {}
        self._suffix = f"_wide_{id(self)}"
        weakref.finalize(self, _remove_functions, self._names)

    def widen(self, node: Any) -> None:
        for name in [name for name in node.attr if name[0] == "_"]:
            del node.attr[name]
        if not self._types:
            return
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "type":
                value.type = self._types.get(value.type, value.type)
            elif kind == "func":
                value.func.name = self._function(value.func.name)
            elif kind == "tensor" and value.tensor.dtype in self._types:
                wide = tf.as_dtype(self._types[value.tensor.dtype])
                values = tf.make_ndarray(value.tensor).astype(wide.as_numpy_dtype)
                value.tensor.CopyFrom(tf.make_tensor_proto(values, wide))
            elif kind == "list":
                value.list.type[:] = [self._types.get(x, x) for x in value.list.type]
                for each in value.list.func:
                    each.name = self._function(each.name)

    def _function(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        self._names[name] = name + self._suffix
        found = context.context().get_function_def(name)
        copy = type(found)()
        copy.CopyFrom(found)
        copy.signature.name = self._names[name]
        copy.attr.clear()
        copy.arg_attr.clear()
        for argument in (*copy.signature.input_arg, *copy.signature.output_arg):
            argument.type = self._types.get(argument.type, argument.type)
        for node in copy.node_def:
            self.widen(node)
        context.context().add_function_def(copy)
        return self._names[name]


def _remove_functions(names: Mapping[str, str]) -> None:
    for name in filter(context.context().has_function, names.values()):
        context.context().remove_function(name)


def variable_dtype(handle: tf.Tensor) -> tf.DType | None:
    """Return the type of the variable that a handle refers to; None if it refers to none."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


TALL = 4  # a matrix with this many times more rows than columns is taken to be an embedding
MANY_WEIGHTS = 20_000_000  # copies of more weights in float64 would take too much memory
LARGE = 1 << 16  # numbers, which are drawn in float32 if that is their type
DEFAULT_SYMBOLS = 256


def with_random_weights(
    call: Callable[..., tf.Tensor], seed: int, example: Sequence[tf.Tensor]
) -> WideCalls:
    """Return a network with random weights; frozen variables, such as masks, keep their values.

    Assignments within a call, such as of a masked kernel to itself, change the random weights.
    """
    call = call if isinstance(call, Traces) else Traces(call)
    generator, weights = np.random.default_rng(seed), weights_of(call, specs_of(example))
    drawn = {
        id(variable.handle): _values(generator, variable)
        for variable in weights.trained
        if variable.dtype.is_floating
    }
    return WideCalls(call, drawn, precisions_for([*weights.trained, *weights.frozen]))


def precisions_for(variables: Sequence[tf.Variable]) -> tuple[Precision, ...]:
    """Return the types in which to compute a network that reads given variables."""
    is_large = parameter_count(variables) > MANY_WEIGHTS
    return (SINGLE, UNCHANGED) if is_large else (DOUBLE, SINGLE, UNCHANGED)


def weights_of(call: Traces, specs: Sequence[tf.TensorSpec]) -> Weights:
    """Return the variables that a network reads for arguments of given shapes."""
    return weights_among(call, without_copies(call.variables(specs)))


def _values(generator: np.random.Generator, variable: tf.Variable) -> tf.Tensor:
    shape = variable.shape.as_list()
    if len(shape) < 2:
        values = generator.uniform(0.5, 1.5, shape)
    else:
        fan_in = int(np.prod(shape[:-1]))
        rows = shape[-1] if len(shape) == 2 and shape[0] > TALL * shape[1] else fan_in
        single = variable.dtype.size <= tf.float32.size and np.prod(shape) > LARGE
        values = generator.standard_normal(shape, np.float32 if single else np.float64)
        values /= np.sqrt(max(rows, 1))
    made = tf.constant(values, variable.dtype)
    constraint = getattr(variable, "constraint", None)
    return made if constraint is None else tf.cast(constraint(made), variable.dtype)


def symbol_count(graph: tf.Graph, unknown: int = DEFAULT_SYMBOLS) -> int:
    """Return the number of symbols in the smallest embedding or one-hot encoding of the input."""
    reads = {tensor.op for tensor in graph.inputs[:1]} | set(dependent(graph, [0]))
    sizes = []
    for op in operations_for(graph.outputs):
        if op.type in ("GatherV2", "ResourceGather") and op.inputs[1].op in reads:
            sizes.append(entries(op))
        elif op.type == "OneHot" and op.inputs[0].op in reads:
            sizes.append(op.outputs[0].shape[-1])
    known = [size for size in sizes if size]
    return min(known, default=unknown)


def parameter_count(variables: Sequence[tf.Variable]) -> int:
    """Return the total number of entries of the variables."""
    return sum(int(np.prod(variable.shape.as_list())) for variable in variables)


class RandomInputs:
    """A source of random arguments for a network, two rows each, of at most `symbols` symbols."""

    def __init__(
        self,
        call: Traces,
        specs: Sequence[tf.TensorSpec],
        seed: int,
        symbols: int | None,
        sizes: Sequence[int],
    ) -> None:
        self._specs, self._generator = list(specs), np.random.default_rng(seed)
        self._symbols = 2  # every network of symbols accepts 0 and 1
        if specs[0].dtype.is_integer:
            rows, end = 2 if len(sizes) > 1 else 1, 1 + len(sizes)
            example = [tf.TensorSpec([rows, *sizes, *specs[0].shape[end:]], specs[0].dtype)]
            example += specs_at(specs[1:], rows, sizes)
            self._symbols = min(symbols or 1 << 20, symbol_count(call.of(example).graph))

    def __call__(self, length: int) -> list[tf.Tensor]:
        """Return arguments of `length` steps."""
        counts = [self._symbols, *[2] * (len(self._specs) - 1)]
        shapes = [shape_at(spec, 2, [length]) for spec in self._specs]
        return [
            random_tensor(self._generator, shape, spec.dtype, symbols)
            for shape, spec, symbols in zip(shapes, self._specs, counts, strict=True)
        ]

    def images(self, height: int, width: int) -> tf.Tensor:
        """Return two images."""
        spec = self._specs[0]
        shape = [2, height, width, spec.shape[-1]]
        return random_tensor(self._generator, shape, spec.dtype, self._symbols)


AHEAD, LENGTH, ROWS = "looks ahead", "depends on the length", "mixes the rows of the batch"
# Rounding errors are smaller than this many times the effect of changing all weights by a unit in
# the last place.
AMPLIFIED = 1000.0
MOST_PHASES = 64  # the largest number of times at which changes of the inputs begin


class Fault(NamedTuple):
    """Two calls whose outputs must be equal in a causal network, but are not."""

    text: str
    kind: str = ""  # what a layer does that is at fault, `AHEAD`, `LENGTH` or `ROWS`
    first: Sequence[tf.Tensor] = ()
    other: Sequence[tf.Tensor] = ()
    row: int = 0  # index of the row in the first call that equals row 0 in the second
    times: int = 0  # the number of first time steps, or pixels, whose outputs must be equal


class Argument(NamedTuple):
    """An argument's properties: has it a time axis, and must outputs not look ahead in it?"""

    is_timed: bool
    is_causal: bool


CAUSAL = Argument(is_timed=True, is_causal=True)


class Probe:
    """Comparison of a network's outputs for two rows of random arguments, and for others.

    `whole` is the outputs for each row alone, [rows, time, ...].
    """

    def __init__(
        self,
        network: WideCalls,
        first: Sequence[tf.Tensor],
        other: Sequence[tf.Tensor],
        kinds: Sequence[Argument],
        period: int = 1,
    ) -> None:
        self._network, self._period = network, period
        self._first, self._other, self._kinds = list(first), list(other), list(kinds)
        self._length = first[0].shape[1]
        self.whole = self._rows(self._length)
        self._known: tf.Tensor | None = None

    def fault(self, both: Sequence[int], single: Sequence[int] = ()) -> Fault | None:
        """Return how outputs for `both` rows, or a `single` one, violate the law, or None."""
        found = self._looks_ahead()
        if found:
            return found
        if any(kind.is_timed and not kind.is_causal for kind in self._kinds):
            both, single = [self._length], []  # outputs may look ahead in an argument
        for length in both:
            outputs = self._network(self._cut(slice(None), length))
            if self._has_changed(self.whole, outputs, length):
                rows = self._rows(length)
                if length == self._length or self._has_changed(rows, outputs, length):
                    return self._mixes_rows(rows, outputs, length)
                return self._of_length(length)
        for length in single:
            outputs = self._network(self._cut(slice(1), length))
            if self._has_changed(self.whole[:1], outputs, length):
                return self._of_length(length)
        return None

    def _mixes_rows(self, rows: tf.Tensor, outputs: tf.Tensor, length: int) -> Fault:
        text = "the outputs of a row depend on the other rows of the batch"
        row = 0 if self._has_changed(rows[:1], outputs[:1], length) else 1
        alone = self._cut(slice(row, row + 1), length)
        return Fault(text, ROWS, self._cut(slice(None), length), alone, row, length)

    def _of_length(self, length: int) -> Fault:
        text = "the first outputs change with the length of the input"
        first, other = (self._cut(slice(1), n) for n in (self._length, length))
        return Fault(text, LENGTH, first, other, times=length)

    def _rows(self, length: int) -> tf.Tensor:
        slices = (slice(row, row + 1) for row in range(self._first[0].shape[0]))
        return tf.concat([self._network(self._cut(each, length)) for each in slices], 0)

    def _cut(self, which: slice, length: int) -> list[tf.Tensor]:
        pairs = zip(self._first, self._kinds, strict=True)
        return [x[which, :length] if kind.is_timed else x[which] for x, kind in pairs]

    def _looks_ahead(self) -> Fault | None:
        found, ahead, length = None, 0, self._length
        times = [1, length // 3, length // 2, length - 1]
        if self._period > 1:  # a change may begin at any time within a period
            phases = np.unique(np.linspace(0, self._period - 1, MOST_PHASES).astype(int))
            begin = max(1, length // 2 - self._period)
            times += [begin + int(phase) for phase in phases if begin + phase < length]
        for number, time in enumerate(times):
            row = slice(number % 2, number % 2 + 1)
            changed = [
                tf.concat([x[row, :time], y[row, time:]], 1) if kind == CAUSAL else x[row]
                for x, y, kind in zip(self._first, self._other, self._kinds, strict=True)
            ]
            outputs = self._network(changed)[:, :time]
            rows = self._exceeds(self.whole[row, :time], outputs).any((0, 2))
            if rows.any() and time - int(np.argmax(rows)) > ahead:
                ahead = time - int(np.argmax(rows))
                before = [x[row] for x in self._first]
                text = f"output t depends on input t + {ahead}"
                found = Fault(text, AHEAD, before, changed, times=time)
        return found

    def _has_changed(self, whole: tf.Tensor, outputs: tf.Tensor, length: int) -> bool:
        if outputs.shape[1] != length:
            return True
        return bool(self._exceeds(whole[:, :length], outputs).any())

    def _exceeds(self, first: tf.Tensor, second: tf.Tensor) -> np.ndarray:
        exceeds = exceeding(first, second, self._network.precision)
        if not exceeds.any():
            return exceeds
        rounding = self._rounding()[:, : exceeds.shape[1]]
        return exceeding(first, second, self._network.precision, rounding)

    def _rounding(self) -> tf.Tensor:
        """Return the outputs' rounding [1, time, values], which recurrence may amplify."""
        if self._known is None:
            shaken, before = self._network.shake_weights(), self._cut(slice(1), self._length)
            outputs = shaken(list(map(shaken.shake, before)))
            change = flat(distances(self.whole[:1], outputs)).numpy()
            change[~np.isfinite(change)] = 0.0
            self._known = tf.constant(np.maximum.accumulate(AMPLIFIED * change, 1))
        return self._known


def exceeding(
    first: tf.Tensor, second: tf.Tensor, precision: Precision, rounding: tf.Tensor | float = 0.0
) -> np.ndarray:
    """Return where outputs differ by more than `rounding`, bool [rows, time, values]."""
    first, second = flat(first), flat(second)
    if bool(tf.reduce_all(first == second)):  # most are: equal shapes are rounded alike
        return np.zeros([*first.shape[:2], 1], bool)
    size = tf.where(tf.math.is_finite(first), tf.abs(first), 0)
    channel = tf.reduce_max(size, (0, 1), keepdims=True) if size.shape[1] else size
    allowed = precision.relative * size + precision.of_channel * channel + rounding
    return (distances(first, second) > allowed).numpy()


def differs(first: tf.Tensor, second: tf.Tensor, precision: Precision) -> bool:
    """Return whether outputs [rows, time, ...] differ by more than rounding."""
    return bool(exceeding(first, second, precision).any())


def differs_by_call(call: Callable[..., tf.Tensor], arguments: Sequence[tf.Tensor]) -> bool:
    """Return whether two calls on the same arguments differ, since the network draws numbers."""
    return differs(call(*arguments), call(*arguments), SINGLE)


def distances(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return how far numbers are apart: 0 between equal infinities or NaNs, never NaN."""
    equal = (first == second) | (tf.math.is_nan(first) & tf.math.is_nan(second))
    distance = tf.where(equal, tf.zeros_like(first), tf.abs(first - second))
    return tf.where(tf.math.is_nan(distance), tf.constant(np.inf, distance.dtype), distance)


def flat(outputs: tf.Tensor) -> tf.Tensor:
    """Return outputs [rows, time, ...] as float [rows, time, values]."""
    dtype = tf.float64 if outputs.dtype in (tf.float64, tf.int32, tf.int64) else tf.float32
    rest = int(np.prod(outputs.shape[2:], dtype=np.int64))
    return tf.reshape(tf.cast(outputs, dtype), [*outputs.shape[:2], rest])


def rows_changed(whole: tf.Tensor, changed: tf.Tensor, time: int, precision: Precision) -> int:
    """Return how many steps before `time`, where inputs change, outputs change first; 0: none."""
    rows = exceeding(whole[:, :time], changed[:, :time], precision).any((0, 2))
    return time - int(np.argmax(rows)) if rows.any() else 0


FARTHEST = 1 << 14  # largest number of time steps of a call
BEYOND = 30  # number of time steps of a call beyond a lookahead
BOTH_ROWS = 600  # largest number of time steps for which both rows of a batch are called together
DRAWS = "two calls on the same input differ: the network draws random numbers of its own"


def observed_fault(function: Callable, specs: Sequence[tf.TensorSpec], ahead: int = 0) -> str:
    """Return how a network's outputs violate causality; "" if no violation is found.

    The network is called with its own weights and with random ones, on the first lengths that it
    takes. Only its first argument must not affect earlier outputs.
    """
    traces = function if isinstance(function, Traces) else Traces(function)
    shorter = (pair[0] for pair in LENGTHS)
    for length in (min(ahead + BEYOND, FARTHEST), *shorter) if ahead else shorter:
        try:
            if traces.of(specs_at(specs, 1, [length])).graph.outputs[0].shape[1] != length:
                return ""  # its rows are no time steps
            fault = find_fault(traces, specs, specs[:1], 0, length, length + 1)[1]
            return fault.text if fault else ""
        except (ValueError, TypeError, LookupError, tf.errors.OpError):
            continue  # the network takes no such length
    return ""


def find_fault(
    traces: Traces,
    specs: Sequence[tf.TensorSpec],
    causal: Sequence[tf.TensorSpec],
    seed: int,
    length: int,
    longest: int,
    symbols: int | None = None,
    period: int = 1,
) -> tuple[WideCalls, Fault | None]:
    """Return a network whose outputs violate the law of a causal one, and how; else None.

    Those of `specs` that are `causal` are of arguments that must not affect outputs at earlier time
    steps. Calls with random weights have the length `longest`; there are none up to `length`.
    """
    draw = RandomInputs(traces, specs, seed, symbols, [length])
    first, other = draw(length), draw(length)
    kinds = [Argument(is_at_rate(spec), any(spec is each for each in causal)) for spec in specs]
    weights = weights_of(traces, specs_at(specs, 1, [length]))
    own = WideCalls(traces, precisions=precisions_for([*weights.trained, *weights.frozen]))
    probe = Probe(own, first, other, kinds, period)
    # The network itself, since a graph does not draw what Python code draws.
    alone = [x[:1] for x in first]
    seen = traces(*alone)
    traced = tf.cast(probe.whole[:1], seen.dtype)
    if differs(seen, traced, SINGLE) and differs_by_call(traces, alone):
        return own, Fault(DRAWS, first=first)
    network, fault, is_compared = own, probe.fault([]), False
    if not fault and longest > length:
        network = with_random_weights(traces, seed, alone)
        try:
            both = BOTH_ROWS if longest > BOTH_ROWS else longest // 2
            many = Probe(network, draw(longest), draw(longest), kinds, period)
            fault = many.fault([both], [length])
            is_compared = bool(np.isfinite(many.whole).all())
        except ERRORS:  # that length is impossible
            fault = Probe(network, first, other, kinds, period).fault([length // 2])
    if not fault and not is_compared:  # a trace more, which random weights make needless
        network, fault = own, probe.fault([length // 2])
    return network, fault


def verify(stepped: Any, program: StepProgram, specs: list[tf.TensorSpec]) -> None:
    """Raise NotCausalError or UnsupportedNetworkError unless steps give the network's outputs."""
    length, temporal = program.lengths[0], [is_at_rate(spec) for spec in specs]
    arguments = random_arguments(
        [tf.TensorSpec([1, *spec_of_length(spec, length).shape[1:]], spec.dtype) for spec in specs]
    )
    program.check_operations(LONG)
    layer = program.looks_ahead(arguments)
    if layer:
        raise NotCausalError(f"{layer} attends to later time steps")
    fixed = [x for x, has_time in zip(arguments, temporal, strict=True) if not has_time]
    timed = [x for x, has_time in zip(arguments, temporal, strict=True) if has_time]
    state, outputs, start = stepped.first_state(1, length, fixed), [], 0
    one = stepped.traced_step([argument[:, :1] for argument in timed], state)
    for rows in (1, 1, length - 3, 1):  # single time steps, after one step and after many
        given = [argument[:, start : start + rows] for argument in timed]
        many = rows > 1
        output, state = program.step(given, state, horizon_of(state)) if many else one(given, state)
        outputs.append(output)
        start += rows
    error = relative_errors(tf.concat(outputs, 1), program.whole(arguments)).max(initial=0.0)
    if error > program.tolerance:
        raise UnsupportedNetworkError(
            f"the step derived from the graph differs from the network by {error:.2g} of its"
            " outputs' size; please report the network"
        )


def relative_errors(outputs: tf.Tensor, whole: tf.Tensor) -> np.ndarray:
    """Return how far finite numbers differ, relative to the second's size; inf if others do."""
    found, expected = (tf.cast(x, tf.float64).numpy() for x in (outputs, whole))
    both = np.isfinite(found) & np.isfinite(expected)
    if not np.array_equal(found[~both], expected[~both], equal_nan=True):
        return np.array([np.inf])
    found, expected = found[both], expected[both]
    return np.abs(found - expected) / (1.0 + np.abs(expected).max(initial=0.0))
