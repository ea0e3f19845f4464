"""The WaveNet: causal dilated convolutions with gated units, residual and skip connections.

van den Oord et al. 2016, "WaveNet: A Generative Model for Raw Audio" (arXiv 1609.03499):

    z  = tanh(W_f * h + V_f c) . sigmoid(W_g * h + V_g c)            equation 3
    h' = (h + W_r z) sqrt(1/2),      skips summed, ReLU, 1x1, ReLU, 1x1

where `*` is a causal dilated convolution and `c` the condition at the time step: upsampled frames,
the speaker, and the output of the context stack (section 2.6).
"""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.compute_dtype import compute_dtype
from onepass.likelihoods.capabilities import with_scales
from onepass.likelihoods.initial import Initial
from wavenet.config import WaveNetConfig
from wavenet.residual_layers import ResidualStack, stack_of
from wavenet.sound_network import (
    Network,
    check_condition,
    initial_embedding,
    initial_output,
    speaker_row,
)
from wavenet.upsampling import FrameUpsampler


class ContextStack(tf.Module):
    """A stack of layers over earlier blocks, with a long receptive field (section 2.6)."""

    def __init__(self, config: WaveNetConfig, initial: Initial, name: str = "context") -> None:
        super().__init__(name=name)
        channels = config.context_channels
        self.block_samples, self.history = config.context_block_samples, config.context_blocks
        self.front_kernel = initial.kernel([self.block_samples, channels], "front_kernel")
        dilations = tuple(2**i for i in range(config.context_layers))
        self.stack = ResidualStack(
            initial, (channels, channels, channels), dilations, 2, 0, "stack"
        )

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

    `network(inputs, condition)` returns the parameters of all conditionals p(x_t | x_<t, c) in one
    pass; `network.condition(...)` computes the condition.
    """

    def __init__(self, config: WaveNetConfig, seed: int = 0, name: str = "wavenet") -> None:
        super().__init__(name=name)
        initial = Initial(seed)
        self.config = config
        self.likelihood, self.codec = config.make_likelihood(), config.make_codec()
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
        reach = 0.0 if config.linear_prediction or config.corrections else 0.5
        bias = tf.pad(initial_output(self.likelihood, reach), [[0, config.corrections]])
        self.head2_bias = tf.Variable(bias, name="head2_bias")
        self.prediction_kernel = None
        if config.linear_prediction:
            last = tf.one_hot(config.front_width - 1, config.front_width)
            self.prediction_kernel = tf.Variable(0.9 * last, name="prediction_kernel")
        self.upsampler = FrameUpsampler(config, initial) if config.feature_channels else None
        self.speaker_embedding = initial_embedding(config, initial)
        self.context_stack = ContextStack(config, initial) if config.context_layers else None

    def copy_untrained(self) -> "WaveNet":
        """Return a new network with the same configuration and untrained weights."""
        return WaveNet(self.config)

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the network's input for integer levels: the levels, or scaled floats."""
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
            parts.append(self._speaker(speaker, num_samples))
        return tf.concat(parts, -1) if parts else None

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """See `Network.__call__`. The result is float32, or float64 if `compute_dtype` is."""
        return self.run_layers(inputs, condition)[0]

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None = None, speaker: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the parameters of every sample of training clips, [batch, time, parameters]."""
        condition = None
        if self.config.feature_channels or self.config.speakers:
            condition = self.condition(frames, speaker, inputs.shape[1])
        return self(inputs, condition)

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor | None:
        """Return the condition of every sample, [batch, time, channels]; ignores `side_frames`."""
        return self.condition(frames, speaker, num_samples)

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor | None) -> tf.Tensor:
        """Return the parameters of every sample, given a condition from `clip_rows`."""
        return self(inputs, rows)

    def run_layers(
        self,
        inputs: tf.Tensor,
        condition: tf.Tensor | None = None,
        pasts: Sequence[tf.Tensor] | None = None,
        skipped: int = 0,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """See `Network.run_layers`; only front and context stack read the `skipped` inputs."""
        if self.context_stack is not None:
            condition = self._with_context(self.context_stack, inputs, condition)
        bottom = (*self._front(self.delay_inputs(inputs)), condition)
        hidden, prediction, condition = (x if x is None else x[:, skipped:] for x in bottom)
        skips, hiddens = self.stack.with_hiddens(hidden, condition, pasts)
        return self.head(skips, prediction), hiddens

    def wave(self, levels: tf.Tensor) -> tf.Tensor:
        """Return the waveform of integer levels [...], times `input_gain`, float32 [...]."""
        return self.codec.scale(levels) * self.config.input_gain

    def head(self, skips: tf.Tensor, prediction: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters, [..., parameters], from the sum of skips [..., skip]."""
        dtype = skips.dtype
        hidden = tf.nn.relu(skips + tf.cast(self.skip_bias, dtype))
        hidden = tf.matmul(hidden, tf.cast(self.head1_kernel, dtype))
        hidden = tf.nn.relu(hidden + tf.cast(self.head1_bias, dtype))
        raw = tf.cast(tf.matmul(hidden, tf.cast(self.head2_kernel, dtype)), self.front_dtype)
        raw += tf.cast(self.head2_bias, raw.dtype)
        return self._in_scaled_units(raw, prediction)

    @property
    def silence(self) -> int:
        """The network's input before the first sample: the unused level `levels`, or 0."""
        return self.config.levels if self.config.reads_levels else 0

    def delay_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the inputs delayed by one sample, [batch, time], starting with silence."""
        return tf.pad(inputs, [[0, 0], [1, 0]], constant_values=self.silence)[:, :-1]

    def of_past(self, past: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters of every sample [batch, time, parameters], from shifted inputs.

        Output t depends on `past` [batch, time], a result of `delay_inputs`, up to t inclusive. The
        network must not have a context stack.
        """
        hidden, prediction = self._front(past)
        return self.head(self.stack(hidden, condition), prediction)

    def _front(self, past: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        if self.config.reads_levels:
            # One more row of zeros, for the input before the first sample.
            rows = tf.pad(tf.cast(self.front_kernel, self.dtype), [[0, 1], [0, 0]])
            return tf.gather(rows, past) + tf.cast(self.front_bias, self.dtype), None
        width = self.config.front_width
        kernel = self.front_kernel
        if self.prediction_kernel is not None:
            kernel = tf.concat([kernel, self.prediction_kernel[:, None]], -1)
        wave = tf.cast(past * self.config.input_gain, self.front_dtype)
        past = tf.pad(wave, [[0, 0], [width - 1, 0]])[..., None]
        out = tf.nn.conv1d(past, tf.cast(kernel, past.dtype)[:, None, :], 1, "VALID")
        residual = self.config.residual_channels
        hidden = tf.cast(out[..., :residual] + tf.cast(self.front_bias, out.dtype), self.dtype)
        prediction = out[..., residual:] if self.prediction_kernel is not None else None
        return hidden, prediction

    def first_past(self, batch: int) -> Any:
        """Return the past that the first step reads, which is silence.

        The past of a step is the latest amplified inputs, oldest first, float32 [batch,
        front_width], or the latest level, int32 [batch, 1].
        """
        if self.config.reads_levels:
            return tf.fill([batch, 1], self.config.levels)
        return tf.zeros([batch, self.config.front_width])

    def past_of(self, inputs: tf.Tensor) -> Any:
        """Return the past that a step reads after inputs [batch, time], preceded by silence."""
        if self.config.reads_levels:
            return inputs[:, -1:]
        width = self.config.front_width
        return tf.pad(inputs * self.config.input_gain, [[0, 0], [width, 0]])[:, -width:]

    def append_input(self, past: Any, newest: tf.Tensor) -> Any:
        """Return the past after one more amplified input or level, [batch, 1]."""
        return tf.concat([past[:, 1:], tf.cast(newest, past.dtype)], 1)

    def front_step(self, past: Any, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None, Any]:
        """Return the first layer's input [batch, residual], prediction [batch, 1], and `past`."""
        del position
        if self.config.reads_levels:
            rows = tf.pad(self.front_kernel, [[0, 1], [0, 0]])  # the last row: no past yet
            hidden = tf.cast(tf.gather(rows, past[:, 0]) + self.front_bias, self.dtype)
            return hidden, None, past
        wave = tf.cast(past, self.front_dtype)
        hidden = tf.matmul(wave, tf.cast(self.front_kernel, wave.dtype))
        hidden = tf.cast(hidden + tf.cast(self.front_bias, wave.dtype), self.dtype)
        if self.prediction_kernel is None:
            return hidden, None, past
        kernel = tf.cast(self.prediction_kernel[:, None], wave.dtype)
        return hidden, tf.matmul(wave, kernel), past

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
        read = self.config.reads_levels
        wave = self.wave(inputs) if read else inputs * self.config.input_gain
        blocks = stack(tf.cast(wave, self.dtype))
        context = tf.repeat(blocks, stack.block_samples, 1)[:, : tf.shape(wave)[1]]
        return context if condition is None else tf.concat([condition, context], -1)

    def _speaker(self, speaker: tf.Tensor | None, num_samples: int | None) -> tf.Tensor:
        row = speaker_row(self.config, self.speaker_embedding, speaker)
        return tf.repeat(tf.cast(row, self.dtype)[:, None], num_samples, 1)
