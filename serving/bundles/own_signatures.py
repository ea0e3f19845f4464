"""The functions by which models of users are served.

Sequences whose networks have a step are made piece by piece, as sound is (`audio_signatures`).
Images, and sequences whose network has none, have one shape and are made by passes over all of it.
`log_prob` gives the log-probability of every element.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.samplers import cached_chunk
from autoregressive.samplers.fixed_point import fixed_point
from autoregressive.storage.program import function_of, network_specs, variables_of
from distill.flow_student import FlowStudent
from likelihoods.capabilities import pixel_channels, tempers
from serving.bundles.audio_signatures import MAX_TEMPERATURE
from serving.bundles.functions import Tensors, row_function, serving_spec, specs_of
from serving.bundles.image_signatures import BATCHES, seed_key
from serving.bundles.signature import COMPILED, LOG_PROB, PLAIN, Signature, TensorInfo
from serving.bundles.streaming_models import (
    Conditioning,
    Filled,
    NoiseSource,
    State,
    StreamingModel,
    storable,
)

PIECES = (256, 1024)  # elements that are compiled as one, at most
SOUND, ELEMENTS = "sound", "elements"
IMAGE = "picture"
INT32, INT64, FLOAT32, UINT8 = map(np.dtype, (np.int32, np.int64, np.float32, np.uint8))


class StreamingSequence(StreamingModel):
    """A model in time order that is asked for its next elements; see `StreamingModel`.

    Args:
      longest: elements of the longest sequence.
      first: state before the first element of one row.
      networks: as functions of one input signature.
    """

    hop_samples, side_frames, speakers = 1, 0, 0
    dtype = tf.float32
    limits: tuple[float, float] | None = None
    largest_feature: float | None = None

    def __init__(self, model: Any, longest: int, first: Any, networks: list[Any]):
        # A derived step reads them by their handles, which does not name them.
        self.variables = tuple(
            variables_of(network.get_concrete_function() for network in networks)
        )
        self._model, self._structure = model, first
        self._first = [tf.convert_to_tensor(tensor).numpy() for tensor in tf.nest.flatten(first)]
        self.feature_channels = self.channels = model.condition_channels
        self.output = ELEMENTS if model.sample_rate_hz is None else SOUND
        short = min(PIECES[0], longest)
        self.pieces: tuple[int, int] = (short, max(short, min(PIECES[1], longest) // short * short))

    def state(self) -> dict[str, Filled]:
        """Return every tensor of the step's state by its number, but those without a number."""
        return {
            str(n): (storable(tf.as_dtype(value.dtype)), value.shape, 0)
            for n, value in enumerate(self._first)
            if value.size  # no protocol has an input without one
        }

    def conditioning(self, frames, speaker, samples, phase, skipped, start) -> Conditioning:
        """Return the rows of the condition; see `StreamingModel`."""
        del speaker, phase, start
        return Conditioning(None if frames is None else frames[:, skipped:][:, :samples])

    def advance(self, source: NoiseSource, channels, state: State, samples: int):
        """Return the next elements of one row and the state after them; see `StreamingModel`."""
        before = self.unpacked(source.start, state)
        source = dataclasses.replace(source, row=tf.ensure_shape(source.row, [1]))
        if channels is not None:
            channels = tf.ensure_shape(channels, [1, samples, self.channels])
        elements, after = self._next(source, channels, before, samples)
        made = tf.ensure_shape(tf.cast(elements, tf.float32), [1, samples])
        return made, self.packed(after)

    def unpacked(self, start: tf.Tensor, state: State) -> Any:
        """Return the step's state of one row, the first one at position 0.

        Args:
          start: int32 [1], position of the next element.
          state: as it is handed out.
        """
        before = [
            tf.where(start[0] == 0, first, tf.cast(state[str(n)][0], first.dtype))
            if first.size
            else tf.constant(first)
            for n, first in enumerate(self._first)
        ]
        return tf.nest.pack_sequence_as(self._structure, before)

    def packed(self, state: Any) -> State:
        """Return the step's state of one row as it is handed out."""
        flat = zip(tf.nest.flatten(state), self._first, strict=True)
        stored = {str(n): (value, first.shape) for n, (value, first) in enumerate(flat)}
        return {
            name: tf.ensure_shape(tf.cast(value, storable(value.dtype))[tf.newaxis], [1, *shape])
            for name, (value, shape) in stored.items()
            if 0 not in shape
        }

    def _next(self, source: NoiseSource, channels, state: Any, samples: int) -> tuple[Any, Any]:
        raise NotImplementedError


class StreamingAutoregressive(StreamingSequence):
    """A model that draws every element from those before it."""

    def __init__(self, model: Autoregressive, longest: int):
        network = model.symbol_network
        call = function_of(network.call, network_specs(model))
        super().__init__(model, longest, network.initial_state(1, longest), [call])
        self.tempers = tempers(model.distribution)

    def _next(self, source: NoiseSource, channels, state: Any, samples: int) -> tuple[Any, Any]:
        model = self._model
        noise = model.distribution.noise(source.key[0], source.row, source.start[0], samples)
        given = (noise, channels, source.temperature[0], state)
        symbols, after = cached_chunk(model.symbol_network, model.distribution, *given)
        return model.codec.decode(symbols), after


