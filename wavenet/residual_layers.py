"""The gated, dilated layers of a WaveNet, with residual and skip connections.

van den Oord et al. 2016, arXiv:1609.03499, sections 2.3 and 2.4; `wavenet.network` has the
equations.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from onepass.likelihoods.initial import Initial
from onepass.replicator.training.rematerialisation import call_rematerialised
from wavenet.config import WaveNetConfig

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
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        residual, gate, skip = channels
        self.dilation, self.width, self.gate_channels = dilation, width, gate
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

    @property
    def past_steps(self) -> int:
        """Number of past time steps of the input that the layer reads."""
        return (self.width - 1) * self.dilation

    def __call__(
        self, hidden: tf.Tensor, condition: tf.Tensor | None, past: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | float]:
        """Return the next hidden state [batch, time, residual] and the skip [batch, time, skip].

        The last layer of a stack returns `hidden` unchanged. The condition may have fewer rows than
        `hidden`; each row then applies to the same number of time steps. `past` is the preceding
        input [batch, past_steps, residual]; None: zeros.
        """
        dtype = hidden.dtype
        # One matrix product for taps and condition is faster than several smaller ones.
        weights = tf.concat(list(tf.unstack(self.gate_kernel)), 0)
        if past is None:
            past = tf.zeros([tf.shape(hidden)[0], self.past_steps, hidden.shape[-1]], dtype)
        inputs = causal_taps(past, hidden, self.dilation)
        slow = condition is not None and condition.shape[1] != hidden.shape[1]
        if condition is not None and not slow:
            weights = tf.concat([weights, self.condition_kernel], 0)
            inputs = [*inputs, condition]
        gate = tf.matmul(tf.concat(inputs, -1), tf.cast(weights, dtype))
        gate += tf.cast(self.gate_bias, dtype)
        # A condition with a lower rate is projected before it is repeated.
        if slow:
            gate = self._with_slow(gate, condition)
        units = gate_halves(gate)
        skip = tf.matmul(units, tf.cast(self.skip_kernel, dtype))
        if self.residual_kernel is None:
            return hidden, skip
        update = tf.matmul(units, tf.cast(self.residual_kernel, dtype))
        return self.residual(hidden, update), skip

    def _with_slow(self, gate: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
        batch, time, channels = tf.shape(gate)[0], tf.shape(gate)[1], gate.shape[-1]
        offsets = tf.matmul(condition, tf.cast(self.condition_kernel, gate.dtype))
        rows = tf.reshape(gate, [batch, tf.shape(condition)[1], -1, channels])
        return tf.reshape(rows + offsets[:, :, None], [batch, time, channels])

    def residual(self, hidden: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        """Return the next layer's input, given this layer's input and the projected units."""
        dtype = hidden.dtype
        return (hidden + update + tf.cast(self.residual_bias, dtype)) * SQRT_HALF


class ResidualStack(tf.Module):
    """A sequence of residual layers whose skips are summed and scaled by sqrt(1 / layers)."""

    def __init__(
        self,
        initial: Initial,
        channels: tuple[int, int, int],
        dilations: tuple[int, ...],
        width: int,
        condition_channels: int,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.layers = [
            ResidualLayer(
                initial,
                channels,
                dilation,
                width,
                condition_channels,
                last=i == len(dilations) - 1,
                name=f"layer_{i:02d}",
            )
            for i, dilation in enumerate(dilations)
        ]
        self.skip_scale = math.sqrt(1.0 / len(dilations))

    def __call__(self, hidden: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return the scaled sum of skips, [batch, time, skip]."""
        return self.with_hiddens(hidden, condition)[0]

    def with_hiddens(
        self,
        hidden: tf.Tensor,
        condition: tf.Tensor | None,
        pasts: Sequence[tf.Tensor] | None = None,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the scaled sum of skips, and the input of every layer [batch, time, residual].

        `pasts` are the preceding inputs of every layer, [batch, past_steps, residual] each; None:
        zeros.
        """
        skips, hiddens = 0.0, []
        for i, layer in enumerate(self.layers):
            hiddens.append(hidden)
            past = None if pasts is None else pasts[i]
            hidden, skip = call_rematerialised(layer, hidden, condition, past)
            skips += skip
        return skips * self.skip_scale, hiddens


def stack_of(config: WaveNetConfig, initial: Initial, condition_channels: int) -> ResidualStack:
    """Return the residual layers for a configuration and a number of condition channels."""
    channels = (config.residual_channels, config.gate_channels, config.skip_channels)
    return ResidualStack(
        initial, channels, config.dilations, config.filter_width, condition_channels, "stack"
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
