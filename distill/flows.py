"""Inverse autoregressive flows: from noise to sound, all samples at once.

    x_t = z_t s(z_<t, c) + mu(z_<t, c),     log|det dx/dz| = sum_t log s_t

(van den Oord et al. 2017, arXiv 1711.10433, equations 5 and 6; Kingma et al. 2016.) A WaveNet
without skip connections, which reads z shifted by one sample, computes mu and s. Several flows
compose into one, with mu_tot = sum_i mu_i prod_{j>i} s_j and s_tot = prod_i s_i.

With bunches of B samples, the layers run once per bunch, on the samples before it, and a small
gated head also reads the newest samples (as in bunched LPCNet, arXiv 2008.04574): 1/B of the work
at the same depth and B times the receptive field, in which no sample is skipped.
"""

import math

import tensorflow as tf

from distill.config import RECENT, StudentConfig
from onepass.foundation.compute_dtype import compute_dtype
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.initial import Initial
from onepass.replicator.training.rematerialisation import call_rematerialised
from wavenet.network import SQRT_HALF, causal_taps, gate_halves

Past = list[tf.Tensor]


class FlowLayer(tf.Module):
    """A gated layer, dilated in bunches, with a residual projection; the caller keeps its past."""

    def __init__(
        self, config: StudentConfig, initial: Initial, dilation: int, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        residual, gate, width = (
            config.residual_channels,
            config.gate_channels,
            config.filter_width,
        )
        self.dilation, self.width, self.held_inputs = dilation, width, config.held_inputs
        self.gate_kernel = initial.kernel([width, residual, 2 * gate], "gate_kernel")
        self.gate_bias = initial.zeros([2 * gate], "gate_bias")
        self.condition_kernel = None
        if config.gate_inputs:
            self.condition_kernel = initial.kernel(
                [config.gate_inputs, 2 * gate], "condition_kernel"
            )
        self.residual_kernel = initial.kernel([gate, residual], "residual_kernel")
        self.residual_bias = initial.zeros([residual], "residual_bias")

    @property
    def past_samples(self) -> int:
        """Number of past inputs that the layer needs."""
        return (self.width - 1) * self.dilation

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
        self,
        config: StudentConfig,
        initial: Initial,
        layers: int,
        initial_scale: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.config = config
        self.dtype = compute_dtype(config.compute_dtype)
        channels = config.residual_channels
        self.front_kernel = initial.kernel([config.front_width, channels], "front_kernel", gain=1.0)
        self.front_bias = initial.zeros([channels], "front_bias")
        self.layers = [
            FlowLayer(config, initial, dilation, name=f"layer_{i:02d}")
            for i, dilation in enumerate(config.dilations(layers))
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

        The noise is float32 [batch, time], the condition [batch, bunches, channels] in the compute
        dtype or None, and the first past that of `empty_past`.
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

    @property
    def outer_dtype(self) -> tf.DType:
        """The dtype of noise, location and scale: at least float32, whatever the compute dtype."""
        return tf.float64 if self.dtype == tf.float64 else tf.float32

    def _head(self, hidden: tf.Tensor, joined: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dtype = hidden.dtype
        if self.config.bunch_samples == 1:
            hidden = tf.nn.relu(hidden)
        else:
            hidden = gate_halves(self._from_layers(hidden) + self._from_recent(joined))
        hidden = tf.matmul(hidden, tf.cast(self.head1_kernel, dtype))
        hidden = tf.nn.relu(hidden + tf.cast(self.head1_bias, dtype))
        raw = tf.cast(tf.matmul(hidden, tf.cast(self.head2_kernel, dtype)), self.outer_dtype)
        raw += tf.cast(self.head2_bias, raw.dtype)
        return raw[..., 0], tf.maximum(raw[..., 1], self.config.min_log_scale)

    def _from_layers(self, hidden: tf.Tensor) -> tf.Tensor:
        dtype, gates = hidden.dtype, self.bunch_bias.shape[-1]
        raw = tf.matmul(tf.nn.relu(hidden), tf.cast(self.bunch_kernel, dtype))
        raw += tf.cast(tf.reshape(self.bunch_bias, [-1]), dtype)
        return tf.reshape(raw, [tf.shape(hidden)[0], -1, gates])

    def _from_recent(self, joined: tf.Tensor) -> tf.Tensor:
        recent = joined[:, self.config.front_width - RECENT : -1, None]
        kernel = tf.cast(self.recent_kernel, recent.dtype)[:, None, :]
        return tf.cast(tf.nn.conv1d(recent, kernel, 1, "VALID"), self.dtype)


def _append_past(past: tf.Tensor, now: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    joined = tf.concat([past, now], 1)
    length = past.shape[1]
    return joined, joined[:, tf.shape(joined)[1] - length :]
