"""`ParallelWaveNet`: a student of flows over a WaveNet's condition.

    x_t = z_t s(z_<t, c) + mu(z_<t, c),     log|det dx/dz| = sum_t log s_t

(van den Oord et al. 2017, arXiv 1711.10433, equations 5 and 6; Kingma et al. 2016.) A WaveNet
without skip connections, which reads z shifted by one sample, computes mu and s. Several flows
compose into one, with mu_tot = sum_i mu_i prod_{j>i} s_j and s_tot = prod_i s_i.

With bunches of B samples, the layers run once per bunch, on the samples before it, and a small
gated head also reads the newest samples (as in bunched LPCNet, arXiv 2008.04574): 1/B of the work
at the same depth and B times the receptive field, in which no sample is skipped.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from distill.config import RECENT, StudentConfig
from distill.residual import Condition, ResidualDomain
from onepass.foundation.rules import UserError
from onepass.foundation.runtime import call_rematerialised, compute_dtype
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput, compose
from onepass.likelihoods.noise import Initial
from wavenet.conditioner import Conditioner
from wavenet.config import MelConvention
from wavenet.linear_prediction import use_solver
from wavenet.network import SQRT_HALF, FrameUpsampler, causal_taps, check_condition, gate_halves

Past = list[tf.Tensor]


class FlowLayer(tf.Module):
    """A gated layer, dilated in bunches, with a residual projection; the caller keeps its past."""

    def __init__(self, config: StudentConfig, initial: Initial, dilation: int) -> None:
        super().__init__()
        residual, gate, width = config.residual_channels, config.gate_channels, config.filter_width
        self.dilation, self.width, self.held_inputs = dilation, width, config.held_inputs
        self.past_samples = (width - 1) * dilation  # inputs that the layer needs
        self.gate_kernel = initial.kernel([width, residual, 2 * gate], "gate_kernel")
        self.gate_bias = initial.zeros([2 * gate], "gate_bias")
        self.condition_kernel = None
        if config.gate_inputs:
            self.condition_kernel = initial.kernel(
                [config.gate_inputs, 2 * gate], "condition_kernel"
            )
        self.residual_kernel = initial.kernel([gate, residual], "residual_kernel")
        self.residual_bias = initial.zeros([residual], "residual_bias")

    def __call__(
        self, hidden: tf.Tensor, condition: tf.Tensor | None, past: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the next hidden state [batch, bunches, residual], and the past for the next call.

        The past is [batch, past_samples, residual], the condition in the compute dtype or None.
        """
        dtype = hidden.dtype
        later = _append_past(past, hidden)[1]
        inputs = causal_taps(past, hidden, self.dilation)
        weights = tf.concat(list(tf.unstack(self.gate_kernel)), 0)
        if self.condition_kernel is not None:
            inputs, weights = [*inputs, condition], tf.concat([weights, self.condition_kernel], 0)
        gate = tf.matmul(tf.concat(inputs, -1), tf.cast(weights, dtype))
        units = gate_halves(gate + tf.cast(self.gate_bias, dtype))
        update = tf.matmul(units, tf.cast(self.residual_kernel, dtype))
        return (hidden + update + tf.cast(self.residual_bias, dtype)) * SQRT_HALF, later


