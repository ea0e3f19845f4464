"""Models of users in time order as pure functions of tensors; see `StreamingModel`.

The step of a network may have any state. Each of its tensors is handed out as it is, with an axis
for the batch before it, in which every row is made alone. A sequence begins where `start` is 0: the
state that is handed in is then of no account.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.samplers import cached_chunk
from autoregressive.storage.program import function_of, network_specs, variables_of
from distill.flow_student import FlowStudent
from serving.bundles.streaming_models import Conditioning, Filled, NoiseSource, State

PIECES = (256, 1024)  # elements that are compiled as one, at most
SOUND, ELEMENTS = "sound", "elements"


class StreamingSequence:
    """A model in time order that is asked for its next elements; see `StreamingModel`.

    Args:
      model: has `codec`, `condition_channels` and `sample_rate_hz`.
      longest: elements of the longest sequence.
      first: state before the first element of one row.
      networks: as functions of one input signature.

    Raises:
      NotCausalError, UnsupportedNetworkError: a network has no step.
    """

    has_phase = False
    rows_alone = True
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
        """Return every tensor of the step's state by its number."""
        return {
            str(n): (_storable(tf.as_dtype(value.dtype)), value.shape, 0)
            for n, value in enumerate(self._first)
        }

    def conditioning(self, frames, speaker, samples, phase, skipped, start) -> Conditioning:
        """Return the rows of the condition; see `StreamingModel`."""
        del speaker, phase, start
        return Conditioning(None if frames is None else frames[:, skipped:][:, :samples])

    def advance(self, source: NoiseSource, channels, state: State, samples: int):
        """Return the next elements of one row and the state after them; see `StreamingModel`."""
        before = [
            tf.where(source.start[0] == 0, first, tf.cast(state[str(n)][0], first.dtype))
            for n, first in enumerate(self._first)
        ]
        packed = tf.nest.pack_sequence_as(self._structure, before)
        source = dataclasses.replace(source, row=tf.ensure_shape(source.row, [1]))
        if channels is not None:
            channels = tf.ensure_shape(channels, [1, samples, self.channels])
        elements, after = self._next(source, channels, packed, samples)
        stored = {
            str(n): tf.cast(value, _storable(value.dtype))[tf.newaxis]
            for n, value in enumerate(tf.nest.flatten(after))
        }
        return tf.ensure_shape(tf.cast(elements, tf.float32), [1, samples]), stored

    def _next(self, source: NoiseSource, channels, state: Any, samples: int) -> tuple[Any, Any]:
        raise NotImplementedError


class StreamingAutoregressive(StreamingSequence):
    """A model that draws every element from those before it."""

    def __init__(self, model: Autoregressive, longest: int):
        network = model.symbol_network
        call = function_of(network.call, network_specs(model))
        super().__init__(model, longest, network.initial_state(1), [call])

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


def _storable(dtype: tf.DType) -> tf.DType:
    """Return the type that a state is handed out in: every protocol has one for it."""
    if dtype == tf.bool:
        return tf.int32
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype
