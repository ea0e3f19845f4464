"""Trace a network's graphs for given lengths, and find operations that depend on its inputs.

`tfp.math.scan_associative` halves the sequence again and again: for a length that is not known it
traces 48 levels, which takes a minute, and every known length has other operations. In order, it is
a loop with one state, which a step continues.
"""

import contextlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.networks.conditions import FIXED_ENTRIES, is_at_rate, random_tensor
from onepass.networks.trainable import graph_digest, in_order_of_reads, single_layers
from onepass.step.replay import CALLS, inline_calls, move_axis, operations_for

MODULE = "tensorflow_probability.python.math"
NAME = "scan_associative"


@contextlib.contextmanager
def scans_in_order(length: int | None) -> Iterator[None]:
    """Let associative scans of this length, or an unknown one, run in order inside the block."""
    module = sys.modules.get(MODULE)  # a network can only call it if it is imported
    halving = getattr(module, NAME, None)
    if module is None or halving is None:
        yield
        return

    def scan(*given: Any, **options: Any) -> Any:
        arguments = inspect.signature(halving).bind(*given, **options)
        arguments.apply_defaults()
        fn, elems, axis = (arguments.arguments[name] for name in ("fn", "elems", "axis"))
        first = tf.convert_to_tensor(tf.nest.flatten(elems)[0])
        if first.shape.rank is None or first.shape[axis] not in (None, length):
            return halving(*given, **options)
        return in_order(fn, elems, axis)

    setattr(module, NAME, scan)
    try:
        yield
    finally:
        setattr(module, NAME, halving)


def in_order(fn: Callable[[Any, Any], Any], elems: Any, axis: int) -> Any:
    """Return the scan of an associative function of two structures like `elems`, along `axis`."""
    flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(elems)]
    axes = [axis % each.shape.rank for each in flat]
    rows = [move_axis(each, at, 0) for each, at in zip(flat, axes, strict=True)]

    def pack_elements(values: list[tf.Tensor]) -> Any:
        one = [tf.expand_dims(x, at) for x, at in zip(values, axes, strict=True)]
        return tf.nest.pack_sequence_as(elems, one)

    def step(before: tuple, row: list[tf.Tensor]) -> tuple:
        has_begun, total = before
        made = tf.nest.flatten(fn(pack_elements(total), pack_elements(row)))
        made = [tf.squeeze(x, at) for x, at in zip(made, axes, strict=True)]
        pairs = zip(made, row, strict=True)
        return tf.ones_like(has_begun), [tf.where(has_begun, x, y) for x, y in pairs]

    # There is no neutral element: the first total is the first row.
    first = tf.constant(False), [tf.ones_like(each[0]) for each in rows]
    _, totals = tf.scan(step, rows, initializer=first)
    made = [move_axis(x, 0, at) for x, at in zip(totals, axes, strict=True)]
    for each, like in zip(made, flat, strict=True):
        each.set_shape(like.shape)
    return tf.nest.pack_sequence_as(elems, made)


def layer_names(network: Any) -> frozenset[str]:
    """Return the names of the Keras layers that a network contains, without its own."""
    layers = (each for each in single_layers(network) if each is not network)
    return frozenset(each.name for each in layers if hasattr(each, "name"))


def layer_of(operation: str, names: frozenset[str]) -> str:
    """Return the layer among `names` of an operation, such as "functional_1/conv1d_3_1/Pad".

    Without any, return the operation's scope, or its full name if it has no scope.
    """
    scopes = [scope for scope in operation.split("/") if scope not in CALLS]
    return ([*known_layers(scopes, names)] or ["/".join(scopes[:-1]) or operation])[-1]


def known_layers(scopes: Sequence[str], names: frozenset[str]) -> Iterator[str]:
    """Yield the layers among `names` that scopes of an operation belong to, outermost first."""
    for scope in scopes:
        # Keras opens a layer's scope twice, and appends a number to the second one.
        yield from [x for x in (re.sub(r"_\d+$", "", scope), scope) if x in names][:1]


# Operations whose values depend only on the shapes of their inputs.
SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
KEPT = 8  # largest number of cached graphs


class Traces:
    """A network as a function, with a cached graph for each combination of argument shapes."""

    def __init__(self, function: Callable) -> None:
        self.function = function
        self._graphs: dict[tuple, Any] = {}
        self._variables: dict[tuple, list[tf.Variable]] = {}
        self._last: tuple[Sequence[tf.TensorSpec], tuple[str, Any]] | None = None

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Call the network."""
        if arguments[0].shape.rank < 2 or arguments[0].shape[1] is not None:
            return self.function(*arguments)
        with scans_in_order(None):
            return self.function(*arguments)

    def of(self, specs: Sequence[tf.TensorSpec]) -> tf.types.experimental.ConcreteFunction:
        """Return the function traced for `specs`, with the functions that it calls inlined."""
        key = _key(specs)
        if key not in self._graphs:
            if len(self._graphs) >= KEPT:
                del self._graphs[next(iter(self._graphs))]
            first = _trace_function(self.function, specs)
            self._variables[key] = in_order_of_reads(first)
            self._graphs[key] = _without_calls(first, specs)
        return self._graphs[key]

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[tf.Variable]:
        """Return the variables that the function reads for arguments of these specs."""
        self.of(specs)
        return self._variables[_key(specs)]

    def has(self, specs: Sequence[tf.TensorSpec]) -> bool:
        """Return whether there is a cached graph for arguments of these specs."""
        return _key(specs) in self._graphs

    def remember(self) -> None:
        """Keep the digest of the graph for the largest arguments, for `is_as_remembered`."""
        if not self._graphs:
            return
        key = max(self._graphs, key=lambda key: math.prod(x or 1 for x in key[0][0]))
        specs = [tf.TensorSpec(shape, dtype) for shape, dtype in key]
        self._last = specs, graph_digest(self._graphs[key].graph)

    def is_as_remembered(self) -> bool:
        """Return whether a fresh trace, whatever the variables' values, is what `remember` kept."""
        if self._last is None:
            return True
        specs, (digest, _) = self._last
        try:
            fresh = graph_of(self.function, specs)
        except (ValueError, TypeError, tf.errors.OpError):
            return False
        return graph_digest(fresh.graph)[0] == digest

    def forget(self) -> None:
        """Drop all graphs, because the network may have changed."""
        self._graphs, self._variables = {}, {}


