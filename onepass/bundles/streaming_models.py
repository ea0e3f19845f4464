"""Students and WaveNets as pure functions of tensors, which the signatures of audio models call.

A streaming model continues from a state of tensors [batch, ...], with independent rows.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from distill.residual import Prediction
from distill.student import Condition, ParallelWaveNet
from onepass.bundles.signature import Signature
from onepass.foundation.errors import UserError
from wavenet.network import WaveNet
from wavenet.samplers import SamplerState, VocoderSampler, VocoderState, XlaSampler
from wavenet.vocoder import VocoderWaveNet

State = dict[str, Any]
Filled = tuple[tf.DType, tuple[int, ...], float]  # dtype, shape without batch axis, initial value
Maybe: TypeAlias = tf.Tensor | None
Size: TypeAlias = tf.Tensor | int  # int32 []
Advanced = tuple[tf.Tensor, State]  # new samples, and the state after them
STUDENT_PIECES = (1600, 16_000)  # approximate samples of the short and the long compiled piece
TEACHER_PIECES = (256, 1024)
PASTS = ("wave", "residual", "scaled")  # fields of a `VocoderState`
MAX_FEATURE = 4.0  # silence is 0 and full scale about 1; filters overflow far beyond
FULL_SCALE = (-1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Conditioning:
    """The condition of a segment, and the source's phase after it, float64 [batch], or None."""

    channels: Any
    phase: Any = None


@dataclasses.dataclass(frozen=True)
class NoiseSource:
    """The numbers that determine the noise of a segment, which depends on nothing else.

    Attributes:
      key: int32 [batch, 2], the high and the low 32 bits of the seed.
      temperature: float32 [batch], factor of the noise, or temperature of a distribution.
    """

    key: Any
    row: Any
    start: Any
    temperature: Any

    def after(self, samples: Size) -> "NoiseSource":
        """Return the noise that starts `samples` samples later."""
        return dataclasses.replace(self, start=self.start + samples)


class StreamingModel:
    """A model as pure functions that continue from a state; by default a model of speech.

    Attributes:
      hop_samples, feature_channels, speakers: the network's settings of frames and speakers.
      pieces: the short and the long compiled length, in samples; the first divides the second.
      rows_alone: whether each row must be computed with batch size 1.
      limits: lowest and highest sample, to which samples are clipped; None: no limits.
      largest_feature: largest magnitude allowed in `frames`; None: any.
    """

    variables: tuple
    hop_samples: int
    feature_channels: int
    speakers: int
    side_frames: int
    pieces: tuple[int, int]
    channels: int
    dtype: tf.DType
    has_phase: bool = False
    rows_alone: bool = True
    output = "sound"
    limits: tuple[float, float] | None = FULL_SCALE
    largest_feature: float | None = MAX_FEATURE
    tempers: bool = True  # whether temperatures other than 1 are allowed

    def state(self) -> dict[str, Filled]:
        """Return the dtype, shape and initial value of every tensor of the state, by name."""
        raise NotImplementedError

    def begin_rows(self, given: State, state: State) -> State:
        """Return the state, with new rows initialised from their inputs; by default unchanged."""
        del given
        return state

    def name_inputs(self, signature: Signature) -> Signature:
        """Replace inputs of a signature by those that clients send; by default unchanged."""
        return signature

    def join_frames(self, given: State) -> State:
        """Convert inputs that clients send (`name_inputs`) to the model's; by default unchanged."""
        return given

    def count_inputs(self) -> dict[str, str]:
        """Return the inputs whose rows are padded, each with the input that counts its length."""
        return {"frames": "num_frames"} if self.feature_channels else {}

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size, start: Size
    ) -> Conditioning:
        """Return the condition of a segment of one sound.

        Args:
          frames: float32 [1, frames, features], including neighbours on both sides, or None.
          phase: float64 [1], the source's phase before the segment in cycles, or None.
          skipped: int32 [], number of frames before the segment.
          start: int32 [], position of the first frame's first sample in the sound.
        """
        raise NotImplementedError

    def advance(self, source: NoiseSource, channels: Maybe, state: State, samples: int) -> Advanced:
        """Return the next samples, float32 [batch, samples], under `channels`, and the state."""
        raise NotImplementedError


