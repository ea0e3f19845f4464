"""Networks that read a codec's symbols, in time or raster order."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import must_be
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import Distribution, pixel_channels
from onepass.likelihoods.truncated import mask_of
from onepass.networks.any_length import any_length
from onepass.networks.causality import (
    VERIFIED,
    free_time_axis,
    observed_fault,
    observed_unmasked,
    probe_lengths,
    rows_above,
)
from onepass.networks.conditions import (
    NOTHING,
    Condition,
    Frames,
    OwnStep,
    Specs,
    as_specs,
    by_time,
    in_order,
    is_at_rate,
    shape_at,
    specs_at,
)
from onepass.networks.elements import Layout, check_elements, encode_tokens, layout_of
from onepass.networks.length_limits import Tables, class_counts, derive_step
from onepass.networks.network import SMALL, brings_step, check_parameters, input_spec
from onepass.networks.trainable import attribute_of, single_layers
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.step.hoisting import InFrames, hoist_frames
from onepass.step.periods import in_whole_periods
from onepass.step.tracing import Traces, layer_names
from onepass.step.verification import symbol_count

SCALE = (-1.0, 1.0)  # the default
MOST_COMPARED = 4096  # number of levels on which a codec's scale is compared with an even scale
ROUNDING = 2e-7  # rounding error of numbers between -1 and 1


@dataclasses.dataclass(frozen=True)
class Reading:
    """A mapping from symbols to the numbers that a network reads."""

    codec: Codec
    dtype: tf.DType  # type of the network's input; integer inputs are the symbols themselves
    input_scale: tuple[float, float] = SCALE  # floats for lowest and highest level, or for -1 and 1
    start: float | None = None  # input before the first symbol; None: images, not shifted

    def __call__(self, symbols: tf.Tensor) -> tf.Tensor:
        """Convert symbols [...] to the numbers that the network reads."""
        if self.dtype.is_integer:
            return tf.cast(symbols, self.dtype)
        if self.input_scale == SCALE:
            return tf.cast(self.codec.scale(symbols), self.dtype)
        if not self._is_even:
            return self.of_scaled(self.codec.scale(symbols))
        low, high = self.input_scale
        # A product, as in `levels.value_of`; from 0 to levels - 1 it gives the levels exactly.
        step = (high - low) / ((self.codec.levels or 2) - 1.0)
        dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        return tf.cast(low + tf.cast(symbols, dtype) * step, self.dtype)

    def of_scaled(self, values: tf.Tensor) -> tf.Tensor:
        """Convert values that the codec scaled, about -1 to 1, to what the network reads."""
        if self.input_scale == SCALE:
            return tf.cast(values, self.dtype)
        low, high = self.input_scale
        return tf.cast(low + 0.5 * (high - low) * (values + 1.0), self.dtype)

    @functools.cached_property
    def _is_even(self) -> bool:
        levels = self.codec.levels
        if levels is None:
            return False
        with tf.init_scope():
            some = tf.constant(np.linspace(0, levels - 1, MOST_COMPARED).round().astype(np.int32))
            distance = tf.abs(self.codec.scale(some) - level_grid.value_of(some, levels))
            return bool(tf.reduce_max(distance) < max(0.01 / levels, ROUNDING))

    @property
    def usual_start(self) -> float:
        """The network's default input before the first symbol."""
        if self.dtype.is_integer:
            return (self.codec.levels or 0) // 2
        return 0.5 * (self.input_scale[0] + self.input_scale[1])

    @property
    def feeds(self) -> str:
        """A sentence about the network's inputs, without its final period."""
        low, high = self.input_scale
        if self.codec.levels is None:
            fed = f"real elements as {type(self.codec).__name__} scales them"
            fed += "" if self.input_scale == SCALE else f", -1 and 1 as {low:g} and {high:g}"
        else:
            ends = self(tf.constant([0, self.codec.levels - 1])).numpy()
            kind = "symbols" if self.dtype.is_integer else "elements as numbers"
            fed = f"{kind} {ends[0]:g} to {ends[1]:g}"
        if self.start is None:
            return f"The network reads {fed}, unshifted"
        return f"The network reads {fed}, shifted by one; before the first it reads {self.start:g}"


def reading_of(
    codec: Codec, dtype: tf.DType, order: str, start: Any = None, input_scale: Any = None
) -> Reading:
    """Check the settings of a `Reading`, None for a default, and return it."""
    reading = Reading(codec, dtype, _checked_scale(input_scale, dtype))
    if order != "time":
        if start is not None:
            rule = "None in raster order, where networks are not shifted"
            raise ValueError(must_be("start", rule, repr(start)))
        return reading
    if start is None:
        return dataclasses.replace(reading, start=reading.usual_start)
    if not _is_finite(start):
        raise ValueError(must_be("start", "a finite number", repr(start)))
    if dtype.is_integer and (start != int(start) or not 0 <= start <= dtype.max):
        rule = "an integer of at least 0 for a network that reads integers"
        raise ValueError(must_be("start", rule, repr(start)))
    return dataclasses.replace(reading, start=(int if dtype.is_integer else float)(start))


