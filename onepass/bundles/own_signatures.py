"""The signatures of users' models.

Sequences whose network has a step are generated piece by piece, like audio (`audio_signatures`).
Images, and sequences whose network has no step, have one shape and are sampled by passes over the
whole array. `log_prob` returns the log probability of every element.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.audio_signatures import MAX_TEMPERATURE
from onepass.bundles.condition_inputs import ELEMENTS
from onepass.bundles.functions import (
    ROWS_AT_ONCE,
    Exported,
    Tensors,
    row_function,
    serving_spec,
    specs_of,
)
from onepass.bundles.image_signatures import BATCHES, seed_key
from onepass.bundles.own_conditions import Conditions
from onepass.bundles.signature import (
    COMPILED,
    IMAGE,
    LOG_PROB,
    PLAIN,
    SOUND,
    Signature,
    TensorInfo,
)
from onepass.bundles.streaming_models import (
    Advanced,
    Conditioning,
    Filled,
    Maybe,
    NoiseSource,
    Size,
    State,
    StreamingModel,
    storable,
)
from onepass.likelihoods.capabilities import pixel_channels, tempers
from onepass.model import Autoregressive
from onepass.networks.condition_values import given_once
from onepass.networks.named_conditions import NamedConditions
from onepass.networks.named_conditions import first_state as state_before
from onepass.samplers import cached_chunk
from onepass.samplers.cached import sample_cached
from onepass.samplers.fixed_point import fixed_point
from onepass.storage.program import function_of, network_specs, variables_of

PIECES = (256, 1024)  # largest numbers of elements that are compiled as one piece
INT32, INT64, FLOAT32, UINT8 = map(np.dtype, (np.int32, np.int64, np.float32, np.uint8))


class StreamingSequence(StreamingModel):
    """A user's model in time order as a `StreamingModel`, which continues from a state.

    Args:
      first: state before the first element of one row, if all its conditions are zeros.
      networks: the networks that the step calls, as `tf.function`s with one input signature; their
        variables are the model's.
    """

    hop_samples, side_frames, speakers = 1, 0, 0
    limits: tuple[float, float] | None = None
    largest_feature: float | None = None

    def __init__(
        self, model: Any, longest: int, first: Any, networks: list[Any], conditions: Conditions
    ):
        # A derived step reads variables by their handles, so they must be listed.
        self.variables = tuple(
            variables_of(network.get_concrete_function() for network in networks)
        )
        self._model, self._structure = model, first
        self._first = [tf.convert_to_tensor(tensor).numpy() for tensor in tf.nest.flatten(first)]
        self.conditions, self._longest, self.dtype = conditions, longest, conditions.dtype
        self.feature_channels = self.channels = conditions.channels
        self.output = ELEMENTS if model.sample_rate_hz is None else SOUND
        short = min(PIECES[0], longest)
        self.pieces: tuple[int, int] = (short, max(short, min(PIECES[1], longest) // short * short))

    def state(self) -> dict[str, Filled]:
        """Return dtype, shape and initial value of the state's nonempty tensors, by flat index."""
        stored = {n: _as_stored(tf.constant(value)) for n, value in enumerate(self._first)}
        return {
            str(n): (value.dtype, tuple(value.shape), 0)
            for n, value in stored.items()
            if 0 not in value.shape  # no protocol supports empty inputs
        }

    def begin_rows(self, given: Tensors, state: State) -> State:
        """Return the state; rows at position 0, or all without `start`, get the first state."""
        fixed, start = self.conditions.select_fixed(given), given.get("start")
        if not fixed:
            return state

        def row(n: tf.Tensor) -> State:
            def first() -> State:
                made = self._state_of({name: x[n][tf.newaxis] for name, x in fixed.items()})
                return {name: value[0] for name, value in self.pack_state(made).items()}

            if start is None:
                return first()
            # Only for rows at position 0, as it may run networks over the conditions.
            return tf.cond(start[n] == 0, first, lambda: {name: x[n] for name, x in state.items()})

        return tf.map_fn(
            row,
            tf.range(tf.shape(next(iter(fixed.values())))[0]),
            fn_output_signature={n: tf.TensorSpec(x.shape[1:], x.dtype) for n, x in state.items()},
            parallel_iterations=ROWS_AT_ONCE,
        )

    def name_inputs(self, signature: Signature) -> Signature:
        """Return a signature in which the inputs of the conditions replace `frames`."""
        return self.conditions.name_inputs(signature)

    def join_frames(self, given: Tensors) -> Tensors:
        """Return the inputs with the conditions that have a time axis concatenated to `frames`."""
        return self.conditions.join_frames(given)

    def count_inputs(self) -> dict[str, str]:
        """Return the inputs whose rows are padded, each with the input that counts its length."""
        return self.conditions.count_inputs()

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size, start: Size
    ) -> Conditioning:
        """Return the frames of the segment, exactly one per element, without neighbours."""
        del speaker, phase, start
        return Conditioning(None if frames is None else frames[:, skipped:][:, :samples])

    def advance(self, source: NoiseSource, channels: Maybe, state: State, samples: int) -> Advanced:
        """Return the next elements of one row, float32 [1, samples], and the state after them."""
        before = self.unpack_state(source.start, state)
        source = dataclasses.replace(source, row=tf.ensure_shape(source.row, [1]))
        if channels is not None:
            channels = tf.ensure_shape(channels, [1, samples, self.channels])
        elements, after = self._next(source, channels, before, samples)
        made = tf.ensure_shape(tf.cast(elements, tf.float32), [1, samples])
        return made, self.pack_state(after)

    def unpack_state(self, start: tf.Tensor, state: State) -> Any:
        """Return the step's state of one row; at position 0, the first state (see `begin_rows`)."""
        before = []
        for n, first in enumerate(self._first):
            if not first.size:
                before.append(tf.constant(first))
                continue
            value = _from_stored(state[str(n)][0], tf.as_dtype(first.dtype))
            # If the first state depends on the conditions, `begin_rows` set it; otherwise it is set
            # here, whatever a client sent at position 0.
            is_made = self.conditions.has_fixed
            before.append(value if is_made else tf.where(start[0] == 0, first, value))
        return tf.nest.pack_sequence_as(self._structure, before)

    def pack_state(self, state: Any) -> State:
        """Return the step's state of one row by name, in types that all protocols support."""
        flat = zip(tf.nest.flatten(state), self._first, strict=True)
        return {
            str(n): _as_stored(tf.ensure_shape(value, first.shape))[tf.newaxis]
            for n, (value, first) in enumerate(flat)
            if first.size
        }

    def _state_of(self, fixed: Tensors) -> Any:
        """Return the step's state before a row's first element, for its constant conditions."""
        raise NotImplementedError

    def _next(
        self, source: NoiseSource, channels: Maybe, state: Any, samples: int
    ) -> tuple[tf.Tensor, Any]:
        raise NotImplementedError


