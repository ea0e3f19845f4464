"""The WaveNet: causal dilated convolutions with gated units, residual and skip connections.

van den Oord et al. 2016, "WaveNet: A Generative Model for Raw Audio" (arXiv 1609.03499):

    z  = tanh(W_f * h + V_f c) . sigmoid(W_g * h + V_g c)            equation 3
    h' = (h + W_r z) sqrt(1/2),      skips summed, ReLU, 1x1, ReLU, 1x1

where `*` is a causal dilated convolution and `c` the condition at the time step: upsampled frames,
the speaker, and the output of the context stack (section 2.6).

Its interface to samplers, training and distillation, `Network`, is that of every audio network.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.runtime import Compiled, call_rematerialised, compute_dtype
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import with_scales
from onepass.likelihoods.noise import Initial
from onepass.networks.conditions import Specs, check_specs
from wavenet.config import WaveNetConfig

# (time, remainder, newest input, state) -> parameters and state; see `Network.stepper`.
OwnStep = Callable[[Any, int, tf.Tensor, dict[str, Any]], tuple[tf.Tensor, dict[str, Any]]]


class Network(tf.Module):
    """A causal audio network: the base class of `WaveNet` and `VocoderWaveNet`.

    Attributes:
      front_dtype: floating-point type of the waveform and of the output parameters.
      conditioner: computes the condition from mel frames in a vocoder, else None.
      upsampler: upsamples frames to the sample rate, unless a conditioner reads them.
      context_stack: computes a condition from blocks of past samples, or None.
      silence: the network's input before the first sample.
      period: samples after which `renew` computes a part of the state; 0: it never does.
      renew_samples: number of past samples that `renew` reads.
      is_renewed: whether the caller of a step does so, with the results of `renew`.
    """

    config: WaveNetConfig
    codec: Codec
    likelihood: Any
    dtype: tf.DType
    front_dtype: tf.DType
    stack: Any
    conditioner: Any = None
    upsampler: Any = None
    context_stack: Any = None
    silence: int = 0
    period: int = 0
    renew_samples: int = 0
    is_renewed: bool = False

    def copy_untrained(self) -> "Network":
        """Return a new network with the same configuration and untrained weights."""
        raise NotImplementedError

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the network's input for integer levels [...]: the levels, or scaled floats."""
        raise NotImplementedError

    def condition(
        self,
        frames: tf.Tensor | None = None,
        speaker: tf.Tensor | None = None,
        num_samples: int | None = None,
    ) -> tf.Tensor | None:
        """Return the condition of every sample [batch, time, channels], or None.

        `frames` are [batch, frames, feature_channels], one every `hop_samples` samples; without a
        number of samples the condition covers all of them.
        """
        raise NotImplementedError

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return each sample's parameters given those before it; `inputs` are not shifted."""
        raise NotImplementedError

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None, speaker: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the parameters of every sample of training clips, [batch, time, parameters].

        The frames, if the network reads them, include the neighbouring ones that it needs on either
        side of the clip.
        """
        raise NotImplementedError

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """Return the condition [batch, rows, channels] at its own rate, without `side_frames`."""
        raise NotImplementedError

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """Return each sample's parameters, given a condition from `clip_rows`."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> dict[str, Any]:
        """Return the state of `stepper` and `chunk` before the first sample: silence."""
        raise NotImplementedError

    def stepper(self, condition: tf.Tensor | None) -> OwnStep:
        """Return the step for samples with this condition, [batch, time, channels] or None.

        It is a function of the time step, that step modulo `config.bunch_samples` as a Python
        integer, the network's input before it [batch, 1], and the state. It returns the sample's
        parameters [batch, 1, parameters], and the next state.
        """
        raise NotImplementedError

    def chunk(
        self, inputs: tf.Tensor, state: dict[str, Any], condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Return the parameters of the next n samples from one pass, and the state after them.

        `inputs`, those before each sample, are [batch, n], static whole bunches; the condition is
        that of these samples, [batch, n, channels], or None.
        """
        raise NotImplementedError

    def renew(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the entries of the state for the next `period` samples, by name.

        `inputs` are those for the samples before them, [batch, renew_samples].
        """
        raise NotImplementedError

    @functools.cached_property
    def compiled(self) -> Compiled:
        """A cache of the samplers compiled for this network, by name."""
        return Compiled()


def initial_embedding(config: WaveNetConfig, initial: Initial) -> tf.Variable | None:
    """Return an initial speaker embedding [speakers, channels], or None if none is configured."""
    if not config.speakers or not config.speaker_channels:
        return None
    shape, gain = [config.speakers, config.speaker_channels], math.sqrt(config.speakers)
    return initial.kernel(shape, "speaker_embedding", gain)


def speaker_row(
    config: WaveNetConfig, embedding: tf.Variable | None, speaker: tf.Tensor
) -> tf.Tensor:
    """Return the speakers' rows [batch, channels] of an embedding or, without it, one-hot ones."""
    row = tf.one_hot(speaker, config.speakers)
    return row if embedding is None else tf.matmul(row, embedding)


def check_condition(config: Any, frames: tf.Tensor | None, speaker: tf.Tensor | None) -> None:
    """Raise ValueError for frames or a speaker that do not fit a WaveNet's or a student's specs."""
    given = {"frames": frames, "speaker": speaker}
    specs: Specs = {}
    if config.feature_channels:
        specs["frames"] = tf.TensorSpec([None, None, config.feature_channels])
    if config.speakers:
        specs["speaker"] = tf.TensorSpec([None], tf.int32)
    counts = {"speaker": config.speakers}
    check_specs(specs, {n: x for n, x in given.items() if x is not None}, counts)


SQRT_HALF = math.sqrt(0.5)


class ResidualLayer(tf.Module):
    """One gated, dilated layer with its residual and skip projections."""

    def __init__(
        self,
        initial: Initial,
        channels: tuple[int, int, int],
        dilation: int,
        width: int,
        condition_channels: int,
        last: bool,
    ) -> None:
        super().__init__()
        residual, gate, skip = channels
        self.dilation, self.width, self.gate_channels = dilation, width, gate
        self.past_steps = (width - 1) * dilation  # of the input, which the layer reads
        self.gate_kernel = initial.kernel([width, residual, 2 * gate], "gate_kernel")
        self.gate_bias = initial.zeros([2 * gate], "gate_bias")
        self.condition_kernel = None
        if condition_channels:
            self.condition_kernel = initial.kernel(
                [condition_channels, 2 * gate], "condition_kernel"
            )
        self.residual_kernel = None
        if not last:
            self.residual_kernel = initial.kernel([gate, residual], "residual_kernel")
            self.residual_bias = initial.zeros([residual], "residual_bias")
        self.skip_kernel = initial.kernel([gate, skip], "skip_kernel")

    def __call__(
        self, hidden: tf.Tensor, condition: tf.Tensor | None, past: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | float]:
        """Return the next hidden state [batch, time, residual] and the skip [batch, time, skip].

        The last layer of a stack returns `hidden` unchanged. The condition may have fewer rows,
        each for the same number of time steps. `past` is the preceding input [batch, past_steps,
        residual], by default zeros, of which one step needs only the rows that it reads, [batch,
        width - 1, residual].
        """
        dtype = hidden.dtype
        # One matrix product for taps and condition is faster than several smaller ones.
        weights = tf.concat(list(tf.unstack(self.gate_kernel)), 0)
        if past is None:
            past = tf.zeros([tf.shape(hidden)[0], self.past_steps, hidden.shape[-1]], dtype)
        inputs = causal_taps(past, hidden, past.shape[1] // (self.width - 1))
        slow = condition is not None and condition.shape[1] != hidden.shape[1]
        if condition is not None and not slow:
            weights = tf.concat([weights, self.condition_kernel], 0)
            inputs = [*inputs, condition]
        gate = tf.matmul(tf.concat(inputs, -1), tf.cast(weights, dtype))
        gate += tf.cast(self.gate_bias, dtype)
        if slow:  # a condition with a lower rate is projected before it is repeated
            offsets = tf.matmul(condition, tf.cast(self.condition_kernel, dtype))
            batch, time, channels = tf.shape(gate)[0], tf.shape(gate)[1], gate.shape[-1]
            rows = tf.reshape(gate, [batch, tf.shape(condition)[1], -1, channels])
            gate = tf.reshape(rows + offsets[:, :, None], [batch, time, channels])
        units = gate_halves(gate)
        skip = tf.matmul(units, tf.cast(self.skip_kernel, dtype))
        if self.residual_kernel is None:
            return hidden, skip
        update = tf.matmul(units, tf.cast(self.residual_kernel, dtype))
        return (hidden + update + tf.cast(self.residual_bias, dtype)) * SQRT_HALF, skip


class ResidualStack(tf.Module):
    """A sequence of residual layers whose skips are summed and scaled by sqrt(1 / layers)."""

    def __init__(
        self,
        initial: Initial,
        channels: tuple[int, int, int],
        dilations: tuple[int, ...],
        width: int,
        condition_channels: int,
        dtype: tf.DType = tf.float32,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        last = len(dilations) - 1
        self.layers = [
            ResidualLayer(initial, channels, dilation, width, condition_channels, i == last)
            for i, dilation in enumerate(dilations)
        ]
        self.skip_scale = math.sqrt(1.0 / len(dilations))
        self._queues = Queues([layer.past_steps for layer in self.layers], dilations)

    def __call__(self, hidden: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the scaled sum of skips, [batch, time, skip]."""
        return self._run_layers(hidden, condition, [None] * len(self.layers))[0]

    def initial_state(self, batch: int) -> dict[str, tf.Tensor]:
        """Return the state before the first time step: zeroed queues."""
        channels = self.layers[0].gate_kernel.shape[1]
        queues = tf.zeros([self._queues.slots, batch, channels], self.dtype)
        return {"position": tf.constant(0), "queues": queues}

    def step(
        self, hidden: tf.Tensor, state: dict[str, tf.Tensor], condition: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the scaled skips of the next n time steps, and the state after them.

        `hidden` is [batch, n, residual] with static n, the condition [batch, n, channels].
        """
        position, queues = state["position"], state["queues"]
        pasts = self._queues.read(queues, position, hidden.shape[1])
        skips, hiddens = self._run_layers(hidden, condition, pasts)
        queues = self._queues.write(queues, position, pasts, hiddens)
        return skips, {"position": position + hidden.shape[1], "queues": queues}

    def _run_layers(
        self, hidden: tf.Tensor, condition: tf.Tensor | None, pasts: Sequence[tf.Tensor | None]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        skips, hiddens = 0.0, []
        for layer, past in zip(self.layers, pasts, strict=True):
            hiddens.append(hidden)
            hidden, skip = call_rematerialised(layer, hidden, condition, past)
            skips += skip
        return skips * self.skip_scale, hiddens


class Queues:
    """The past inputs of all layers as rings in one buffer, [slots, batch, channels].

    A layer with dilation d and width k reads k - 1 of its last (k - 1) d inputs and writes one (Le
    Paine et al. 2016, "Fast WaveNet Generation Algorithm", arXiv 1611.09482). With all rings in one
    buffer, a time step takes one gather and one scatter.
    """

    def __init__(self, lengths: Sequence[int], dilations: Sequence[int]) -> None:
        self.lengths, self.dilations = np.array(lengths, np.int32), np.array(dilations, np.int32)
        self.starts = (np.cumsum(self.lengths) - self.lengths).astype(np.int32)
        self.slots = int(self.lengths.sum())

    def read(self, queues: tf.Tensor, position: tf.Tensor, count: int) -> list[tf.Tensor]:
        """Return the layers' pasts [batch, rows, channels]; of one step, the rows that it reads."""
        if count == 1:
            rows = tf.transpose(tf.gather(queues, self.reads(position)), [0, 2, 1, 3])
            return tf.unstack(rows)
        rings = tf.split(queues, self.lengths)
        return [
            tf.transpose(tf.roll(ring, -(position % length), 0), [1, 0, 2])
            for ring, length in zip(rings, self.lengths, strict=True)
        ]

    def write(
        self,
        queues: tf.Tensor,
        position: tf.Tensor,
        pasts: Sequence[tf.Tensor],
        hiddens: Sequence[tf.Tensor],
    ) -> tf.Tensor:
        """Return the buffer after time steps with these inputs, whose pasts `read` has found."""
        count = hiddens[0].shape[1]
        if count == 1:
            # The slot to write contains the oldest row, which has been read.
            rows = tf.stack([hidden[:, 0] for hidden in hiddens])
            return tf.tensor_scatter_nd_update(queues, self.writes(position)[:, None], rows)
        rings = []
        for past, hidden, length in zip(pasts, hiddens, self.lengths, strict=True):
            recent = tf.concat([past, hidden], 1)[:, -length:]
            ring = tf.roll(tf.transpose(recent, [1, 0, 2]), (position + count) % length, 0)
            rings.append(ring)
        return tf.concat(rings, 0)

    def reads(self, position: tf.Tensor) -> tf.Tensor:
        """Return the slots of each layer's past rows, oldest first, int32 [layers, width - 1]."""
        back = self.dilations[:, None] * np.arange(self.lengths[0] // self.dilations[0], 0, -1)
        # Adding the length keeps the dividend non-negative near the start.
        ring = (position + (self.lengths[:, None] - back).astype(np.int32)) % self.lengths[:, None]
        return self.starts[:, None] + ring

    def writes(self, position: tf.Tensor) -> tf.Tensor:
        """Return the slots to which the layers' current inputs are written, int32 [layers]."""
        return self.starts + position % self.lengths


def stack_of(config: WaveNetConfig, initial: Initial, condition_channels: int) -> ResidualStack:
    """Return the residual layers for a configuration and a number of condition channels."""
    channels = (config.residual_channels, config.gate_channels, config.skip_channels)
    dilations, width, dtype = config.dilations, config.filter_width, config.compute_dtype
    return ResidualStack(
        initial, channels, dilations, width, condition_channels, compute_dtype(dtype)
    )


def causal_taps(past: tf.Tensor, hidden: tf.Tensor, dilation: int) -> list[tf.Tensor]:
    """Return the taps h[t - j dilation], oldest first, each [batch, time, channels]."""
    time = hidden.shape[1] if hidden.shape[1] is not None else tf.shape(hidden)[1]
    joined = tf.concat([past, hidden], 1)
    # The gradient of joined[:, ...] would run on one core and take a fifth of a training step.
    starts = range(0, past.shape[1], dilation)
    taps = [tf.slice(joined, [0, first, 0], [-1, time, -1]) for first in starts]
    return [*taps, hidden]


def gate_halves(gate: tf.Tensor) -> tf.Tensor:
    """Return tanh(a) * sigmoid(b), where a and b are the two halves of the last axis."""
    filters, gates = tf.split(gate, 2, -1)
    return tf.tanh(filters) * tf.sigmoid(gates)


FRAME_GAIN = 4.0  # frames are between 0 (silence) and 1, but vary by only about a quarter of that


class FrameUpsampler(tf.Module):
    """A convolution over frames, followed by transposed convolutions up to the sample rate.

    This is "y = f(h), a transposed convolutional network" (WaveNet, section 2.5). Each transposed
    convolution has stride s and width 3 s, is initialised to linear interpolation, and is computed
    as one matrix product over three neighbouring frames. `config` is a WaveNet's or a student's.
    """

    def __init__(self, config: Any, initial: Initial) -> None:
        super().__init__()
        channels = config.condition_channels
        self.frame_width = config.frame_width
        self.frame_kernel = initial.kernel(
            [config.frame_width, config.feature_channels, channels], "frame_kernel", FRAME_GAIN
        )
        self.frame_bias = initial.zeros([channels], "frame_bias")
        self.factors = config.upsample_factors
        self.kernels = []
        for factor in self.factors:
            linear = tf.einsum("jf,cd->jcfd", tf.stack(_shares(factor)), tf.eye(channels))
            kernel = tf.reshape(linear, [3 * channels, factor * channels])
            self.kernels.append(tf.Variable(kernel, name=f"kernel_{factor}"))

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        """Return the upsampled condition, [batch, frames * hop, channels]."""
        side = self.frame_width // 2
        dtype = frames.dtype
        padded = tf.pad(frames, [[0, 0], [side, side], [0, 0]])
        hidden = tf.nn.conv1d(padded, tf.cast(self.frame_kernel, dtype), 1, "VALID")
        hidden = tf.nn.relu(hidden + tf.cast(self.frame_bias, dtype))
        for factor, kernel in zip(self.factors, self.kernels, strict=True):
            hidden = upsample(hidden, tf.cast(kernel, dtype), factor)
        return hidden


def upsample(frames: tf.Tensor, kernel: tf.Tensor, factor: int) -> tf.Tensor:
    """Upsample frames [batch, frames, channels] to [batch, frames * factor, channels].

    The rows of `kernel` [3 * channels, factor * channels] belong to the previous, current and next
    frame, the columns to the outputs of the current frame. Edge frames are repeated as padding.
    """
    before = tf.concat([frames[:, :1], frames[:, :-1]], 1)
    after = tf.concat([frames[:, 1:], frames[:, -1:]], 1)
    out = tf.matmul(tf.concat([before, frames, after], -1), kernel)
    batch, count, channels = tf.shape(frames)[0], tf.shape(frames)[1], frames.shape[-1]
    return tf.reshape(out, [batch, count * factor, channels])


def interpolate_frames(frames: tf.Tensor, count: int) -> tf.Tensor:
    """Interpolate linearly between frame centres, to [batch, (frames - 2) * count, channels]."""
    before, here, after = (share[:, None] for share in _shares(count, frames.dtype))
    rows = (
        frames[:, :-2, None] * before + frames[:, 1:-1, None] * here + frames[:, 2:, None] * after
    )
    return tf.reshape(rows, [tf.shape(frames)[0], -1, frames.shape[-1]])


def _shares(count: int, dtype: tf.DType = tf.float32) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    offset = (tf.range(count, dtype=dtype) + 0.5) / count - 0.5
    before, after = tf.nn.relu(-offset), tf.nn.relu(offset)
    return before, 1.0 - before - after, after


class ContextStack(tf.Module):
    """A stack of layers over earlier blocks, with a long receptive field (section 2.6)."""

    def __init__(self, config: WaveNetConfig, initial: Initial) -> None:
        super().__init__()
        channels = config.context_channels
        self.block_samples, self.history = config.context_block_samples, config.context_blocks
        self.front_kernel = initial.kernel([self.block_samples, channels], "front_kernel")
        dilations = tuple(2**i for i in range(config.context_layers))
        self.stack = ResidualStack(initial, (channels, channels, channels), dilations, 2, 0)

    def __call__(self, wave: tf.Tensor) -> tf.Tensor:
        """Return the condition of each block of samples, [batch, blocks, channels]."""
        batch, time = tf.shape(wave)[0], tf.shape(wave)[1]
        short = -time % self.block_samples
        blocks = tf.reshape(tf.pad(wave, [[0, 0], [0, short]]), [batch, -1, self.block_samples])
        # Like a sampler, start from silence that fills the stack's receptive field.
        past = tf.pad(blocks, [[0, 0], [self.history, 0], [0, 0]])[:, :-1]
        return self.blocks(past)[:, self.history - 1 :]

    def blocks(self, past_blocks: tf.Tensor) -> tf.Tensor:
        """Return the condition of the block after each past block, [batch, blocks, channels]."""
        hidden = tf.matmul(past_blocks, tf.cast(self.front_kernel, past_blocks.dtype))
        return self.stack(hidden, None)


class WaveNet(Network):
    """The WaveNet; it contains only variables, no generation state.

    A call returns the parameters of all conditionals p(x_t | x_<t, c) in one pass.
    """

    def __init__(self, config: WaveNetConfig, seed: int = 0) -> None:
        super().__init__()
        initial = Initial(seed)
        self.config = config
        self.likelihood, self.codec = config.make_likelihood(), config.make_codec()
        self.silence = config.levels if config.reads_levels else 0  # the level is an unused one
        self.dtype = compute_dtype(config.compute_dtype)
        # A waveform needs 16 bits of precision, more than bfloat16 has.
        self.front_dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        residual, skip = config.residual_channels, config.skip_channels
        front = [config.front_inputs, residual]
        self.front_kernel = initial.kernel(front, "front_kernel", gain=1.0)
        self.front_bias = initial.zeros([residual], "front_bias")
        self.stack = stack_of(config, initial, config.gate_inputs)
        self.skip_bias = initial.zeros([skip], "skip_bias")
        self.head1_kernel = initial.kernel([skip, skip], "head1_kernel")
        self.head1_bias = initial.zeros([skip], "head1_bias")
        outputs = self.likelihood.num_parameters + config.corrections
        self.head2_kernel = initial.kernel([skip, outputs], "head2_kernel", gain=0.1)
        bias, located = tf.zeros([outputs]), with_scales(self.likelihood)
        if located is not None:  # means within half of the range, unless they correct predictions
            reach = 0.0 if config.linear_prediction or config.corrections else 0.5
            bias = tf.pad(located.initial_parameters(reach), [[0, config.corrections]])
        self.head2_bias = tf.Variable(bias, name="head2_bias")
        self.prediction_kernel = None
        if config.linear_prediction:
            last = tf.one_hot(config.front_width - 1, config.front_width)
            self.prediction_kernel = tf.Variable(0.9 * last, name="prediction_kernel")
        self.upsampler = FrameUpsampler(config, initial) if config.feature_channels else None
        self.speaker_embedding = initial_embedding(config, initial)
        self.context_stack = ContextStack(config, initial) if config.context_layers else None

    def copy_untrained(self) -> "WaveNet":
        """See `Network.copy_untrained`."""
        return type(self)(self.config)

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """See `Network.inputs`."""
        return levels if self.config.reads_levels else self.codec.scale(levels)

    def condition(
        self,
        frames: tf.Tensor | None = None,
        speaker: tf.Tensor | None = None,
        num_samples: int | None = None,
    ) -> tf.Tensor | None:
        """See `Network.condition`; the output of the context stack is not included."""
        check_condition(self.config, frames, speaker)
        if self.config.speakers and frames is None and num_samples is None:
            raise ValueError("`num_samples` must be given when there are no `frames`.")
        parts = []
        if self.upsampler is not None and frames is not None:
            local = self.upsampler(tf.cast(frames, self.dtype))
            if num_samples is None:
                num_samples = frames.shape[1] * self.config.hop_samples
            parts.append(local[:, :num_samples])
        if self.config.speakers:
            row = tf.cast(speaker_row(self.config, self.speaker_embedding, speaker), self.dtype)
            parts.append(tf.repeat(row[:, None], num_samples, 1))
        return tf.concat(parts, -1) if parts else None

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """See `Network.__call__`. The result is float32, or float64 if `compute_dtype` is."""
        if self.context_stack is not None:
            condition = self._with_context(self.context_stack, inputs, condition)
        return self.of_past(self.delay_inputs(inputs), condition)

    def initial_state(self, batch: int) -> dict[str, Any]:
        """See `Network.initial_state`."""
        config, state = self.config, {}
        if (width := config.front_width - 1) > 0:
            state = {"past": tf.zeros([batch, width])}  # a network that reads levels reads one
        if self.context_stack is not None:
            context = [batch, 1, config.context_channels]
            wave = tf.zeros([batch, config.context_blocks * config.context_block_samples])
            state |= {"wave": wave, "context": tf.zeros(context, self.dtype)}
        return {**state, "position": tf.constant(0), "layers": self.stack.initial_state(batch)}

    def stepper(self, condition: tf.Tensor | None) -> OwnStep:
        """See `Network.stepper`."""

        def step(
            time: Any, remainder: int, newest: tf.Tensor, state: dict[str, Any]
        ) -> tuple[tf.Tensor, dict[str, Any]]:
            del remainder  # a step draws one sample
            now = None if condition is None else condition[:, time][:, tf.newaxis]
            return self.chunk(newest, state, now)

        return step

    def chunk(
        self, inputs: tf.Tensor, state: dict[str, Any], condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """See `Network.chunk`; n is 1 for a network that reads whole blocks of past samples."""
        state = {**state, "position": state["position"] + inputs.shape[1]}
        if self.context_stack is not None:
            state |= self._read_context(self.context_stack, inputs, state)
            context = [] if condition is None else [condition]
            condition = tf.concat([*context, state["context"]], -1)
        hidden, prediction, read = self._front_after(inputs, state)
        skips, layers = self.stack.step(hidden, state["layers"], condition)
        return self.head(skips, prediction), {**state, **read, "layers": layers}

    def _front_after(
        self, inputs: tf.Tensor, state: dict[str, Any]
    ) -> tuple[tf.Tensor, tf.Tensor | None, dict[str, Any]]:
        """Return hidden states, predictions and what changes in the state, for the next inputs."""
        read = {}
        if (past := state.get("past")) is not None:
            inputs = tf.concat([past, inputs], 1)
            read = {"past": inputs[:, inputs.shape[1] - past.shape[1] :]}
        hidden, prediction = self._front(inputs, self.config.front_width - 1)
        return hidden, prediction, read

    def _read_context(
        self, stack: ContextStack, newest: tf.Tensor, state: dict[str, Any]
    ) -> dict[str, tf.Tensor]:
        """Return the wave and the context after one more input, [batch, 1]."""
        before, position = state["wave"], state["position"] - 1
        if newest.shape[1] != 1:
            raise ValueError(f"`inputs` must hold 1 sample, got {newest.shape[1]}.")
        wave = self._amplified(newest)
        # The input before the first sample is no sample.
        wave = tf.where(position == 0, 0.0, tf.cast(wave, before.dtype))
        wave = tf.concat([before[:, 1:], wave], 1)
        blocks = tf.reshape(wave, [tf.shape(wave)[0], -1, stack.block_samples])
        context = tf.cond(
            tf.equal(position % stack.block_samples, 0),
            lambda: stack.blocks(tf.cast(blocks, self.dtype))[:, -1:],
            lambda: state["context"],
        )
        return {"wave": wave, "context": context}

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None = None, speaker: tf.Tensor | None = None
    ) -> tf.Tensor:
        """See `Network.training_parameters`."""
        return self(inputs, self.condition(frames, speaker, inputs.shape[1]))

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """See `Network.clip_rows`: the condition of every sample; ignores `side_frames`."""
        return self.condition(frames, speaker, num_samples)

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """See `Network.of_rows`."""
        return self(inputs, rows)

    def wave(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the waveform of integer levels [...], times `input_gain`, float32 [...]."""
        return self.codec.scale(levels) * self.config.input_gain

    def _amplified(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.wave(inputs) if self.config.reads_levels else inputs * self.config.input_gain

    def head(self, skips: tf.Tensor, prediction: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters, [..., parameters], from the sum of skips [..., skip]."""
        dtype = skips.dtype
        hidden = tf.nn.relu(skips + tf.cast(self.skip_bias, dtype))
        hidden = tf.matmul(hidden, tf.cast(self.head1_kernel, dtype))
        hidden = tf.nn.relu(hidden + tf.cast(self.head1_bias, dtype))
        raw = tf.cast(tf.matmul(hidden, tf.cast(self.head2_kernel, dtype)), self.front_dtype)
        raw += tf.cast(self.head2_bias, raw.dtype)
        return self._in_scaled_units(raw, prediction)

    def delay_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the inputs delayed by one sample, [batch, time], starting with silence."""
        return tf.pad(inputs, [[0, 0], [1, 0]], constant_values=self.silence)[:, :-1]

    def of_past(self, past: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters of every sample [batch, time, parameters], from shifted inputs.

        These are a result of `delay_inputs`; the condition includes the context.
        """
        hidden, prediction = self._front(past)
        return self.head(self.stack(hidden, condition), prediction)

    def _front(self, past: tf.Tensor, skipped: int = 0) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return hidden states and predictions, without those of the first `skipped` inputs.

        These must be the `front_width - 1` inputs that the next one reads; if 0, they are silence.
        """
        if self.config.reads_levels:
            # One more row of zeros, for the input before the first sample.
            rows = tf.pad(tf.cast(self.front_kernel, self.dtype), [[0, 1], [0, 0]])
            return tf.gather(rows, past) + tf.cast(self.front_bias, self.dtype), None
        width = self.config.front_width
        kernel = self.front_kernel
        if self.prediction_kernel is not None:
            kernel = tf.concat([kernel, self.prediction_kernel[:, None]], -1)
        wave = tf.cast(past * self.config.input_gain, self.front_dtype)
        past = tf.pad(wave, [[0, 0], [width - 1 - skipped, 0]])[..., None]
        out = tf.nn.conv1d(past, tf.cast(kernel, past.dtype)[:, None, :], 1, "VALID")
        residual = self.config.residual_channels
        hidden = tf.cast(out[..., :residual] + tf.cast(self.front_bias, out.dtype), self.dtype)
        prediction = out[..., residual:] if self.prediction_kernel is not None else None
        return hidden, prediction

    def _in_scaled_units(self, raw: tf.Tensor, prediction: tf.Tensor | None) -> tf.Tensor:
        """Return the parameters after converting means and log-scales to the waveform's units.

        The mean's correction to a linear prediction is in units of the scale: the gradient of a
        logistic's log-density in these units is bounded, so that quiet samples do not dominate.
        """
        likelihood = with_scales(self.likelihood)
        if likelihood is None:
            return raw
        gain = self.config.input_gain
        weight, mean, log_scale = tf.split(raw, likelihood.sections, -1)
        if prediction is not None:
            mean = prediction + mean * tf.exp(log_scale)
        return tf.concat([weight, mean / gain, log_scale - math.log(gain)], -1)

    def _with_context(
        self, stack: ContextStack, inputs: tf.Tensor, condition: tf.Tensor | None
    ) -> tf.Tensor:
        wave = self._amplified(inputs)
        blocks = stack(tf.cast(wave, self.dtype))
        context = tf.repeat(blocks, stack.block_samples, 1)[:, : tf.shape(wave)[1]]
        return context if condition is None else tf.concat([condition, context], -1)
