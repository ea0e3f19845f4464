"""The functions of models of sound: students, WaveNets and vocoders, as `StreamingModel`s."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distill.residual import Condition, Prediction
from distill.student import ParallelWaveNet
from onepass.bundles.function import Functions
from onepass.bundles.sequence_functions import (
    Advanced,
    Conditioning,
    Maybe,
    NoiseSource,
    Size,
    State,
    StateSpecs,
    StreamingModel,
    StreamingRows,
    default_buckets,
    sequence_functions,
    storable,
    whole_pieces,
)
from onepass.foundation.rules import UserError
from onepass.networks.conditions import only_timed
from onepass.replicator.portable.export import named_variables
from onepass.samplers import cached_chunk
from onepass.samplers.fixed_point import draw_by_passes
from onepass.trained import Trained
from wavenet.network import Network, WaveNet
from wavenet.samplers.symbols import SoundSymbols
from wavenet.vocoder import VocoderWaveNet

STUDENT_PIECES = (1600, 16_000)  # approximate samples of the short and the long compiled piece
TEACHER_PIECES = (256, 1024)


def sound_functions(
    model: Trained,
    *,
    batches: Sequence[int] = (),
    buckets: Sequence[int] = (),
    method: str = "cached",
) -> Functions:
    """Return the functions of a model of sound, for sounds of up to the largest of `buckets`.

    `method` is "cached", or "fixed-point" for a network whose samples are drawn by passes.
    """
    streaming = streaming_model(model.network)
    if method == "fixed-point":
        streaming = StreamingTeacher(model.network, passes=True)
    usual = default_buckets(model.front.sample_rate_hz, streaming.hop_samples)
    lengths = sorted(set(buckets)) or usual
    return sequence_functions(streaming, lengths, batches, model.front.temperature)


class StreamingStudent(StreamingModel):
    """The flows of a student as a `StreamingModel`."""

    rows_alone = False

    def __init__(self, student: ParallelWaveNet):
        config, self._student = student.config, student
        self.variables = named_variables(student)
        self.hop_samples, self.side_frames = config.hop_samples, student.side_frames
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        self.channels, self.dtype = config.gate_inputs, student.dtype
        self.pieces = whole_pieces(STUDENT_PIECES, config.hop_samples)
        self._first = student.initial_state(1)

    def state(self) -> StateSpecs:
        """Describe the past inputs of every layer, by number."""
        flat = enumerate(tf.nest.flatten(self._first))
        return {str(n): tf.TensorSpec(x.shape[1:], storable(x.dtype)) for n, x in flat}

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the student's condition of every sample of a segment."""
        made, phase = self._student.condition(frames, speaker, samples, phase, skipped)
        return Conditioning(self._by_sample(made, samples), phase)

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """Return the noise that the flows read."""
        return self._student.noise(source.key, source.row, source.start, samples)

    def advance(
        self, source: NoiseSource, noise: tf.Tensor, channels: Maybe, state: State
    ) -> Advanced:
        """Return the samples that the flows compute from noise, and their layers' past inputs."""
        firsts = enumerate(tf.nest.flatten(self._first))
        flat = [tf.cast(state[str(n)], first.dtype) for n, first in firsts]
        pasts = tf.nest.pack_sequence_as(self._first, flat)
        noise *= source.temperature[:, None]
        flowed, pasts = self._student.advance(noise, pasts, self._condition(channels))
        later = enumerate(tf.nest.flatten(pasts))
        after = {str(n): tf.cast(past, storable(past.dtype)) for n, past in later}
        return tf.cast(flowed.output, tf.float32), after

    def _by_sample(self, condition: Condition, samples: Size) -> Maybe:
        gates = self._student.gate_condition(condition, samples)
        bunch = self._student.config.bunch_samples
        return None if gates is None else tf.repeat(gates, bunch, 1)[:, :samples]

    def _condition(self, channels: Maybe) -> Condition:
        bunch = self._student.config.bunch_samples
        return Condition(None if channels is None else channels[:, ::bunch])