class StreamingStudent(StreamingModel):
    """The flows of a student as a `StreamingModel`."""

    rows_alone = False

    def __init__(self, student: ParallelWaveNet):
        config, self._student = student.config, student
        self.variables = tuple(student.variables)
        self.hop_samples, self.side_frames = config.hop_samples, student.side_frames
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        self.channels, self.dtype = config.gate_inputs, student.dtype
        self.pieces = whole_pieces(STUDENT_PIECES, config.hop_samples)

    def state(self) -> dict[str, Filled]:
        """Describe `fronts` [flows, width] and `windows` [rows, channels], past layer inputs."""
        flows, config = self._student.flows, self._student.config
        rows = sum(layer.past_samples for flow in flows for layer in flow.layers)
        outer = flows[0].outer_dtype
        return {
            "fronts": (outer, (len(flows), config.front_width), 0),
            "windows": (storable(self.dtype), (rows, config.residual_channels), 0),
        }

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size, start: Size
    ) -> Conditioning:
        """Return the student's condition of every sample of a segment."""
        del start
        made, phase = self._student.condition(frames, speaker, samples, phase, skipped)
        return Conditioning(self._by_sample(made, samples), phase)

    def advance(self, source: NoiseSource, channels: Maybe, state: State, samples: int) -> Advanced:
        """Return the samples that the flows compute from noise, and their layers' past inputs."""
        noise = self._student.noise(source.key, source.row, source.start, samples)
        pasts = self._pasts(state)
        noise *= source.temperature[:, None]
        flowed, pasts = self._student.advance(noise, pasts, self._condition(channels))
        return tf.cast(flowed.output, tf.float32), self._store_state(pasts)

    def _by_sample(self, condition: Condition, samples: Size) -> Maybe:
        gates = self._student.gate_condition(condition, samples)
        bunch = self._student.config.bunch_samples
        return None if gates is None else tf.repeat(gates, bunch, 1)[:, :samples]

    def _condition(self, channels: Maybe) -> Condition:
        bunch = self._student.config.bunch_samples
        return Condition(None if channels is None else channels[:, ::bunch])

    def _pasts(self, state: State) -> list[list[tf.Tensor]]:
        windows, first, pasts = tf.cast(state["windows"], self.dtype), 0, []
        for i, flow in enumerate(self._student.flows):
            past = [state["fronts"][:, i]]
            for layer in flow.layers:
                past.append(windows[:, first : first + layer.past_samples])
                first += layer.past_samples
            pasts.append(past)
        return pasts

    def _store_state(self, pasts: list[list[tf.Tensor]]) -> State:
        fronts = tf.stack([past[0] for past in pasts], 1)
        windows = tf.concat([window for past in pasts for window in past[1:]], 1)
        return {"fronts": fronts, "windows": tf.cast(windows, storable(self.dtype))}


class StreamingResidual(StreamingStudent):
    """The flows of a student that generate a residual, and the recursion from it to the audio.

    The condition's channels are those of the gates, then source, log gain and coefficients.
    """

    def __init__(self, student: ParallelWaveNet):
        super().__init__(student)
        self._order = student.config.prediction_order
        self.has_phase = student.config.source != "none"
        self.channels, self.dtype = student.config.gate_inputs + 2 + self._order, tf.float32

    def state(self) -> dict[str, Filled]:
        """Describe the state of `StreamingStudent` and `wave` [order], the newest samples."""
        outer = self._student.flows[0].outer_dtype
        return {**super().state(), "wave": (outer, (self._order,), 0)}

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

    def _pasts(self, state: State) -> list[list[tf.Tensor]]:
        return [*super()._pasts(state), [state["wave"]]]

    def _store_state(self, pasts: list[list[tf.Tensor]]) -> State:
        return {**super()._store_state(pasts[:-1]), "wave": pasts[-1][0]}


