"""The functions of a model as one `tf.Module`, and the comparison of what was written with them.

A masked convolution may assign the masked kernel to the kernel, as in Keras' PixelCNN example. A
stored program must not change its weights, so a read after an assignment returns the assigned value
instead.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import (
    Distribution,
    cumulative_of,
    is_normal,
    normal_parameters,
    pixel_channels,
    table_of,
    with_density,
)
from onepass.model import Autoregressive
from onepass.networks.conditions import Frames, conditions_of, is_at_rate, plain
from onepass.networks.elements import Layout
from onepass.step.replay import CALLS, called_graph, captures_by_name, operations_for, run_op
from onepass.step.tracing import random_arguments, spec_of_length
from onepass.step.wide_floats import HALVES

ROWS = 2
COMPARED_LENGTHS = (5, 12)  # neither equal to the number of rows, nor to each other
SIDES = (8, 6)
# Largest difference by rounding, relative to the largest value, by the bytes of a number.
TOLERANCES = {2: 0.1, 4: 1e-3, 8: 1e-6}

Call = Callable[..., tf.Tensor]


def check_calls(
    live: Sequence[Call], stored: Sequence[Call], specs: Sequence[tf.TensorSpec], axes: int = 1
) -> None:
    """Raise UserError unless stored networks give the outputs of the live ones."""
    for one, other in zip(live, stored, strict=True):
        fault = first_fault(one, other, specs, axes)
        if fault:
            raise UserError(f"The model cannot be stored: read back, its network {fault}.")


def first_fault(live: Call, stored: Call, specs: Sequence[tf.TensorSpec], axes: int = 1) -> str:
    """Return how a stored network differs from the live one at some sizes; "" if it does not."""
    for arguments in _examples(specs, axes):
        try:
            expected = live(*arguments)
        except (ValueError, TypeError, IndexError, tf.errors.OpError):
            continue  # the network does not take this size
        try:
            found = stored(*arguments)
            fault = difference(expected, found)
            if fault and has_halves(_graph_of(stored, arguments)):
                fault = difference(expected, found, TOLERANCES[2])
        except (ValueError, TypeError, tf.errors.OpError) as error:
            fault = f"fails: {' '.join(str(error).split())[:200]}"
        if fault:
            return f"{fault} for inputs of the shape {arguments[0].shape.as_list()}"
    return ""


def difference(
    expected: Any, found: Any, tolerance: float | None = None, moved: float = 0.0
) -> str:
    """Return how tensors differ by more than rounding and a share `moved` of values; else ""."""
    expected, found = map(tf.convert_to_tensor, (expected, found))
    if expected.shape != found.shape:
        return f"has the shape {found.shape.as_list()} in place of {expected.shape.as_list()}"
    if tolerance is None:
        tolerance = TOLERANCES.get(expected.dtype.size, 0.0)
    one, other = (tf.cast(x, tf.float64).numpy() for x in (expected, found))
    is_number = np.isfinite(one)
    if not np.array_equal(one[~is_number], other[~is_number], equal_nan=True):
        return "is not finite elsewhere"
    most = np.abs(one[is_number]).max(initial=0.0)
    errors = np.abs(one[is_number] - other[is_number]) / (1.0 + most)
    if (errors > tolerance).sum() <= moved * errors.size:
        return ""
    return f"differs by {errors.max():.2g}"


def has_halves(graph: Any) -> bool:
    """Return whether a graph, a GraphDef, computes in a type of two bytes."""
    halves = {dtype.as_datatype_enum for dtype in HALVES}
    parts = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(
        value.type in halves for part in parts for node in part for value in node.attr.values()
    )


def _graph_of(call: Call, arguments: Sequence[tf.Tensor]) -> Any:
    @tf.function(autograph=False)
    def run(*given: tf.Tensor) -> tf.Tensor:
        return call(*given)

    return run.get_concrete_function(*arguments).graph.as_graph_def()


def _examples(specs: Sequence[tf.TensorSpec], axes: int) -> Iterator[list[tf.Tensor]]:
    hops = [spec.hop for spec in specs if isinstance(spec, Frames)]
    hop = max(hops, default=1)  # a network is stored as it takes whole frames
    lengths = [[-(-length // hop) * hop] for length in COMPARED_LENGTHS]
    for sizes in lengths if axes == 1 else [SIDES]:
        yield random_arguments([_resize_spec(spec, sizes, axes) for spec in specs])


def _resize_spec(spec: tf.TensorSpec, sizes: Sequence[int], axes: int) -> tf.TensorSpec:
    shape = [size or ROWS if axis == 0 else size for axis, size in enumerate(spec.shape)]
    if isinstance(spec, Frames):
        shape[1] = spec.count(sizes[0])
    if axes > 1 or is_at_rate(spec):
        for axis, size in enumerate(sizes, 1):
            if axis < len(shape) and shape[axis] is None:
                shape[axis] = size
    return tf.TensorSpec(shape, spec.dtype)


ASSIGN, READ = "AssignVariableOp", "ReadVariableOp"


def without_assignments(
    call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec]
) -> Callable[..., tf.Tensor]:
    """Return a network with the same outputs and no assignments."""
    traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    assigned = {op.type for op in operations_for(traced.graph.outputs, assigns=True)}
    if ASSIGN not in assigned:
        return call
    graph, names = traced.graph, [x.name for x in traced.graph.inputs[: len(specs)]]

    def run(*arguments: tf.Tensor) -> tf.Tensor:
        for variable in traced.variables:  # a trace lists only variables read from Python
            variable.read_value()
        values = captures_by_name(graph) | dict(zip(names, arguments, strict=True))
        return _run(values, graph.outputs, {})[0]

    return run


def _run(
    values: Mapping[str, tf.Tensor], fetches: Sequence[tf.Tensor], written: dict[int, tf.Tensor]
) -> list[tf.Tensor]:
    """Run a graph as `run_graph` does; update `written`, values by `id` of a variable's handle."""
    known = dict(values)
    for op in operations_for(fetches, known, assigns=True):
        inputs = [known[tensor.name] for tensor in op.inputs]
        if op.type in CALLS:
            body = called_graph(op, "f")
            inner = dict(zip((x.name for x in body.inputs), inputs, strict=True))
            outputs = _run(inner, body.outputs, written)
        elif op.type == ASSIGN:
            written[id(inputs[0])] = inputs[1]
            outputs = []
        elif op.type == READ and id(inputs[0]) in written:
            outputs = [written[id(inputs[0])]]
        else:
            outputs = run_op(op, inputs)
        known.update(zip((tensor.name for tensor in op.outputs), outputs, strict=True))
    return [known[tensor.name] for tensor in fetches]


