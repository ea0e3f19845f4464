"""The functions of a model as one `tf.Module`, to be stored as a SavedModel."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.likelihoods.capabilities import (
    cumulative_of,
    is_normal,
    normal_parameters,
    pixel_channels,
    table_of,
    with_density,
)
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution
from onepass.model import Autoregressive
from onepass.networks.condition_specs import plain
from onepass.networks.layout import Layout
from onepass.step.tracing import spec_of_length
from onepass.storage.assignments import without_assignments
from onepass.storage.comparison import first_fault

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
