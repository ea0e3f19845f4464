"""`incremental`: derive a network's cached step from its graph."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.any_length import any_length
from onepass.networks.conditions import is_at_rate, shape_at
from onepass.networks.network import WHOLE, brings_step, condition_specs, input_spec
from onepass.networks.trainable import attribute_of
from onepass.step.analysis import POSITION, State, batch_of, horizon_of
from onepass.step.hoisting import Hoisted, hoist_frames
from onepass.step.periods import WholePeriods, in_whole_periods
from onepass.step.program import StepProgram
from onepass.step.replay import captures_by_name, run_graph
from onepass.step.streams import LengthDependenceError, NotCausalError, UnsupportedNetworkError
from onepass.step.tracing import Traces, layer_names, rate_of
from onepass.step.verification import observed_fault, verify

LENGTH = 1024  # default length of a state


class Incremental:
    """A network that processes a few time steps per call and keeps the past in a state.

    Law: if x [batch, time, ...] is split along time into parts of any length, calling `step` on the
    parts in turn gives the outputs of `network(x)`, up to rounding.

    With attention or a table of positions, the state has room for a limited number of time steps,
    its horizon: the length that it was made for, rounded up to a power of two if the table has
    enough rows. `lengthen_state` extends it.
    """

    hoisted: Hoisted | None = None

    def __init__(
        self, function: Callable, specs: list[tf.TensorSpec], names: frozenset[str] = frozenset()
    ) -> None:
        self._function, self._names, self.specs = function, names, specs
        self._programs: dict[tuple, StepProgram] = {}
        self._starts: dict[tuple, Callable[..., State]] = {}
        self._compiled = tf.function(self._step, autograph=False)
        with tf.init_scope():
            verify(self, self.program(1), specs)

    @property
    def has_horizon(self) -> bool:
        """True if a state has a horizon, because of attention or a table of positions."""
        return self.program(1).has_horizon

    def program(self, batch: int, shapes: Sequence[tuple[int, ...]] | None = None) -> StepProgram:
        """Return the cached program for a batch size and `shapes` of arguments without time."""
        if shapes is None:
            fixed = [spec for spec in self.specs if not is_at_rate(spec)]
            shapes = [tuple(shape_at(spec, batch, [0])) for spec in fixed]
        key = (batch, *map(tuple, shapes))
        if key not in self._programs:
            given, specs = iter(shapes), []
            for spec in self.specs:
                shape = [batch, *spec.shape[1:]] if is_at_rate(spec) else next(given)
                specs.append(tf.TensorSpec(shape, spec.dtype))
            lengths = next((each.lengths for each in self._programs.values()), None)
            with tf.init_scope():
                self._programs[key] = StepProgram(self._function, specs, self._names, lengths)
        return self._programs[key]

    def initial_state(
        self, batch: int, length: int = LENGTH, fixed: Sequence[tf.Tensor] = ()
    ) -> State:
        """Return the state before the first time step, tensors by name.

        The number of time steps, `length`, matters only if `has_horizon`. Raises ValueError if a
        layer's table has fewer positions.
        """
        fixed = [tf.convert_to_tensor(each) for each in fixed]
        shapes = tuple(tuple(each.shape) for each in fixed)
        program = self.program(batch, shapes)
        horizon = self._horizon(program, length)
        key = (batch, horizon, shapes)
        if key not in self._starts:
            self._starts[key] = tf.function(
                lambda *given: program.initial_state(horizon, given), autograph=False
            )
        return self._starts[key](*fixed)

    def horizon(self, length: int) -> int:
        """Return the horizon of a state made for `length` time steps; 0: there is no limit."""
        return self._horizon(self.program(1), length)

    def first_state(
        self, batch: int, length: int = LENGTH, fixed: Sequence[tf.Tensor] = ()
    ) -> State:
        """Return `initial_state` computed eagerly, which is faster if only one state is needed."""
        fixed = [tf.convert_to_tensor(each) for each in fixed]
        program = self.program(batch, [tuple(each.shape) for each in fixed])
        return program.initial_state(self._horizon(program, length), fixed)

    def traced_step(self, arguments: Sequence[tf.Tensor], state: State) -> Callable:
        """Return a function that runs a step's graph eagerly, traced as compiled callers do."""
        traced = self._compiled.get_concrete_function(arguments[0], state, *arguments[1:])
        graph, names = traced.graph, [tensor.name for tensor in traced.graph.inputs]

        def step(arguments: Sequence[tf.Tensor], state: State) -> tuple[tf.Tensor, State]:
            flat = tf.nest.flatten((arguments[0], state, *arguments[1:]))
            values = captures_by_name(graph) | dict(zip(names, flat, strict=False))
            made = run_graph(values, graph.outputs)
            return tf.nest.pack_sequence_as(traced.structured_outputs, made)

        return step

    def _horizon(self, program: StepProgram, length: int) -> int:
        if not program.has_horizon:
            return 0
        (least,), (usual,) = (program.rate.lengths([n]) for n in (length, bucket(length)))
        with tf.init_scope():
            with contextlib.suppress(ValueError):
                return program.horizon(usual).length
            return program.horizon(least).length

    def lengthen_state(self, state: State, length: int, fixed: Sequence[tf.Tensor] = ()) -> State:
        """Return a state for a longer sequence; `state` itself if it has room for it.

        Raises ValueError if a layer's table has fewer positions than `length`, and
        UnsupportedNetworkError if the state does not contain enough keys.
        """
        before = horizon_of(state)
        if before >= length or not before:
            return state
        fixed = [tf.convert_to_tensor(each) for each in fixed]
        program = self.program(batch_of(state), [tuple(each.shape) for each in fixed])
        return program.lengthen_state(state, before, self._horizon(program, length), fixed)

    def step(
        self, inputs: tf.Tensor, state: State, *conditions: tf.Tensor
    ) -> tuple[tf.Tensor, State]:
        """Return the parameters [batch, n, parameters] of the next n time steps, and the new state.

        Inputs and conditions are [batch, n, ...] with static n. Raises ValueError if the batch size
        or n is not static, or the state was made for fewer steps, which only eager calls detect.
        """
        inputs = tf.convert_to_tensor(inputs)
        if None in inputs.shape[:2]:
            rule = "`inputs` must have a static batch size and length"
            raise ValueError(f"{rule}, got {inputs.shape}.")
        if tf.executing_eagerly() and (horizon := horizon_of(state)):
            end = int(state[POSITION]) + inputs.shape[1]
            if end > horizon:
                raise ValueError(
                    f"`state` must be made for at least {end} time steps, got one for {horizon};"
                    " `lengthen_state` extends it."
                )
        # Traced once per number of time steps, even if called inside a graph.
        return self._compiled(inputs, state, *(x for x in conditions if x is not None))

    def _step(
        self, inputs: tf.Tensor, state: State, *conditions: tf.Tensor
    ) -> tuple[tf.Tensor, State]:
        count = sum(not is_at_rate(spec) for spec in self.specs)
        fixed = [tuple(state[f"shape/{i}"].shape[:-1]) for i in range(count)]
        program = self.program(inputs.shape[0], fixed)
        return program.step([inputs, *conditions], state, horizon_of(state))