def assigning_nothing(model: Any) -> Any:
    """Return an image model without assignments in its network, any other model as it is."""
    network: Any = getattr(model, "symbol_network", None)
    if model.order != "raster" or not hasattr(network, "call"):
        return model
    specs = [network.inputs, *map(plain, conditions_of(network).values())]
    call = without_assignments(network.call, specs)
    if call is network.call:
        return model
    changed = copy.copy(network)
    changed.call = call
    made = Autoregressive.of_symbols(changed, model.distribution, model.codec, "raster")
    made.sample_rate_hz = model.sample_rate_hz
    return made


# Batch sizes for which a step is stored.
STEP_ROWS = (1, 8)
# Lengths for which a network is stored if its graph depends on the length.
LENGTHS = (64, 512)
# Ranks of the values for which the log-density is stored.
DENSITY_AXES = (2, 3)


class Program(tf.Module):
    """All functions of a model: network, step, distribution and codec."""

    def __init__(self, model: Autoregressive, with_step: bool) -> None:
        super().__init__(name="autoregressive")
        network = model.symbol_network
        specs = network_specs(model)
        call = without_assignments(network.exact, specs)
        self.call = function_of(call, specs)
        self.lengths = list(getattr(network.network, "lengths", ()))
        given = [network.inputs, *model.conditions.values()]
        if model.order == "time" and not self.lengths and first_fault(call, self.call, given):
            self.lengths = list(LENGTHS)
        if self.lengths and getattr(network, "hoisted", None) is not None:
            raise UserError(
                "The model cannot be stored: its graph depends on the length, and it reads frames."
            )
        if self.lengths:
            del self.call
            self.calls = [
                function_of(call, [plain(spec_of_length(each, length)) for each in given])
                for length in self.lengths
            ]
        calls = self.calls if self.lengths else [self.call]
        traced = [each.get_concrete_function() for each in calls]
        if with_step:
            self.initial_states, self.steps = [], []
            for rows in STEP_ROWS:
                state, step = stored_step(network.stepped, specs, rows)
                self.initial_states.append(state)
                self.steps.append(step)
                traced += [state.get_concrete_function(), step.get_concrete_function()]
        dtype = traced[0].outputs[0].dtype
        self._add_distribution(model.distribution, model.layout, dtype)
        if model.layout.rank == 2:
            self._add_density(model.distribution, dtype)
        add_codec(self, model.codec, model.layout.rank)
        self.weights = variables_of(traced)

    def _add_distribution(
        self, distribution: Distribution, layout: Layout, parameters_dtype: tf.DType
    ) -> None:
        channels = pixel_channels(distribution)
        axes = layout.noise_axes + 1
        dtype = tf.float32 if distribution.levels is None else tf.int32
        parameters = tf.TensorSpec([None] * axes + [distribution.num_parameters], parameters_dtype)
        event = [channels] if channels else []
        symbols = tf.TensorSpec([None] * axes + event, dtype)
        drawn = distribution.noise(0, tf.range(1), 0, 1)
        noise = tf.TensorSpec([None] * axes + [distribution.noise_channels], drawn.dtype)
        scalar = tf.TensorSpec([], tf.int32)
        key, rows = tf.TensorSpec([2], tf.uint32), tf.TensorSpec([None], tf.int32)
        self.log_prob = function_of(distribution.log_prob, [parameters, symbols])
        self.draw = function_of(distribution.sample, [parameters, noise, tf.TensorSpec([])])
        self.mode = _as_implemented(
            function_of(lambda x: distribution.mode(tf.cast(x, tf.float32)), [parameters])
        )
        self.noise = function_of(distribution.noise, [key, rows, scalar, scalar])
        cumulative = cumulative_of(distribution)
        if cumulative is not None:
            self.cumulative = function_of(cumulative, [parameters, symbols])
        table = table_of(distribution)
        if table is not None:
            self.table = function_of(table, [parameters])

    def _add_density(self, distribution: Distribution, parameters_dtype: tf.DType) -> None:
        parameters = tf.TensorSpec([None, None, distribution.num_parameters], parameters_dtype)
        continuous = with_density(distribution)
        if continuous is not None:  # values [batch, time], or [draws, batch, time]
            values = [tf.TensorSpec([None] * axes) for axes in DENSITY_AXES]
            self.log_densities = [
                function_of(continuous.log_density, [parameters, each]) for each in values
            ]
        if is_normal(distribution):
            self.normal = function_of(
                functools.partial(normal_parameters, distribution), [parameters]
            )