class StreamingTeacher(StreamingModel):
    """The cached sampler of a WaveNet as a `StreamingModel` that computes each row separately.

    A larger batch sums in a different order, which would make a row depend on its neighbours.
    """

    sampler_type: Any = XlaSampler

    def __init__(self, network: WaveNet | VocoderWaveNet):
        config, self._network = network.config, network
        self._sampler: Any = self.sampler_type(network)
        self.variables = tuple(network.variables)
        self.hop_samples, self.dtype = config.hop_samples, network.dtype
        self.side_frames = config.frame_width // 2 + 2 if config.feature_channels else 0
        self.feature_channels, self.speakers = config.feature_channels, config.speakers
        context = config.context_channels if config.context_layers else 0
        self.channels = config.gate_inputs - context
        block = config.context_block_samples
        whole = whole_pieces(TEACHER_PIECES, config.hop_samples)
        self.pieces = (block, block) if context else whole

    def state(self) -> dict[str, Filled]:
        """Describe `past`, `queues` [slots, channels] and, with a context stack, `blocks`."""
        config, network = self._network.config, self._network
        past: Filled = (tf.float32, (config.front_width,), 0)
        if config.reads_levels:
            past = (tf.int32, (1,), config.levels)
        slots = (self._sampler.rings.slots, config.residual_channels)
        state: dict[str, Filled] = {"past": past, "queues": (storable(network.dtype), slots, 0)}
        if config.context_layers:
            blocks = (config.context_blocks, config.context_block_samples)
            state["blocks"] = (tf.float32, blocks, 0)
        return state

    def conditioning(
        self, frames: Maybe, speaker: Maybe, samples: Size, phase: Maybe, skipped: Size, start: Size
    ) -> Conditioning:
        """Return the network's condition of a segment, computed from its frames and neighbours."""
        del phase, start
        if frames is None:
            return Conditioning(self._network.condition(None, speaker, samples))
        hop = self.hop_samples
        every: Any = self._network.condition(frames, speaker, tf.shape(frames)[1] * hop)
        return Conditioning(every[:, skipped * hop :][:, :samples])

    def advance(self, source: NoiseSource, channels: Maybe, state: State, samples: int) -> Advanced:
        """Return the samples that the sampler draws, one by one, and the state after them."""
        network = self._network
        noise = network.likelihood.noise(source.key, source.row, source.start, samples)
        blocks = state.get("blocks")
        if blocks is None:
            blocks = tf.zeros([tf.shape(noise)[0], 0, 0])
        before = SamplerState(tf.constant(0), state["past"], self._queues(state), blocks)
        levels, _, after = self._sampler.chunk(before, channels, noise, source.temperature)
        stored = {"past": after.past, "blocks": after.blocks}
        return network.codec.decode(levels), self._store_state(stored, after.queues, samples)

    def _queues(self, state: State) -> Any:
        return tf.transpose(tf.cast(state["queues"], self._network.dtype), [1, 0, 2])

    def _store_state(self, stored: State, queues: tf.Tensor, steps: int) -> State:
        queues = tf.gather(queues, self._slot_order(steps))
        queues = tf.cast(tf.transpose(queues, [1, 0, 2]), storable(self._network.dtype))
        later = {**stored, "queues": queues}
        return {
            name: tf.ensure_shape(later[name], [None, *shape])
            for name, (_, shape, _) in self.state().items()
        }

    def _slot_order(self, steps: int) -> np.ndarray:
        rings = self._sampler.rings
        return np.concatenate(
            [
                start + (np.arange(length) + steps) % length
                for start, length in zip(rings.starts, rings.lengths, strict=True)
            ]
        ).astype(np.int32)


class StreamingVocoder(StreamingTeacher):
    """The cached sampler of a WaveNet that draws bunches of samples, as a `StreamingModel`."""

    sampler_type = VocoderSampler

    def __init__(self, network: VocoderWaveNet):
        super().__init__(network)
        self.dtype = network.front_dtype  # the condition's dtype may differ from the layers'
        self.side_frames = network.conditioner.side_frames

    def state(self) -> dict[str, Filled]:
        """Describe `wave`, `residual` and `scaled` [history], and `queues` [slots, channels]."""
        network = self._network
        past = {name: (network.front_dtype, (self._sampler.history,), 0) for name in PASTS}
        slots = (self._sampler.rings.slots, network.config.residual_channels)
        return {**past, "queues": (storable(network.dtype), slots, 0)}

    def advance(self, source: NoiseSource, channels: Maybe, state: State, samples: int) -> Advanced:
        """Return the samples that the sampler draws, bunch by bunch, and the state after them."""
        network = self._network
        noise = network.likelihood.noise(source.key, source.row, source.start, samples)
        wave, residual, scaled = (tf.transpose(state[name]) for name in PASTS)
        before = VocoderState(tf.constant(0), wave, residual, scaled, self._queues(state))
        levels, _, after = self._sampler.chunk(before, channels, noise, source.temperature)
        stored = {name: tf.transpose(getattr(after, name)) for name in PASTS}
        steps = samples // network.config.bunch_samples
        return network.codec.decode(levels), self._store_state(stored, after.queues, steps)


# The streaming class for each type of network.
STREAMING: dict[type, Callable[[Any], StreamingModel]] = {
    ParallelWaveNet: lambda student: (
        StreamingStudent if student.residual is None else StreamingResidual
    )(student),
    WaveNet: StreamingTeacher,
    VocoderWaveNet: StreamingVocoder,
}


def streaming_model(network: Any) -> StreamingModel:
    """Return the streaming model of a network; raise UserError unless `STREAMING` has its type."""
    if type(network) not in STREAMING:
        known = ", ".join(kind.__name__ for kind in STREAMING)
        given = type(network).__name__
        raise UserError(f"A bundle streams the sound of {known}, and none of {given}.")
    return STREAMING[type(network)](network)


def storable(dtype: tf.DType) -> tf.DType:
    """Return the type in which a state of a type is sent, which every protocol supports."""
    if dtype == tf.bool:
        return tf.int32
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def whole_pieces(pieces: tuple[int, int], hop_samples: int) -> tuple[int, int]:
    """Return the pieces rounded up to whole frames, the long one a multiple of the short one."""
    short = -(-pieces[0] // hop_samples) * hop_samples
    return short, -(-pieces[1] // short) * short


def unit_samples(streaming: StreamingModel) -> int:
    """Return the smallest chunk of a stream, in samples, that has whole frames and short pieces."""
    return math.lcm(streaming.pieces[0], streaming.hop_samples)