def bucket(length: int) -> int:
    """Return the smallest power of two that is at least `length` and at least 64."""
    return max(64, 1 << (length - 1).bit_length())


def _derive(call: Callable, specs: list[tf.TensorSpec], names: frozenset[str]) -> Incremental:
    try:
        return Incremental(call, specs, names)
    except LengthDependenceError:
        # A network that fills or cuts sequences by itself has its periods all the same.
        for period in () if rate_of(call).hop > 1 else WHOLE[:2]:
            with contextlib.suppress(ValueError, tf.errors.OpError):
                return Incremental(Traces(WholePeriods(call, specs, period)), specs, names)
        raise


def incremental(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: Any = None,
    function: Callable | None = None,
) -> Any:
    """Derive the cached step of a causal network from its graph.

    The network is traced at two lengths. Every operation on a tensor with a time axis is replaced
    by an operation on a few rows and the past rows that it needs. A network with both methods of a
    `SteppedNetwork` is returned unchanged.

    Args:
      network: a `tf.Module`, a Keras model or a function of [batch, time, channels] and,
        optionally, conditions.
      inputs: spec of the first argument, [None, None, channels]; by default as declared by a Keras
        model or a `tf.function`, or float32 [None, None, 1].
      condition: spec of the second argument, or specs of all further arguments by name, like
        `conditions` of `Autoregressive`; not needed for a Keras model with several inputs.
      function: the network as a function of `inputs` and the conditions, if the caller already has
        it, and has called it to see whether it is causal.

    Returns:
      An object with `initial_state(batch)` and `step(inputs, state, *conditions)`. `step` takes n
      time steps [batch, n, channels], and returns [batch, n, parameters] and the next state.
      Conditions without a time axis are passed to `initial_state(batch, length, fixed)` instead.
      With `Frames`, `hoisted.once(conditions, length)` returns by name what both are passed.

    Raises:
      NotCausalError: calls of the network show that it looks ahead, depends on the length or draws
        random numbers; the message names the layer.
      UnsupportedNetworkError: no step can be derived, for example because an operation has no rule;
        the message says why.
      ValueError: the network cannot be built or traced, or has a stateful layer.
    """
    if brings_step(network):
        return network
    conditions = condition_specs(network, condition)
    call, specs = any_length(network, [input_spec(network, inputs), *conditions.values()])
    parts = hoist_frames(call, specs, list(conditions))
    if parts is not None:
        call, specs = Traces(parts), parts.specs
    reason = attribute_of(call, "no_step", "") or attribute_of(network, "no_step", "")
    if reason:
        raise UnsupportedNetworkError(f"{reason}, so that no step can be derived")
    if function is None and parts is None:
        call = in_whole_periods(Traces(call), specs)
    called = call if function is None else function
    try:
        found = _derive(called, specs, layer_names(network))
        found.hoisted = parts
        if function is None and isinstance(call, Traces):
            call.forget()  # a graph for many time steps may be large
        return found
    except NotCausalError as error:
        if observed_fault(called, specs, error.ahead):
            raise
        raise UnsupportedNetworkError(
            f"{error}; calls of the network show no such dependence, and no step can be derived"
        ) from error
    except UnsupportedNetworkError as error:
        # A caller that passes the network as a function has called it to see whether it is causal.
        fault = "" if function is not None else observed_fault(call, specs)
        if not fault:
            raise
        raise NotCausalError(f"{error}; {fault}") from error