def _as_implemented(function: Any) -> Any:
    try:
        function.get_concrete_function()
    except (AttributeError, NotImplementedError):
        return None
    return function


def add_codec(program: Any, codec: Codec, rank: int) -> None:
    """Add `encode`, `decode` and `scale` to a program, for elements with `rank` axes."""
    axes = [None] * rank
    symbols = tf.TensorSpec(axes, tf.float32 if codec.levels is None else tf.int32)
    elements = tf.TensorSpec(axes, tf.as_dtype(codec.decode(tf.zeros([], symbols.dtype)).dtype))
    program.encode = function_of(codec.encode, [elements])
    program.decode = function_of(codec.decode, [symbols])
    program.scale = function_of(codec.scale, [symbols])


def variables_of(functions: Iterable[Any]) -> list[tf.Variable]:
    """Return the variables that concrete functions read, for a SavedModel to track."""
    return list({v.ref(): v for function in functions for v in function.variables}.values())


def network_specs(model: Autoregressive) -> list[tf.TensorSpec]:
    """Return the specs of the network's arguments, for any batch and length."""
    if not hasattr(model.symbol_network, "call"):
        raise UserError("A shipped kind of network is stored in its own model folder.")
    return [model.symbol_network.inputs, *map(plain, model.conditions.values())]


def stored_step(stepped: Any, specs: Sequence[tf.TensorSpec], rows: int) -> tuple[Any, Any]:
    """Return `initial_state()` and `step(inputs, state[, condition])` for a batch of `rows`."""
    state = stepped.initial_state(rows)
    structure = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), state)
    sized = [tf.TensorSpec([rows, 1, *spec.shape[2:]], spec.dtype) for spec in specs]
    first = function_of(lambda: stepped.initial_state(rows), [])
    step = function_of(stepped.step, [sized[0], structure, *sized[1:]])
    return first, step


def function_of(function: Callable, specs: Sequence[Any]) -> Any:
    """Return a `tf.function` with one input signature."""
    return tf.function(function, autograph=False, input_signature=list(specs))