def settings_of(network: Any) -> dict[str, Any]:
    """Return a network's settings `start` and `input_scale`; {} without a `Reading`."""
    reading: Reading | None = getattr(network, "reading", None)
    if reading is None:
        return {}
    scale = None if reading.dtype.is_integer else list(reading.input_scale)
    return {"start": reading.start, "input_scale": scale}


def unusual_settings(network: Any) -> dict[str, Any]:
    """Return the settings `start` and `input_scale` that differ from their defaults."""
    reading: Reading | None = getattr(network, "reading", None)
    found: dict[str, Any] = {}
    if reading is not None and reading.start not in (None, reading.usual_start):
        found["start"] = float(reading.start)
    if reading is not None and reading.input_scale != SCALE:
        found["input_scale"] = list(reading.input_scale)
    return found


def describe_rescaling(network: Any, reading: Reading) -> str:
    """Return a clause on the range of a Keras layer `Rescaling`, to warn users; "" without one."""
    if reading.dtype.is_integer:
        return ""
    for layer in single_layers(network):
        scale, offset = attribute_of(layer, "scale"), attribute_of(layer, "offset")
        if isinstance(scale, int | float) and isinstance(offset, int | float):
            low, high = sorted(scale * end + offset for end in reading.input_scale)
            return f"; its layer `{layer.name}` rescales elements to {low:.4g} to {high:.4g}"
    return ""


def _checked_scale(given: Any, dtype: tf.DType) -> tuple[float, float]:
    if given is None:
        return SCALE
    rule = "None for a network that reads integers"
    if not dtype.is_integer:
        is_pair = isinstance(given, Sequence | np.ndarray) and len(given) == 2
        if is_pair and all(map(_is_finite, given)) and given[0] < given[1]:
            return float(given[0]), float(given[1])
        rule = "two finite numbers (low, high), low below high"
    raise ValueError(must_be("input_scale", rule, repr(given)))


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value) and abs(float(value)) < tf.float32.max
    except OverflowError:
        return False


NO_STOP = np.zeros([0], bool)