class Flow(tf.Module):
    """One inverse autoregressive flow, with an approximate `initial_scale` s while untrained."""

    def __init__(
        self, config: StudentConfig, initial: Initial, layers: int, initial_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = compute_dtype(config.compute_dtype)
        # That of noise, location and scale: at least float32, whatever the compute dtype.
        self.outer_dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        channels = config.residual_channels
        self.front_kernel = initial.kernel([config.front_width, channels], "front_kernel", gain=1.0)
        self.front_bias = initial.zeros([channels], "front_bias")
        self.layers = [
            FlowLayer(config, initial, dilation) for dilation in config.dilations(layers)
        ]
        bunch = config.bunch_samples
        if bunch > 1:
            self.bunch_kernel = initial.kernel([channels, bunch * 2 * channels], "bunch_kernel")
            self.bunch_bias = initial.zeros([bunch, 2 * channels], "bunch_bias")
            self.recent_kernel = initial.kernel([RECENT, 2 * channels], "recent_kernel")
        self.head1_kernel = initial.kernel([channels, channels], "head1_kernel")
        self.head1_bias = initial.zeros([channels], "head1_bias")
        self.head2_kernel = initial.kernel([channels, 2], "head2_kernel", gain=0.1)
        self.head2_bias = tf.Variable([0.0, math.log(initial_scale)], name="head2_bias")

    def empty_past(self, batch: int | tf.Tensor) -> Past:
        """Return the past inputs before the first sample: zeros."""
        front = tf.zeros([batch, self.config.front_width], self.outer_dtype)
        channels = self.config.residual_channels
        return [
            front,
            *(tf.zeros([batch, layer.past_samples, channels], self.dtype) for layer in self.layers),
        ]

    def __call__(
        self, noise: tf.Tensor, condition: tf.Tensor | None, past: Past
    ) -> tuple[FlowOutput, Past]:
        """Return the flow's output, and the past inputs for the next call.

        The condition [batch, bunches, channels] is in the compute dtype; the first past is empty.
        """
        bunch, dtype = self.config.bunch_samples, self.outer_dtype
        time = tf.shape(noise)[1] if noise.shape[1] is None else noise.shape[1]
        noise = tf.cast(noise, dtype)
        whole = tf.pad(noise, [[0, 0], [0, -time % bunch]]) if bunch > 1 else noise
        joined, front = _append_past(past[0], whole)
        kernel = tf.cast(self.front_kernel, dtype)[:, None, :]
        # The sample at time t is left out: only z_<t is read.
        hidden = tf.nn.conv1d(joined[:, :-1, None], kernel, bunch, "VALID")
        hidden = tf.cast(hidden + tf.cast(self.front_bias, dtype), self.dtype)
        pasts = [front]
        for layer, before in zip(self.layers, past[1:], strict=True):
            hidden, later = call_rematerialised(layer, hidden, condition, before)
            pasts.append(later)
        location, log_scale = (x[:, :time] for x in self._head(hidden, joined))
        output = noise * tf.exp(log_scale) + location
        return FlowOutput(output, location, log_scale), pasts

    def forward(self, noise: tf.Tensor, condition: tf.Tensor | None = None) -> FlowOutput:
        """Return the flow's output for whole sounds, from noise [batch, time]."""
        return self(noise, condition, self.empty_past(tf.shape(noise)[0]))[0]

    def _head(self, hidden: tf.Tensor, joined: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dtype = hidden.dtype
        if self.config.bunch_samples == 1:
            hidden = tf.nn.relu(hidden)
        else:
            layered = tf.matmul(tf.nn.relu(hidden), tf.cast(self.bunch_kernel, dtype))
            layered += tf.cast(tf.reshape(self.bunch_bias, [-1]), dtype)
            gates = tf.reshape(layered, [tf.shape(hidden)[0], -1, self.bunch_bias.shape[-1]])
            newest = joined[:, self.config.front_width - RECENT : -1, None]
            kernel = tf.cast(self.recent_kernel, newest.dtype)[:, None, :]
            recent = tf.nn.conv1d(newest, kernel, 1, "VALID")
            hidden = gate_halves(gates + tf.cast(recent, self.dtype))
        hidden = tf.matmul(hidden, tf.cast(self.head1_kernel, dtype))
        hidden = tf.nn.relu(hidden + tf.cast(self.head1_bias, dtype))
        raw = tf.cast(tf.matmul(hidden, tf.cast(self.head2_kernel, dtype)), self.outer_dtype)
        raw += tf.cast(self.head2_bias, raw.dtype)
        return raw[..., 0], tf.maximum(raw[..., 1], self.config.min_log_scale)


def _append_past(past: tf.Tensor, now: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    joined = tf.concat([past, now], 1)
    length = past.shape[1]
    return joined, joined[:, tf.shape(joined)[1] - length :]


UNCONDITIONAL = Condition()


class ParallelWaveNet(tf.Module):
    """A sequence of inverse autoregressive flows with a common condition.

    van den Oord et al. 2017, "Parallel WaveNet" (arXiv 1711.10433). `draw` returns whole sounds
    with their density, and `advance` does so piece by piece. A student of the residual needs `mel`.
    """

    def __init__(
        self, config: StudentConfig, seed: int = 0, mel: MelConvention | None = None
    ) -> None:
        super().__init__()
        residual = config.domain == "residual"
        if residual and mel is None:
            raise UserError("`mel` must be given for a student of the residual.")
        initial = Initial(seed)
        self.config, self.noise_kind = config, config.noise
        self.dtype = compute_dtype(config.compute_dtype)
        self.upsampler = self.residual = None
        if config.feature_channels and not residual:
            self.upsampler = FrameUpsampler(config, initial)
        if residual and mel is not None:
            self.residual = ResidualDomain(config, initial, mel)
        self.speaker_embedding = None
        if config.speakers:
            shape = [config.speakers, config.speaker_channels]
            gain = math.sqrt(config.speakers)
            self.speaker_embedding = initial.kernel(shape, "speaker_embedding", gain=gain)
        last = len(config.flows) - 1
        self.flows = [
            Flow(config, initial, layers, config.initial_scale if i == last else 1.0)
            for i, layers in enumerate(config.flows)
        ]

    @property
    def conditioner(self) -> Conditioner | None:
        """The dense conditioner that reads the frames, if the flows make a residual; else None."""
        return None if self.residual is None else self.residual.conditioner

    @functools.cached_property
    def condition_graph(self) -> Any:
        """`condition` as one graph for all lengths, much faster than eager operations."""
        from distill.cpu.kernels import levinson  # not needed in training

        frames = tf.TensorSpec([None, None, self.config.feature_channels], tf.float32)
        phase, number = tf.TensorSpec([None], tf.float64), tf.TensorSpec([], tf.int32)
        whose = [tf.TensorSpec([None], tf.int32)] * bool(self.config.speakers)

        @tf.function(autograph=False, input_signature=[frames, phase, number, number, whose])
        def graph(
            frames: tf.Tensor,
            phase_cycles: tf.Tensor,
            count: tf.Tensor,
            skipped: tf.Tensor,
            speaker: list[tf.Tensor],
        ) -> tuple[Condition, tf.Tensor | None]:
            whom = speaker[0] if speaker else None
            with use_solver(levinson):
                return self.condition(frames, whom, count, phase_cycles, skipped)

        return graph

    @functools.cached_property
    def advance_graph(self) -> Any:
        """`advance` as one graph for all lengths."""
        return tf.function(self.advance, autograph=False, reduce_retracing=True)

    def noise(
        self,
        seed: int | tf.Tensor,
        rows: Sequence[int] | tf.Tensor,
        start: int | tf.Tensor,
        length: int,
    ) -> tf.Tensor:
        """Return the noise of samples from `start`, float32 [rows, length]; see `noise.bits`."""
        return self.noise_of(counter_noise.bits(seed, rows, start, length))

    def noise_of(self, words: np.ndarray | tf.Tensor) -> tf.Tensor:
        """Convert words from `noise.bits` to noise, float32 [rows, length]."""
        if self.noise_kind == "logistic":
            return counter_noise.logistic_from_bits(words[..., 0])
        return counter_noise.normal_from_bits(words)[..., 0]

    @property
    def side_frames(self) -> int:
        """Number of frames on either side of a span of samples that its condition depends on."""
        if self.residual is not None:
            return self.residual.side_frames
        return self.config.frame_width // 2 + 2  # 2: for upsampling

    def condition(
        self,
        frames: tf.Tensor | None = None,
        speaker: tf.Tensor | None = None,
        num_samples: int | None = None,
        phase_cycles: tf.Tensor | None = None,
        skipped_frames: int = 0,
    ) -> tuple[Condition, tf.Tensor | None]:
        """Return the condition of a span of samples, and the source's phase after it, or None.

        `num_samples` is the length of the span; None: that of the frames. The span begins after
        `skipped_frames`; these and any frames after it are only context. `phase_cycles`, float64
        [batch], is the phase before the first sample; None: 0.
        """
        check_condition(self.config, frames, speaker)
        hop, bunch, parts = self.config.hop_samples, self.config.bunch_samples, []
        source = prediction = held = None
        first = skipped_frames * hop
        if num_samples is None:
            if frames is None:
                raise ValueError("`num_samples` must be given when there are no `frames`.")
            num_samples = frames.shape[1] * hop - first
        asked = slice(first, first + num_samples)
        if self.upsampler is not None:
            parts.append(self.upsampler(tf.cast(frames, self.dtype))[:, asked][:, ::bunch])
        if phase_cycles is None and self.residual is not None:
            phase_cycles = tf.zeros([tf.shape(frames)[0]], tf.float64)
        if self.residual is not None:
            said, phase_cycles = self.residual.condition(frames, phase_cycles, asked)
            held, prediction, source = tf.cast(said.held, self.dtype), said.prediction, said.source
            if said.channels is not None:
                parts.append(tf.cast(said.channels, self.dtype))
        if self.speaker_embedding is not None:
            row = tf.cast(tf.gather(self.speaker_embedding, speaker), self.dtype)
            parts.append(tf.repeat(row[:, None], -(-num_samples // bunch), 1))
        channels = tf.concat(parts, -1) if parts else None
        return Condition(channels, source, prediction, held), phase_cycles

    def gate_condition(
        self, condition: Condition, num_samples: int | tf.Tensor
    ) -> tf.Tensor | None:
        """Return the whole condition of the gates, [batch, bunches, channels], or None."""
        if condition.held is None:
            return condition.channels
        firsts = tf.range(0, num_samples, self.config.bunch_samples)
        held = tf.gather(condition.held, firsts // self.config.row_samples, axis=1)
        given = [] if condition.channels is None else [condition.channels]
        return tf.concat([held, *given], -1)

    def draw(self, noise: tf.Tensor, condition: Condition = UNCONDITIONAL) -> FlowOutput:
        """Return whole sounds [batch, time] and their density: output = noise * scale + location.

        Given noise_<t, output_t is logistic (or normal) with this location and scale.
        """
        return self.advance(noise, self.initial_state(tf.shape(noise)[0]), condition)[0]

    def advance(
        self, noise: tf.Tensor, pasts: list[Past], condition: Condition = UNCONDITIONAL
    ) -> tuple[FlowOutput, list[Past]]:
        """Return the output of `draw` for the next noise [batch, n], and the past after it."""
        steps, later, noise = [], [], condition.add_source(noise)
        gates = self.gate_condition(condition, tf.shape(noise)[1])
        for flow, past in zip(self.flows, pasts[: len(self.flows)], strict=True):
            step, past = flow(noise, gates, past)
            noise = step.output
            steps.append(step)
            later.append(past)
        flowed = condition.move_source(compose(steps))
        if self.residual is None or condition.prediction is None:
            return flowed, later
        wave, tail = self.residual.wave(flowed, condition.prediction, pasts[-1][0])
        return wave, [*later, [tail]]

    def initial_state(self, batch: int | tf.Tensor) -> list[Past]:
        """Return every flow's past before the first sample and, for a residual, the wave's past."""
        pasts = [flow.empty_past(batch) for flow in self.flows]
        if self.residual is None:
            return pasts
        tail = tf.zeros([batch, self.config.prediction_order], self.flows[0].outer_dtype)
        return [*pasts, [tail]]

    def start_from_conditioner(self, conditioner: Conditioner, only_frames: bool = False) -> None:
        """Copy a teacher's dense conditioner, or only frame statistics and pitch estimator."""
        variables = operator.attrgetter("stored_variables" if only_frames else "variables")
        own_variables = () if self.conditioner is None else variables(self.conditioner)
        if [v.shape for v in own_variables] != [v.shape for v in variables(conditioner)]:
            raise UserError("`conditioner` must have the size of this student's conditioner.")
        for own, given in zip(own_variables, variables(conditioner), strict=True):
            own.assign(tf.cast(given, own.dtype))

    def start_from(self, teacher_upsampler: FrameUpsampler) -> None:
        """Copy a teacher's upsampler into the first channels of this student's."""
        source, target = teacher_upsampler, self.upsampler
        given = source.frame_kernel.shape
        if (
            target is None
            or target.factors != source.factors
            or target.frame_kernel.shape[:-1] != given[:-1]
            or target.frame_kernel.shape[-1] < given[-1]
        ):
            raise UserError(
                "`teacher_upsampler` must have this student's frames and factors and no more "
                f"channels, got {list(given)} and {source.factors}."
            )
        _copy_first(target.frame_kernel, source.frame_kernel)
        _copy_first(target.frame_bias, source.frame_bias)
        many, few = target.frame_bias.shape[0], source.frame_bias.shape[0]
        for own, given, factor in zip(target.kernels, source.kernels, target.factors, strict=True):
            split = tf.Variable(tf.reshape(own, [3, many, factor, many]))
            split[:, :few, :, :few].assign(tf.reshape(given, [3, few, factor, few]))
            own.assign(tf.reshape(split, own.shape))


def _copy_first(target: tf.Variable, source: tf.Variable) -> None:
    count = source.shape[-1]
    target.assign(tf.concat([source, target[..., count:]], -1))
