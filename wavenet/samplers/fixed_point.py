"""Passes of an audio network over blocks, for samplers that verify blocks of proposed samples."""

from typing import Any, NamedTuple

import tensorflow as tf

from onepass.samplers.chunks import FixedPointSampler
from onepass.samplers.registry import register
from onepass.samplers.time_windows import window_of
from wavenet.sound_network import Network


@register(Network, object, method="fixed-point")
def by_passes(network: Network, distribution: Any) -> FixedPointSampler | None:
    """Return the network's fixed-point sampler; None if it reads whole blocks of past samples."""
    is_whole = network.config.reads_blocks
    return None if is_whole else FixedPointSampler(BlockPass(network), distribution)


class PassState(NamedTuple):
    """The past that a block depends on; it ends with a whole bunch."""

    inputs: tf.Tensor
    """The latest `network.inputs`, [batch, history]."""
    condition: tf.Tensor
    """The condition of these samples, [batch, history, channels]; 0 channels if unconditional."""
    pasts: list[tf.Tensor]
    """The latest inputs of every layer, [batch, `past_steps`, residual_channels] each."""


class BlockPass:
    """One pass of a network, without context stack and `prediction_windows`, over a block."""

    def __init__(self, network: Network) -> None:
        config = network.config
        if config.reads_blocks:
            raise ValueError(
                "`network` must have no context stack and no `prediction_windows` for passes over "
                "blocks."
            )
        self.network, self.bunch = network, config.bunch_samples
        past = config.history_samples + config.prediction_order
        self.history = -(-past // self.bunch) * self.bunch

    def initial_state(self, batch: int, length: int = 0, condition: Any = None) -> PassState:
        """Return the state before the first sample: silence."""
        del length, condition  # the state does not depend on them
        config, network = self.network.config, self.network
        inputs = tf.zeros([batch, self.history], network.front_dtype)
        if config.reads_levels:
            inputs = tf.fill([batch, self.history], config.levels)
        dtype = network.front_dtype if config.conditioner_units else network.dtype
        condition = tf.zeros([batch, self.history, config.gate_inputs], dtype)
        pasts = [
            tf.zeros([batch, layer.past_steps, config.residual_channels], network.dtype)
            for layer in network.stack.layers
        ]
        return PassState(inputs, condition, pasts)

    def __call__(
        self, state: PassState, levels: tf.Tensor, condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, PassState]:
        """Return the parameters of a block [batch, time, parameters], and what `after` needs.

        `levels` are int32 [batch, time], whole bunches; `condition` is [batch, time, channels].
        """
        inputs = tf.cast(self.network.inputs(levels), state.inputs.dtype)
        inputs = tf.concat([state.inputs, inputs], 1)
        if condition is None:
            condition = tf.zeros([*levels.shape, 0], state.condition.dtype)
        condition = tf.concat([state.condition, tf.cast(condition, state.condition.dtype)], 1)
        parameters, hiddens = self.network.run_layers(
            inputs, condition if condition.shape[-1] else None, state.pasts, self.history
        )
        pasts = [tf.concat(both, 1) for both in zip(state.pasts, hiddens, strict=True)]
        return parameters, PassState(inputs, condition, pasts)

    def after(
        self, read: PassState, levels: tf.Tensor, samples: tf.Tensor | None = None
    ) -> PassState:
        """Return the state after the first `samples` samples of a block, int32 [batch], or all.

        Only levels in the last bunch may differ from those of the pass `read`.
        """
        if samples is None:
            samples = tf.fill(tf.shape(levels)[:1], tf.shape(levels)[1])
        inputs = tf.cast(self.network.inputs(levels), read.inputs.dtype)
        inputs = tf.concat([read.inputs[:, : self.history], inputs], 1)
        steps, layers = samples // self.bunch, self.network.stack.layers
        pasts = [
            window_of(past, steps, layer.past_steps)
            for past, layer in zip(read.pasts, layers, strict=True)
        ]
        inputs, condition = (
            window_of(each, samples, self.history) for each in (inputs, read.condition)
        )
        return PassState(inputs, condition, pasts)
