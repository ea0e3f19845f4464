"""Networks that read a codec's symbols, in time or raster order."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from onepass.likelihoods.capabilities import pixel_channels
from onepass.likelihoods.distribution import Distribution
from onepass.networks.any_length import any_length
from onepass.networks.condition_specs import (
    Specs,
    as_specs,
    is_at_rate,
    only_rate,
    shape_at,
)
from onepass.networks.condition_values import class_counts
from onepass.networks.layout import layout_of
from onepass.networks.masked_images import observed_unmasked
from onepass.networks.named_conditions import NamedConditions, OwnStep, in_order
from onepass.networks.network import brings_step
from onepass.networks.observation import VERIFIED, free_time_axis, observed_fault, probe_lengths
from onepass.networks.outputs import SMALL
from onepass.networks.periods import in_whole_periods
from onepass.networks.reading import Reading, check_start, describe_rescaling
from onepass.networks.row_fields import rows_above
from onepass.networks.tables import Tables, derive_step
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.step.hoisting import InFrames, hoist_frames
from onepass.step.layer_names import layer_names
from onepass.step.random_weights import symbol_count
from onepass.step.tracing import Traces

State = dict[str, Any]


class SymbolNetwork(Protocol):
    """The interface through which samplers use a network.

    Law: the parameters at a position depend only on the symbols at earlier positions.
    """

    def parameters(self, symbols: tf.Tensor, condition: Any) -> tf.Tensor:
        """Return the parameters at all positions, [batch, ..., num_parameters]."""

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the position of every symbol, int32 that broadcasts against `symbols`."""


Step = Callable[[Any, int, State], tuple[tf.Tensor, Any]]


class SteppedSymbols(SymbolNetwork, Protocol):
    """The interface of a network in time order that the cached sampler uses."""

    @property
    def has_step(self) -> bool:
        """True if the network can compute one symbol at a time."""

    @property
    def block(self) -> int:
        """Number of symbols that the network computes together; 1 for most networks."""

    def initial_state(self, batch: int, length: int = 0, fixed: Any = None) -> State:
        """Return {"input": the input before the first symbol, "network": the network's state}.

        Args:
          batch: number of rows.
          length: number of symbols that will be drawn; 0: unknown.
          fixed: conditions that are the same at every time step, by name; omitted if none.
        """

    def stepper(self, condition: Any) -> Step:
        """Return the step function for a chunk that starts at the beginning of a block.

        Args:
          condition: the condition of the chunk: [batch, time, channels], `NamedConditions` or None.

        Returns:
          A function of the time step within the chunk, that step modulo `block` as a Python
          integer, and the state. It returns the parameters [batch, 1, num_parameters] of that
          symbol, and the network's state after it.
        """

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Convert symbols [batch, n] to the network's inputs."""