class StreamingFlows(StreamingSequence):
    """A student that makes all elements of a piece from its noise at once."""

    def __init__(self, student: FlowStudent, longest: int):
        calls = [function_of(call, student.specs) for call in student.calls]
        super().__init__(student, longest, student.initial_state(1), calls)

    def _next(self, source: NoiseSource, channels, state: Any, samples: int) -> tuple[Any, Any]:
        noise = self._model.noise(source.key[0], source.row, samples, source.start[0])
        values, after = self._model.step(source.temperature[0] * noise, state, channels)
        return self._model.elements(values), after


class Exported(NamedTuple):
    """The concrete functions by signature, and `serving` of model.json.

    variables: that the functions read, besides those that they know of themselves.
    """

    functions: dict[str, Any]
    serving: dict[str, Any]
    variables: tuple = ()


def of_shape(model: Autoregressive, shape: tuple[int, ...], is_byte_image: bool) -> Exported:
    """Return the functions of a model that makes arrays of one shape, without the batch axis.

    `is_byte_image` says that it is an 8-bit image, whose output and temperature are then an image
    model's.
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
    if model.condition_channels:
        inputs["frames"] = TensorInfo(FLOAT32, (None, shape[0], model.condition_channels))
    signature = Signature(inputs, {output: info})
    functions = {}
    for name, compiled in ((PLAIN, False), (COMPILED, True)):
        drawn = tf.function(_drawer(model, shape), autograph=False, jit_compile=compiled)
        functions[name] = row_function(signature, _row(drawn, output, info))
    return Exported(functions, serving_spec(dict.fromkeys(functions, signature), BATCHES))


def with_log_prob(exported: Exported, model: Autoregressive, channels: int | None) -> Exported:
    """Return the functions and `log_prob`, from elements, and a condition where there is one.

    The channels are those of an image; None: sequences.
    """
    axes = (None, None) if channels is None else (None, None, None, channels)
    inputs = {ELEMENTS: TensorInfo(element_type(model), axes, *element_range(model))}
    if model.condition_channels:
        inputs["frames"] = TensorInfo(FLOAT32, (None, None, model.condition_channels))
    axes_out = len(axes) - (channels is not None and pixel_channels(model.distribution) is not None)

    @tf.function(autograph=False, input_signature=specs_of(inputs))
    def log_prob(*given: tf.Tensor) -> Tensors:
        found = tf.cast(model.log_prob(*given), tf.float32)
        return {LOG_PROB: tf.ensure_shape(found, [None] * axes_out)}

    function = log_prob.get_concrete_function()
    shape = function.structured_outputs[LOG_PROB].shape.as_list()
    signature = Signature(inputs, {LOG_PROB: TensorInfo(FLOAT32, tuple(shape))})
    functions = {**exported.functions, LOG_PROB: function}
    signatures = {**exported.serving["signatures"], LOG_PROB: signature.to_dict()}
    return exported._replace(
        functions=functions, serving={**exported.serving, "signatures": signatures}
    )


def element_type(model: Any) -> np.dtype:
    """Return int32 or float32, the type of a model's elements."""
    zero = model.codec.decode(tf.zeros([], tf.float32 if model.codec.levels is None else tf.int32))
    return INT32 if tf.as_dtype(zero.dtype).is_integer else FLOAT32


def elements_of(model: Any) -> dict[str, Any]:
    """Return what model.json says of a model's elements: their type, and how many levels."""
    return {"dtype": element_type(model).name, "levels": model.codec.levels}


def element_range(model: Any) -> tuple[float | None, float | None]:
    """Return the least and the greatest element, None where there is none."""
    levels = model.codec.levels
    if levels is None:
        return None, None
    with tf.init_scope():  # where a function is traced
        ends = [float(model.codec.decode(tf.constant(end))) for end in (0, levels - 1)]
    low, high = sorted(ends)
    # Real elements may leave the range by their rounding.
    slack = 0.0 if element_type(model) == INT32 else 1e-6 * (high - low)
    return low - slack, high + slack


def _drawer(model: Autoregressive, shape: tuple[int, ...]):
    """Return a function of a row's key, number, temperature and condition to its elements."""
    positions = shape[:2] if pixel_channels(model.distribution) else shape

    def drawn(key, row, temperature, condition=None) -> tf.Tensor:
        noise = model.distribution.noise(key, row, 0, math.prod(positions))
        noise = tf.reshape(noise, [1, *positions, noise.shape[-1]])
        given = (noise, condition, temperature)
        symbols = fixed_point(model.symbol_network, model.distribution, *given)
        return model.codec.decode(symbols)

    return drawn


def _row(drawn: Any, output: str, info: TensorInfo) -> Any:
    """Return the function of a row, for `row_function`."""

    def row(given: Tensors) -> Tensors:
        condition = (given["frames"],) if "frames" in given else ()
        temperature = tf.reshape(given["temperature"], [])
        made = drawn(seed_key(given["seed"]), given["row"], temperature, *condition)
        return {output: tf.cast(tf.ensure_shape(made, [1, *info.shape[1:]])[0], info.dtype)}

    return row