class StreamingResidual(StreamingStudent):
    """The flows of a student that generate a residual, and the recursion from it to the audio.

    The condition's channels are those of the gates, then source, log gain and coefficients.
    """

    def __init__(self, student: ParallelWaveNet):
        super().__init__(student)
        self._order = student.config.prediction_order
        self.has_phase = student.config.source != "none"
        self.channels, self.dtype = student.config.gate_inputs + 2 + self._order, tf.float32

    def _by_sample(self, condition: Condition, samples: Size) -> Maybe:
        if condition.prediction is None:
            raise ValueError("The condition of a residual has a prediction.")
        prediction = condition.prediction
        gates: Any = super()._by_sample(condition, samples)  # never None for a residual student
        source = tf.zeros_like(gates[..., 0]) if condition.source is None else condition.source
        by_row = tf.concat([prediction.log_gain[..., None], prediction.coefficients], -1)
        spread = tf.repeat(by_row, self._student.config.row_samples, 1)[:, :samples]
        parts = (gates, source[..., None], spread)
        return tf.concat([tf.cast(p, self.dtype) for p in parts], -1)

    def _condition(self, channels: Maybe) -> Condition:
        sizes = [self._student.config.gate_inputs, 1, 1, self._order]
        gates, source, log_gain, coefficients = tf.split(channels, sizes, -1)
        every = self._student.config.row_samples
        prediction = Prediction(coefficients[:, ::every], log_gain[:, ::every, 0])
        source = source[..., 0] if self.has_phase else None
        gates = tf.cast(gates, self._student.dtype)[:, :: self._student.config.bunch_samples]
        return Condition(gates, source, prediction)


class StreamingTeacher(StreamingRows):
    """A WaveNet as a `StreamingModel`, which draws each row separately.

    A larger batch sums in a different order, which would make a row depend on its neighbours.
    With `passes`, samples are drawn by the fixed-point sampler, in passes over windows.
    """

    def __init__(self, network: Network, passes: bool = False):
        config, self._network, self._passes = network.config, network, passes
        self._symbols = SoundSymbols(network)
        super().__init__(self._symbols.initial_state(1))
        self.variables = named_variables(network)
        self.hop_samples, self.dtype = config.hop_samples, network.dtype
        self.side_frames = config.frame_width // 2 + 2 if config.feature_channels else 0
        if network.conditioner is not None:
            # The condition's type may differ from the layers'.
            self.dtype, self.side_frames = network.front_dtype, network.conditioner.side_frames
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        context = config.context_channels if config.context_layers else 0
        self.channels = config.gate_inputs - context
        self.pieces = whole_pieces(TEACHER_PIECES, config.hop_samples)

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size
    ) -> Conditioning:
        """Return the network's condition of a segment, computed from its frames and neighbours."""
        del phase
        if frames is None:
            return Conditioning(self._network.condition(None, speaker, samples))
        hop = self.hop_samples
        every: Any = self._network.condition(frames, speaker, tf.shape(frames)[1] * hop)
        return Conditioning(every[:, skipped * hop :][:, :samples])

    def noise(self, source: NoiseSource, samples: int) -> tf.Tensor:
        """Return the noise of the network's likelihood."""
        return self._network.likelihood.noise(source.key, source.row, source.start, samples)

    def draw_next(
        self, temperature: tf.Tensor, noise: tf.Tensor, channels: Maybe, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """See `StreamingRows.draw_next`."""
        network, condition = self._network, only_timed(channels)
        draw = draw_by_passes if self._passes else cached_chunk
        levels, after = draw(
            self._symbols, network.likelihood, noise, condition, temperature, state
        )
        return network.codec.decode(tf.ensure_shape(levels, [1, noise.shape[1]])), after


# The streaming class for each type of network.
STREAMING: dict[type, Callable[[Any], StreamingModel]] = {
    ParallelWaveNet: lambda student: (
        StreamingStudent if student.residual is None else StreamingResidual
    )(student),
    WaveNet: StreamingTeacher,
    VocoderWaveNet: StreamingTeacher,
}


def streaming_model(network: Any) -> StreamingModel:
    """Return the streaming model of a network; raise UserError unless `STREAMING` has its type."""
    if type(network) not in STREAMING:
        known = ", ".join(kind.__name__ for kind in STREAMING)
        given = type(network).__name__
        raise UserError(f"A bundle streams the sound of {known}, and none of {given}.")
    return STREAMING[type(network)](network)