class TimeOrder:
    """A causal network over symbols [batch, time] or [batch, time, channels], shifted by one step.

    `exact` is the network as it is stored, a function of whole frames where it reads frames;
    `hoisted` is then the network in two functions, else None.
    """

    block = 1

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        reading: Reading,
        inputs: tf.TensorSpec,
        condition: tf.TensorSpec | Specs | None,
    ) -> None:
        self.network, self.reading = network, reading
        if inputs.shape.rank not in (2, 3) or None in inputs.shape[2:]:
            raise ValueError(
                f"`inputs` must be [batch, time] or [batch, time, channels], got {inputs.shape}."
            )
        names, given = ["", *as_specs(condition)], [inputs, *as_specs(condition).values()]
        call, self._specs = any_length(network, given)
        self.inputs = self._specs[0]
        self.conditions: Specs = dict(zip(names[1:], self._specs[1:], strict=True))
        self.condition = only_rate(self.conditions)
        self.layout = layout_of(distribution, "time", self.inputs)
        self.hoisted = hoist_frames(call, self._specs, names[1:])
        if self.hoisted is None:
            self.call = self.exact = in_whole_periods(Traces(call), self._specs)
            self._on_sequence, self._read = self.call, self.conditions
        else:
            self.call, self.exact = Traces(InFrames(call, self._specs)), Traces(call)
            self._on_sequence, self._read = Traces(self.hoisted), self.hoisted.conditions
        self._timed = {name: x for name, x in self._read.items() if is_at_rate(x)}
        if reading.starts_outside:
            small = [tf.TensorSpec(shape_at(x, 1, [self.few]), x.dtype) for x in self._specs]
            most = int(reading.start or 0) + 1
            check_start(reading, symbol_count(self.call.of(small).graph, unknown=most))
        self.tables = Tables(network, self._on_sequence, [inputs, *self._read.values()], axes=1)
        self._stepped: Any = None
        self._has_step: bool | None = None
        self._longest = VERIFIED  # time steps in the longest call of `check`

    @property
    def stepped(self) -> Any:
        """The network with `initial_state` and `step`, its own or derived on first use.

        Raises NotCausalError if it looks ahead farther than `check` does, UnsupportedNetworkError
        if no step can be derived, and ValueError if it cannot be traced.
        """
        if self._stepped is None:
            network = self.network if self.hoisted is None else self._on_sequence
            specs = {"inputs": self.inputs, "condition": self._read}
            try:
                with tf.init_scope():
                    self._stepped = derive_step(network, self.tables, **specs)
            except NotCausalError as error:
                if error.ahead >= self._longest:  # the calls of `check` do not see so far
                    raise
                raise UnsupportedNetworkError(str(error)) from error
            self._on_sequence.forget()
            if self._fixed_specs and brings_step(network):
                is_fixed = [not is_at_rate(spec) for spec in self._specs[1:]]
                self._stepped = OwnStep(self._stepped, is_fixed)
        return self._stepped

    @property
    def has_step(self) -> bool:
        """True if the network has a step, user-defined or derived."""
        if self._has_step is None:
            try:
                self._has_step = self.stepped is not None
            except UnsupportedNetworkError:
                self._has_step = False
        return self._has_step

    def check(self, with_random_weights: bool = True) -> None:
        """Raise NotCausalError if outputs depend on later inputs or the length, or are random."""
        call, specs = self._on_sequence, free_time_axis([self._specs[0], *self._read.values()])
        lengths = probe_lengths(call, self.tables, specs, with_random_weights)
        self._longest = max(lengths) if with_random_weights else self._longest
        levels, names = self.reading.codec.levels, layer_names(self.network)
        fault = observed_fault(call, specs, specs[:1], 0, *lengths, levels, names)
        if fault:
            raise NotCausalError(f"`network` must be causal: {fault}.")
        call.remember()
        if self.hoisted is not None:  # what is computed of frames alone is not in that graph
            whole = [shape_at(spec, 2, [self.few]) for spec in self._specs]
            self.exact.of(
                [tf.TensorSpec(x, spec.dtype) for x, spec in zip(whole, self._specs, strict=True)]
            )
            self.exact.remember()
            self.exact.forget()

    def is_as_checked(self) -> bool:
        """Return whether a fresh trace of the network is the one that `check` has remembered."""
        if self.hoisted is not None and not self.exact.is_as_remembered():
            return False
        return self._on_sequence.is_as_remembered()

    def once(self, condition: Any, length: int) -> Any:
        """Return a call's conditions with all computed that depends on them alone."""
        if self.hoisted is None:
            return condition
        made = self.hoisted.once({**condition.timed, **condition.fixed}, length)
        return NamedConditions(
            {name: x for name, x in made.items() if name in self._timed},
            {name: x for name, x in made.items() if name not in self._timed},
        )

    def parameters(self, symbols: tf.Tensor, condition: Any = None) -> tf.Tensor:
        """See `SymbolNetwork.parameters`."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: Any = None) -> tf.Tensor:
        """Return the parameters at all positions for inputs that this method shifts by one step.

        Float inputs need not correspond to symbols; gradients flow through them.
        """
        self.tables.check(inputs.shape[1])
        shifted = tf.concat([self.start(tf.shape(inputs)[0]), inputs[:, :-1]], 1)
        shifted.set_shape(inputs.shape)
        call, specs = self.call, self.conditions
        if isinstance(condition, NamedConditions) and condition.names() == self._read.keys():
            call, specs = self._on_sequence, self._read
        return self.layout.split_channels(call(shifted, *in_order(condition, specs)))

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `SymbolNetwork.positions`: [1, time], or [1, time, 1] if a step has channels."""
        times = tf.range(tf.shape(symbols)[1])[tf.newaxis]
        return times if symbols.shape.rank == 2 else times[..., tf.newaxis]

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `SteppedSymbols.read`."""
        inputs = self.reading(symbols)
        return inputs if symbols.shape.rank == self.inputs.shape.rank else inputs[..., tf.newaxis]

    def start(self, batch: int | tf.Tensor) -> tf.Tensor:
        """Return the network's input before the first symbol, [batch, 1, ...]."""
        value = tf.constant(self.reading.start, self.inputs.dtype)
        return tf.fill([batch, 1, *self.inputs.shape[2:]], value)

    @property
    def feeds(self) -> str:
        """A sentence about the network's inputs, without its final period."""
        return self.reading.feeds + describe_rescaling(self.network, self.reading)

    def initial_state(
        self, batch: int, length: int = 0, fixed: Any = None, at_once: bool = False
    ) -> State:
        """See `SteppedSymbols.initial_state`; `at_once` compiles nothing, for a single state."""
        make = self.stepped.first_state if at_once else self.stepped.initial_state
        has_horizon = getattr(self.stepped, "has_horizon", False)
        given: dict[str, Any] = {"length": length} if has_horizon and length else {}
        if self._fixed_specs:
            given["fixed"] = in_order(fixed or {}, self._fixed_specs)
        return {"input": self.start(batch), "network": make(batch, **given)}

    @property
    def few(self) -> int:
        """Number of time steps that the network takes, as few as possible."""
        return SMALL if self.hoisted is None else self.hoisted.fewest * self.hoisted.hop

    @property
    def _fixed_specs(self) -> Specs:
        return {name: x for name, x in self._read.items() if name not in self._timed}

    @functools.cached_property
    def class_counts(self) -> dict[str, int]:
        """Number of values that each integer condition can have, by name, if it is known."""
        example = [tf.zeros(shape_at(x, 1, [self.few]), x.dtype) for x in self._specs]
        return class_counts(self.call, self.conditions, example)

    @property
    def has_horizon(self) -> bool:
        """True if a state is made for a limited length, as for attention or learned positions."""
        return self.has_step and getattr(self.stepped, "has_horizon", False)

    def stepper(self, condition: Any) -> Step:
        """See `SteppedSymbols.stepper`."""
        timed = in_order(condition, self._timed)

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            now = [x[:, time][:, tf.newaxis] for x in timed]
            parameters, after = self.stepped.step(state["input"], state["network"], *now)
            return self.layout.split_channels(parameters), after

        return step

    def chunk(self, inputs: tf.Tensor, state: Any, condition: Any) -> tuple[tf.Tensor, Any]:
        """Compute n symbols' parameters from inputs shifted by one step, and the next state."""
        given = in_order(condition, self._timed)
        parameters, after = self.stepped.step(inputs, state, *given)
        return self.layout.split_channels(parameters), after


class RasterOrder:
    """A masked network over images [batch, height, width, channels] in row-major order.

    The network is not shifted: its output at a pixel must not depend on that pixel.

    Args:
      distribution: the distribution of a pixel, if it has `channels`; otherwise the distribution of
        a channel, and the network outputs parameters for every channel.
    """

    condition = None
    has_step = False
    few = SMALL

    def __init__(
        self,
        network: Any,
        distribution: Distribution,
        reading: Reading,
        inputs: tf.TensorSpec,
        conditions: Specs | None = None,
    ) -> None:
        self.network, self.reading = network, reading
        self.conditions: Specs = conditions or {}
        self._whole_pixels = pixel_channels(distribution) is not None
        self._num_parameters = distribution.num_parameters
        self.declared, self.layout = inputs, layout_of(distribution, "raster")
        given = [inputs, *self.conditions.values()]
        call, self._specs = any_length(network, given, axes=2)
        self.call = Traces(call)
        self.inputs = self._specs[0]
        self.tables = Tables(network, self.call, self._specs, axes=2)

    @functools.cached_property
    def class_counts(self) -> dict[str, int]:
        """Number of values that each integer condition can have, by name, if it is known."""
        sides = [size or SMALL for size in self.inputs.shape[1:3]]
        example = [tf.zeros([1, *sides, self.inputs.shape[-1]], self.inputs.dtype)]
        example += [tf.zeros(shape_at(x, 1, sides), x.dtype) for x in self.conditions.values()]
        return class_counts(self.call, self.conditions, example)

    @functools.cached_property
    def rows_above(self) -> int | None:
        """Number of image rows above a pixel that its outputs depend on; None: unknown."""
        if self.conditions:
            return None
        with tf.init_scope():
            return rows_above(self.call, self.inputs)

    def check(self, with_random_weights: bool = True) -> None:
        """See `TimeOrder.check`: no output may depend on its own or later pixels."""
        del with_random_weights  # images are always checked with random weights, too
        self.call.forget()
        names, levels = layer_names(self.network), self.reading.codec.levels
        fault = observed_unmasked(self.call, self.inputs, 0, levels, self._specs[1:], names)
        if not fault:
            self.call.remember()
        self.call.forget()
        if fault:
            raise NotCausalError(f"`network` must be masked: {fault}.")

    def is_as_checked(self) -> bool:
        """See `TimeOrder.is_as_checked`."""
        return self.call.is_as_remembered()

    def parameters(self, symbols: tf.Tensor, condition: Any = None) -> tf.Tensor:
        """See `SymbolNetwork.parameters`: [batch, height, width, p] or [..., channels, p]."""
        self.tables.check(*symbols.shape[1:3])
        outputs = self.call(self.read(symbols), *in_order(condition, self.conditions))
        if self._whole_pixels:
            return outputs
        shape = tf.concat([tf.shape(symbols), [self._num_parameters]], 0)
        return tf.reshape(outputs, shape)

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `TimeOrder.read`."""
        return self.reading(symbols)

    @property
    def exact(self) -> Callable[..., tf.Tensor]:
        """The network as it is stored."""
        return self.call

    @property
    def feeds(self) -> str:
        """A sentence about the network's inputs, without its final period."""
        return self.reading.feeds + describe_rescaling(self.network, self.reading)

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return positions int32 [1, height, width, 1], the same for all channels of a pixel."""
        return raster_positions(symbols)


def raster_positions(symbols: tf.Tensor) -> tf.Tensor:
    """Return row-major positions, int32 [1, height, width, 1], of [batch, height, width, ...]."""
    height, width = tf.shape(symbols)[1], tf.shape(symbols)[2]
    return tf.reshape(tf.range(height * width), [1, height, width, 1])