def _as_stored(value: tf.Tensor) -> tf.Tensor:
    if value.dtype.is_complex:
        value = tf.stack([tf.math.real(value), tf.math.imag(value)], -1)
    return tf.cast(value, storable(value.dtype))


def _from_stored(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_complex:
        parts = tf.cast(value, dtype.real_dtype)
        return tf.complex(parts[..., 0], parts[..., 1])
    return tf.cast(value, dtype)


class StreamingAutoregressive(StreamingSequence):
    """The streaming form of an `Autoregressive`, which draws one element after another."""

    def __init__(self, model: Autoregressive, longest: int, conditions: Conditions):
        network = model.symbol_network
        specs = network_specs(model)
        call = function_of(network.call, specs)
        first = state_before(network, 1, longest, NamedConditions({}, conditions.zeros()))
        super().__init__(model, longest, first, [call], conditions)
        self.tempers = tempers(model.distribution)

    def _state_of(self, fixed: Tensors) -> Any:
        network = self._model.symbol_network
        return state_before(network, 1, self._longest, NamedConditions({}, fixed))

    def _next(
        self, source: NoiseSource, channels: Maybe, state: Any, samples: int
    ) -> tuple[tf.Tensor, Any]:
        model, condition = self._model, self.conditions.split_frames(channels)
        noise = model.distribution.noise(source.key[0], source.row, source.start[0], samples)
        symbols, after = cached_chunk(
            model.symbol_network, model.distribution, noise, condition, source.temperature[0], state
        )
        return model.codec.decode(symbols), after


class StreamingFlows(StreamingSequence):
    """The streaming form of a student, which computes a piece's elements from its noise at once."""

    def __init__(self, student: FlowStudent, longest: int, conditions: Conditions):
        calls = [function_of(call, student.specs) for call in student.calls]
        super().__init__(student, longest, student.initial_state(1), calls, conditions)

    def _next(
        self, source: NoiseSource, channels: Maybe, state: Any, samples: int
    ) -> tuple[tf.Tensor, Any]:
        noise = self._model.noise(source.key[0], source.row, samples, source.start[0])
        values, after = self._model.step(source.temperature[0] * noise, state, channels)
        return self._model.elements(values), after


def of_shape(
    model: Autoregressive, shape: tuple[int, ...], is_byte_image: bool, conditions: Conditions
) -> Exported:
    """Return the signatures that generate whole rows, for a model whose arrays have one shape.

    For an 8-bit image, the output's name and the shape of the temperature are as for an image
    model.
    """
    output = IMAGE if is_byte_image else ELEMENTS
    info = TensorInfo(UINT8 if is_byte_image else element_type(model), (None, *shape))
    heat = (None, 1) if is_byte_image else (None,)
    coldest, hottest = (0.0, MAX_TEMPERATURE) if tempers(model.distribution) else (1.0, 1.0)
    inputs = {
        "seed": TensorInfo(INT64, (None,), default=0),
        "row": TensorInfo(INT32, (None,), low=0, default=0),
        "temperature": TensorInfo(FLOAT32, heat, coldest, hottest, 1),
    }
    inputs |= conditions.infos(shape[:1] if model.order == "time" else shape[:2])
    signature = Signature(inputs, {output: info})
    draw = drawer(model, shape, conditions)

    def elements(*given: Any) -> tf.Tensor:
        return model.codec.decode(draw(*given))

    functions = {}
    for name, compiled in ((PLAIN, False), (COMPILED, True)):
        drawn = tf.function(elements, autograph=False, jit_compile=compiled)
        functions[name] = row_function(signature, _row(drawn, output, info, conditions))
    serving = serving_spec(dict.fromkeys(functions, signature), BATCHES)
    return Exported(functions, serving, _weights(model) if conditions.at_frame_rate else ())


def _weights(model: Autoregressive) -> tuple[tf.Variable, ...]:
    """Return the network's variables, which steps read by their handles."""
    call = function_of(model.symbol_network.call, network_specs(model))
    return tuple(variables_of([call.get_concrete_function()]))


def offer_log_prob(
    exported: Exported,
    model: Autoregressive,
    channels: int | None,
    conditions: Conditions,
    length: int | None = None,
) -> None:
    """Add the signature `log_prob` of given elements; sequences have no `channels`."""
    axes = (None, length) if channels is None else (None, None, None, channels)
    inputs = {ELEMENTS: TensorInfo(element_type(model), axes, *element_range(model))}
    inputs |= conditions.infos([length] if channels is None else [None, None])
    # A distribution over whole pixels has one value per pixel, any other one per element.
    axes_out = len(axes) - (channels is not None and pixel_channels(model.distribution) is not None)

    @tf.function(autograph=False, input_signature=specs_of(inputs))
    def log_prob(*tensors: tf.Tensor) -> Tensors:
        given = dict(zip(inputs, tensors, strict=True))
        found = tf.cast(model.log_prob(given[ELEMENTS], conditions.of(given)), tf.float32)
        return {LOG_PROB: tf.ensure_shape(found, [None] * axes_out)}

    function = log_prob.get_concrete_function()
    shape = function.structured_outputs[LOG_PROB].shape.as_list()
    signature = Signature(inputs, {LOG_PROB: TensorInfo(FLOAT32, tuple(shape))})
    exported.offer(LOG_PROB, signature, function)


def element_type(model: Any) -> np.dtype:
    """Return int32 or float32, the type of a model's elements."""
    zero = model.codec.decode(tf.zeros([], tf.float32 if model.codec.levels is None else tf.int32))
    return INT32 if tf.as_dtype(zero.dtype).is_integer else FLOAT32


def elements_of(model: Any) -> dict[str, Any]:
    """Return the entry of model.json for a model's elements: their type and number of levels."""
    return {"dtype": element_type(model).name, "levels": model.codec.levels}


def element_range(model: Any) -> tuple[float | None, float | None]:
    """Return the lowest and highest element allowed, with margins for floats, or two Nones."""
    levels = model.codec.levels
    if levels is None:
        return None, None
    with tf.init_scope():  # this may be called while tracing
        ends = [float(model.codec.decode(tf.constant(end))) for end in (0, levels - 1)]
    low, high = sorted(ends)
    # Real-valued elements may leave the range by rounding.
    slack = 0.0 if element_type(model) == INT32 else 1e-6 * (high - low)
    return low - slack, high + slack


def drawer(
    model: Autoregressive,
    shape: tuple[int, ...],
    conditions: Conditions,
    distribution: Any = None,
) -> Callable[..., tf.Tensor]:
    """Return a function that draws the symbols of a row [1, *shape], all in one call.

    They are drawn by passes over the whole row. A model that reads frames has a step, as a rule.

    The function's arguments are the seed's key, the row's number [1], the temperature as the
    distribution takes it, the condition, and the prompt or None.
    """
    positions = shape[:2] if pixel_channels(model.distribution) else shape
    draws = distribution or model.distribution

    def draw_row(
        key: tf.Tensor, row: tf.Tensor, heat: Any, condition: Any = None, prompt: Any = None
    ) -> tf.Tensor:
        noise = model.distribution.noise(key, row, 0, math.prod(positions))
        noise = tf.reshape(noise, [1, *positions, noise.shape[-1]])
        network: Any = model.symbol_network
        if conditions.at_frame_rate:
            condition = given_once(network, condition, model.order, (1, *shape))
            if network.has_step:
                return sample_cached(network, draws, noise, condition, heat, prompt)
        return fixed_point(network, draws, noise, condition, heat, prompt).symbols

    return draw_row


def _row(drawn: Any, output: str, info: TensorInfo, conditions: Conditions) -> Any:
    def row(given: Tensors) -> Tensors:
        temperature = tf.reshape(given["temperature"], [])
        made = drawn(seed_key(given["seed"]), given["row"], temperature, conditions.of(given))
        return {output: tf.cast(tf.ensure_shape(made, [1, *info.shape[1:]])[0], info.dtype)}

    return row