class Prompt(NamedTuple):
    """The known first symbols of sequences, and the symbols that end them."""

    symbols: tf.Tensor  # [batch, time, ...]; only the first `known` symbols of each row are used
    known: tf.Tensor  # int32 [batch], number of known symbols of each row
    stop: tf.Tensor  # bool [levels], which symbols end a row; `NO_STOP`: none

    @property
    def stops(self) -> bool:
        """True if symbols may end a row."""
        return bool(self.stop.shape[0])

    def after(self, start: int | tf.Tensor, count: int | None = None) -> "Prompt":
        """Return the prompt of the symbols from `start` on: all of them, or the first `count`."""
        symbols = self.symbols[:, start:] if count is None else self.symbols[:, start:][:, :count]
        return self._replace(symbols=symbols, known=tf.maximum(self.known - start, 0))

    def over(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return the drawn symbols, replaced by the known symbols where there are any."""
        count = drawn.shape[1]
        positions = position + tf.range(count)
        given = tf.cast(tf.gather(self.symbols, positions, axis=1), drawn.dtype)
        is_known = positions < self.known[:, tf.newaxis]
        ones = [1] * (drawn.shape.rank - 2)
        return tf.where(tf.reshape(is_known, [*is_known.shape, *ones]), given, drawn)

    def ends(self, drawn: tf.Tensor, position: tf.Tensor | int = 0) -> tf.Tensor:
        """Return which symbols, after the known ones, are such that end a row, bool [batch, n]."""
        if not self.stops or not drawn.dtype.is_integer or drawn.shape.rank > 2:
            return tf.zeros(tf.shape(drawn)[:2], tf.bool)
        positions = position + tf.range(tf.shape(drawn)[1])
        return tf.gather(self.stop, drawn) & (positions >= self.known[:, tf.newaxis])

    def find_ended(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return which symbols come after the one that ends their row, bool [batch, n]."""
        is_end = tf.cast(self.ends(symbols), tf.int32)
        return tf.cumsum(is_end, 1) - is_end > 0

    def fill_ended(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols [batch, n, ...] of which those after a row's end equal the one at it."""
        if not self.stops:
            return symbols
        first = tf.argmax(tf.cast(self.ends(symbols), tf.int32), 1, tf.int32)
        last = tf.gather(symbols, first, axis=1, batch_dims=1)[:, tf.newaxis]
        return tf.where(self.find_ended(symbols), last, symbols)


def prompt_of(
    prefix: Sequence[np.ndarray] | None,
    stop: np.ndarray | None,
    codec: Codec,
    num: int,
    length: int,
    layout: Layout,
) -> tuple[Prompt | None, int]:
    """Return the prompt, None without prefix and stop, and the number known in all rows."""
    if prefix is None and stop is None:
        return None, 0
    if stop is not None and layout.event:
        raise ValueError(f"`stop` needs one channel per time step, got {layout.channels}.")
    if stop is not None and codec.levels is None:
        raise ValueError("`stop` needs a model of integer symbols, got one of real numbers.")
    rows = [np.zeros([0, *layout.event])] * num
    if prefix is not None:
        rows = [_encode_row(row, codec, layout) for row in prefix]
    known = np.array([len(row) for row in rows], np.int32)
    symbols = np.zeros([num, *layout.shape([length])], np.int32 if codec.levels else np.float32)
    for symbol_row, row in zip(symbols, rows, strict=True):
        symbol_row[: len(row)] = row
    end = tf.constant(NO_STOP)
    if stop is not None:
        end = mask_of(encode_tokens(stop, codec, "stop"), len(stop), codec.levels or 0)
    return Prompt(tf.constant(symbols), tf.constant(known), end), int(known.min())


def _encode_row(row: np.ndarray, codec: Codec, layout: Layout) -> np.ndarray:
    if not row.size:
        return np.zeros([0, *layout.event], np.int32)
    check_elements(row[np.newaxis], codec, layout, "prefix")
    return codec.encode(tf.constant(row)).numpy()


def decode_chunks(
    parts: Iterator[np.ndarray], prompt: Prompt | None, codec: Codec
) -> Iterator[np.ndarray]:
    """Decode chunks of symbols and yield their elements until all rows have ended."""
    stops, position, last = prompt is not None and prompt.stops, 0, None
    ended: Any = False  # which rows have
    for symbols in parts:
        found = tf.convert_to_tensor(symbols)
        if prompt is not None and stops:
            now = prompt.after(position)
            found = now.fill_ended(found)
            if last is not None:
                found = tf.where(ended[:, tf.newaxis], last, found)
            ended |= tf.reduce_any(now.ends(found), 1)
            last = found[:, -1:]
            position += symbols.shape[1]
        yield codec.decode(found).numpy()
        if stops and bool(tf.reduce_all(ended)):
            return


State = dict[str, Any]


class SymbolNetwork(Protocol):
    """The calls that samplers make; parameters depend on symbols at earlier positions only."""

    conditions: Specs
    """Specs of the conditions that the network reads, by name."""

    def parameters(self, symbols: tf.Tensor, condition: Condition) -> tf.Tensor:
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
        """Return {"input": the input before the first symbol, "network": the network's state}."""

    def stepper(self, condition: Condition) -> Step:
        """Return the step function for a chunk that starts at the beginning of a block.

        It maps the time step within the chunk, that step modulo `block` as a Python integer, and
        the state to the parameters [batch, 1, num_parameters] and the network's state after it.
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
            rule = "[batch, time] or [batch, time, channels]"
            raise ValueError(must_be("inputs", rule, inputs.shape))
        names, given = ["", *as_specs(condition)], [inputs, *as_specs(condition).values()]
        call, self._specs = any_length(network, given)
        self.inputs = self._specs[0]
        self.conditions: Specs = dict(zip(names[1:], self._specs[1:], strict=True))
        self.layout = layout_of(distribution, "time", self.inputs)
        self.hoisted = hoist_frames(call, self._specs, names[1:])
        if self.hoisted is None:
            self.call = self.exact = in_whole_periods(Traces(call), self._specs)
            self._on_sequence, self._read = self.call, self.conditions
        else:
            self.call, self.exact = Traces(InFrames(call, self._specs)), Traces(call)
            self._on_sequence, self._read = Traces(self.hoisted), self.hoisted.conditions
        self._timed = {name: x for name, x in self._read.items() if is_at_rate(x)}
        start, levels = int(reading.start or 0), reading.codec.levels or 0
        if reading.dtype.is_integer and start >= levels:  # the network may have an entry for it
            graph = self.call.of(specs_at(self._specs, 1, [self.few])).graph
            most = max(symbol_count(graph, unknown=start + 1), levels)
            if start >= most:
                rule = f"below {most}, the symbols that the network can tell apart"
                raise ValueError(must_be("start", rule, reading.start))
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
        length, longest = probe_lengths(call, self.tables, specs, with_random_weights)
        self._longest = max(length, longest) if with_random_weights else self._longest
        levels, names = self.reading.codec.levels, layer_names(self.network)
        fault = observed_fault(call, specs, specs[:1], 0, length, longest, levels, names)
        if fault:
            raise NotCausalError(f"`network` must be causal: {fault}.")
        call.remember()
        if self.hoisted is not None:  # what is computed of frames alone is not in that graph
            self.exact.of(specs_at(self._specs, 2, [self.few]))
            self.exact.remember()
            self.exact.forget()

    def is_as_checked(self) -> bool:
        """Return whether a fresh trace of the network is the one that `check` has remembered."""
        return all(each.is_as_remembered() for each in {self.exact, self._on_sequence})

    def once(self, condition: Condition, length: int) -> Condition:
        """Return a call's conditions with all computed that depends on them alone."""
        if self.hoisted is None:
            return condition
        made = self.hoisted.once({**condition.timed, **condition.fixed}, length)
        return by_time(made, self._timed)

    def parameters(self, symbols: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """See `SymbolNetwork.parameters`."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """Return all positions' parameters for inputs, shifted here, that need not be symbols."""
        self.tables.check([inputs.shape[1]])
        shifted = tf.concat([self.start(tf.shape(inputs)[0]), inputs[:, :-1]], 1)
        shifted.set_shape(inputs.shape)
        call, specs = self.call, self.conditions
        if condition.names() == self._read.keys():
            call, specs = self._on_sequence, self._read
        values = in_order({**condition.timed, **condition.fixed}, specs)
        return self.layout.split_channels(call(shifted, *values))

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

    def stepper(self, condition: Condition) -> Step:
        """See `SteppedSymbols.stepper`."""
        timed = in_order(condition.timed, self._timed)

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            now = [x[:, time][:, tf.newaxis] for x in timed]
            parameters, after = self.stepped.step(state["input"], state["network"], *now)
            return self.layout.split_channels(parameters), after

        return step

    def chunk(self, inputs: tf.Tensor, state: Any, condition: Condition) -> tuple[tf.Tensor, Any]:
        """Compute n symbols' parameters from inputs shifted by one step, and the next state."""
        given = in_order(condition.timed, self._timed)
        parameters, after = self.stepped.step(inputs, state, *given)
        return self.layout.split_channels(parameters), after


def raster_positions(symbols: tf.Tensor) -> tf.Tensor:
    """Return row-major positions, int32 [1, height, width, 1], of [batch, height, width, ...]."""
    height, width = tf.shape(symbols)[1], tf.shape(symbols)[2]
    return tf.reshape(tf.range(height * width), [1, height, width, 1])


class RasterOrder:
    """A masked network over images [batch, height, width, channels] in row-major order.

    The network is not shifted: its output at a pixel must not depend on that pixel. Unless the
    distribution has `channels`, that of pixels, the network outputs parameters for every channel.
    """

    has_step = False
    few = SMALL
    positions = staticmethod(raster_positions)  # the same for all channels of a pixel

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
        self.call = self.exact = Traces(call)
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
        if fault:
            self.call.forget()
            raise NotCausalError(f"`network` must be masked: {fault}.")
        self.call.remember()
        self.call.forget()

    def is_as_checked(self) -> bool:
        """See `TimeOrder.is_as_checked`."""
        return self.call.is_as_remembered()

    def parameters(self, symbols: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """See `SymbolNetwork.parameters`: [batch, height, width, p] or [..., channels, p]."""
        self.tables.check(symbols.shape[1:3])
        values = in_order(condition.fixed, self.conditions)
        outputs = self.call(self.read(symbols), *values)
        if self._whole_pixels:
            return outputs
        shape = tf.concat([tf.shape(symbols), [self._num_parameters]], 0)
        return tf.reshape(outputs, shape)

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """See `TimeOrder.read`."""
        return self.reading(symbols)


def symbols_of(
    network: Any,
    distribution: Distribution,
    codec: Codec,
    order: str,
    conditions: Specs,
    inputs: tf.TensorSpec | None,
    start: float | None,
    input_scale: Sequence[float] | None,
) -> TimeOrder | RasterOrder:
    """Return a network as a `SymbolNetwork` after checking that it is causal."""
    is_time = order == "time"
    frames = [name for name, each in conditions.items() if isinstance(each, Frames)]
    if frames and not is_time:
        raise ValueError(f"`conditions` must have no Frames in raster order, got {frames[0]}.")
    pixels = pixel_channels(distribution)
    spec = input_spec(network, inputs, 0 if is_time else pixels or 1)
    reading = reading_of(codec, spec.dtype, order, start, input_scale)
    kind: Any = TimeOrder if is_time else RasterOrder
    symbols: TimeOrder | RasterOrder = kind(network, distribution, reading, spec, conditions)
    check_parameters(symbols, distribution, symbols.layout)
    symbols.check()
    return symbols