def random_arguments(specs: Sequence[tf.TensorSpec], seed: int = 0) -> list[tf.Tensor]:
    """Return random arguments: normal floats, and zeros and ones for integers."""
    generator = np.random.default_rng(seed)
    shapes = ([size or FIXED_ENTRIES for size in spec.shape] for spec in specs)
    pairs = zip(shapes, specs, strict=True)
    return [random_tensor(generator, shape, spec.dtype) for shape, spec in pairs]


def specs_of(arguments: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    """Return the specs of tensors."""
    return [tf.TensorSpec(each.shape, each.dtype) for each in arguments]


def _key(specs: Sequence[tf.TensorSpec]) -> tuple:
    return tuple((tuple(spec.shape), spec.dtype) for spec in specs)


def spec_of_length(spec: tf.TensorSpec, length: int) -> tf.TensorSpec:
    """Return the spec of an argument with `length` time steps."""
    if not is_at_rate(spec):
        return spec
    return tf.TensorSpec([spec.shape[0], length, *spec.shape[2:]], spec.dtype)


class Rate(NamedTuple):
    """Time steps in a frame that a network reads, 1 without frames; a number of frames it takes."""

    hop: int = 1
    fewest: int = 1

    def lengths(self, lengths: Sequence[int]) -> list[int]:
        """Return increasing lengths of whole frames, each at least the one given."""
        if self.hop == 1 and self.fewest == 1:
            return list(lengths)
        counts = [self.fewest - 1]
        for length in lengths:
            counts.append(max(counts[-1] + 1, -(-length // self.hop)))
        return [count * self.hop for count in counts[1:]]


def rate_of(function: Callable) -> Rate:
    """Return the rate of the frames that a network reads."""
    network = getattr(function, "function", function)
    return Rate(getattr(network, "hop", 1), getattr(network, "fewest", 1))


def trace(
    function: Callable, specs: Sequence[tf.TensorSpec], length: int
) -> tf.types.experimental.ConcreteFunction:
    """Return the function traced for one length, with the functions that it calls inlined."""
    return graph_of(function, [spec_of_length(spec, length) for spec in specs])


def graph_of(
    function: Callable, specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Return the function traced for `specs`, with the functions that it calls inlined."""
    if isinstance(function, Traces):
        return function.of(specs)
    return _without_calls(_trace_function(function, specs), specs)


def _trace_function(function: Callable, specs: Sequence[tf.TensorSpec]) -> Any:
    with scans_in_order(specs[0].shape[1]):
        return tf.function(function, autograph=False).get_concrete_function(*specs)


def _without_calls(traced: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    has_calls = any(op.type in CALLS for op in operations_for(traced.graph.outputs))
    return inline_calls(traced, specs) if has_calls else traced


def first_difference(
    short: Sequence[tf.Operation], long: Sequence[tf.Operation]
) -> tf.Operation | None:
    """Return the first operation whose type differs in `long`; else the last with a counterpart."""
    for op, longer in zip(short, long, strict=False):
        if op.type != longer.type:
            return op
    return None if len(short) == len(long) else short[min(len(short), len(long)) - 1]


def draws(op: tf.Operation) -> bool:
    """Return whether an operation draws random numbers, other than the same ones in every call."""
    if "Random" not in op.type and "Multinomial" not in op.type:
        return False
    if not op.type.startswith("Stateless"):
        return True
    seeds = operations_for(op.inputs)
    return any(each.type == "Placeholder" for each in seeds)  # a seed that may change


def dependent(graph: tf.Graph, arguments: Sequence[int]) -> list[tf.Operation]:
    """Return the operations, in order, that depend on `arguments`, by index, or are random."""
    inputs = {graph.inputs[index].op for index in arguments}
    found, operations = set(inputs), []
    for op in operations_for(graph.outputs):
        if op in inputs:
            continue
        reads = any(tensor.op in found for tensor in op.inputs)
        if draws(op) or (reads and op.type not in SHAPES):
            found.add(op)
            operations.append(op)
    return operations


def match_operations(
    first: tf.Graph, second: tf.Graph, arguments: Sequence[int]
) -> dict[tf.Operation, tf.Operation] | None:
    """Match the operations of two graphs that `dependent` returns; None if the graphs differ.

    Operations on constants may differ: TensorFlow folds some of them only for certain sizes.
    """
    ours, theirs = dependent(first, arguments), dependent(second, arguments)
    if first_difference(ours, theirs) is not None:
        return None
    return dict(zip(ours, theirs, strict=True))
