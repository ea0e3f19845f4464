"""Cached sampling as one XLA program per chunk: one queue per layer, O(layers) work per sample.

Le Paine et al. 2016, "Fast WaveNet Generation Algorithm" (arXiv 1611.09482): a layer with dilation
d and width k stores its last (k - 1) d inputs; a step reads k - 1 of them and writes one. All
queues are in one buffer, so a step needs only one gather and one scatter, and the skips of all
layers are one matrix product: on a CPU the cost under XLA is per operation rather than per FLOP.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.samplers.cached import ChunkSampler
from onepass.samplers.registry import register
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet, gate_halves
from wavenet.sound_network import Network


class SamplerState(NamedTuple):
    """The state between two samples."""

    position: tf.Tensor
    """Number of samples so far, int32 []."""
    past: Any
    """The past that the front reads, as in `WaveNet.first_past`."""
    queues: tf.Tensor
    """Past inputs of all layers, [slots, batch, residual_channels]."""
    blocks: tf.Tensor
    """Past blocks of samples that the context stack reads, [batch, blocks, block_samples]."""


MEASURED = "24 layers of 128 channels, over the derived step by XLA"


@register(WaveNet, object, method="xla", ratio=1.27, measured=MEASURED)
class XlaSampler(ChunkSampler):
    """The cached sampler of a `WaveNet`."""

    def __init__(self, network: WaveNet, distribution: Any = None) -> None:
        super().__init__(network)
        self.rings = Rings(network.config)

    def initial_state(self, batch: int) -> SamplerState:
        """Return the state before the first sample: silence, and zeroed queues."""
        config = self.network.config
        queues = tf.zeros([self.rings.slots, batch, config.residual_channels], self.network.dtype)
        blocks = tf.zeros([batch, config.context_blocks, config.context_block_samples])
        return SamplerState(tf.constant(0), self.network.first_past(batch), queues, blocks)

    def chunk(
        self,
        state: SamplerState,
        condition: tf.Tensor | None,
        noise: tf.Tensor,
        temperature: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, SamplerState]:
        """Draw a chunk sample by sample; return levels, parameters and the next state."""
        step = Step(self.network, self.rings)
        rows, time = noise.shape[0], noise.shape[1]
        batch = tf.shape(noise)[0] if rows is None else rows
        noise = tf.transpose(noise, [1, 0, 2])
        gates = step.gate_offsets(self._condition(state, condition, time), batch, time)
        outputs = self.network.likelihood.num_parameters
        written = (
            tf.TensorArray(tf.int32, time, element_shape=[rows]),
            tf.TensorArray(self.network.front_dtype, time, element_shape=[rows, outputs]),
        )

        def body(
            t: tf.Tensor,
            past: Any,
            queues: tf.Tensor,
            levels: tf.TensorArray,
            parameters: tf.TensorArray,
        ) -> tuple[Any, ...]:
            now, past, queues = step(state.position + t, past, queues, gates[t])
            level = self.network.likelihood.sample(now, noise[t], temperature)
            return (
                t + 1,
                step.shift(past, level),
                queues,
                levels.write(t, level),
                parameters.write(t, now),
            )

        _, past, queues, levels, parameters = tf.while_loop(
            lambda t, *_: t < time,
            body,
            (tf.constant(0), state.past, state.queues, *written),
        )
        levels = tf.transpose(levels.stack())
        after = SamplerState(
            state.position + time, past, queues, self._blocks(state.blocks, levels)
        )
        return levels, tf.transpose(parameters.stack(), [1, 0, 2]), after

    def prime_state(
        self, state: SamplerState, condition: tf.Tensor | None, levels: tf.Tensor
    ) -> SamplerState:
        """Return the initial `state` after levels int32 [batch, time], by one network pass."""
        inputs = self.network.inputs(levels)
        hiddens = self.network.run_layers(inputs, condition)[1]
        queues, past = self.rings.fill(hiddens), self.network.past_of(inputs)
        blocks = self._blocks(state.blocks, levels)
        return SamplerState(tf.shape(levels)[1], past, queues, blocks)

    def _condition(
        self, state: SamplerState, condition: tf.Tensor | None, time: int
    ) -> tf.Tensor | None:
        stack = self.network.context_stack
        if stack is None:
            return condition
        if time != stack.block_samples:
            raise ValueError(
                f"`noise` must have the {stack.block_samples} samples of a context "
                f"block, got {time}."
            )
        context = stack.blocks(tf.cast(state.blocks, self.network.dtype))[:, -1:]
        context = tf.repeat(context, time, 1)
        return context if condition is None else tf.concat([condition, context], -1)

    def _blocks(self, blocks: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        count = self.network.config.context_blocks
        if not count:
            return blocks
        wave = tf.reshape(
            self.network.wave(levels),
            [tf.shape(levels)[0], -1, self.network.config.context_block_samples],
        )
        return tf.concat([blocks, wave], 1)[:, -count:]


class Rings:
    """The location of each layer's ring buffer in the buffer that all layers share."""

    def __init__(self, config: WaveNetConfig) -> None:
        self.taps = config.filter_width - 1
        self.dilations = np.array(config.dilations, np.int32)
        self.lengths = self.taps * self.dilations
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int32)
        self.slots = int(self.lengths.sum())

    def reads(self, position: tf.Tensor) -> tf.Tensor:
        """Return the slots of each layer's past taps, oldest first, int32 [layers, taps]."""
        back = self.dilations[:, None] * np.arange(self.taps, 0, -1, dtype=np.int32)
        # Adding the length keeps the dividend non-negative near the start.
        ring = (position + self.lengths[:, None] - back) % self.lengths[:, None]
        return self.starts[:, None] + ring

    def writes(self, position: tf.Tensor) -> tf.Tensor:
        """Return the slots to which the layers' current inputs are written, int32 [layers]."""
        return self.starts + position % self.lengths

    def fill(self, hiddens: list[tf.Tensor]) -> tf.Tensor:
        """Return the buffer [slots, batch, channels] after layer inputs [batch, time, channels]."""
        return tf.concat(
            [
                self._ring(hidden, int(length))
                for hidden, length in zip(hiddens, self.lengths, strict=True)
            ],
            0,
        )

    @staticmethod
    def _ring(hidden: tf.Tensor, length: int) -> tf.Tensor:
        """Return the last `length` time steps, with time step t in slot t mod length."""
        time = tf.shape(hidden)[1]
        recent = tf.pad(hidden, [[0, 0], [length, 0], [0, 0]])[:, -length:]
        # Roll so that time step t is in the slot that `writes` assigns to it.
        return tf.transpose(tf.roll(recent, time % length, 1), [1, 0, 2])


class LayerStep:
    """One step of the residual layers, with weights concatenated for a few large products."""

    def __init__(self, network: Network, rings: Rings) -> None:
        self.network, self.rings, self.layers = network, rings, network.stack.layers
        dtype = network.dtype
        self.gate_kernels = [
            tf.cast(tf.reshape(layer.gate_kernel, [-1, 2 * layer.gate_channels]), dtype)
            for layer in self.layers
        ]
        self.residual_kernels = [
            tf.cast(layer.residual_kernel, dtype) for layer in self.layers[:-1]
        ]
        skips = tf.cast(tf.concat([layer.skip_kernel for layer in self.layers], 0), dtype)
        self.skip_kernel = skips * network.stack.skip_scale

    def gate_offsets(self, condition: tf.Tensor | None, batch: int, time: int) -> tf.Tensor:
        """Return the projected condition plus bias of each gate, [time, batch, layers, 2 gate]."""
        bias = tf.stack([layer.gate_bias for layer in self.layers])
        if condition is None:
            return tf.broadcast_to(tf.cast(bias, self.network.dtype), [time, batch, *bias.shape])
        # The condition is known before the loop, so one product covers all time steps and layers.
        kernel = tf.stack([layer.condition_kernel for layer in self.layers])
        kernel = tf.reshape(tf.transpose(kernel, [1, 0, 2]), [condition.shape[-1], -1])
        offsets = tf.matmul(tf.transpose(condition, [1, 0, 2]), tf.cast(kernel, condition.dtype))
        offsets = tf.reshape(offsets, [time, batch, *bias.shape])
        return offsets + tf.cast(bias, condition.dtype)

    def skips(
        self, position: tf.Tensor, hidden: tf.Tensor, queues: tf.Tensor, gates: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the scaled sum of skips [batch, skip] of one step, and the updated queues.

        `hidden` is the first layer's input, [batch, residual]; `gates` are the step's
        `gate_offsets`, [batch, layers, 2 gate].
        """
        taps = tf.gather(queues, self.rings.reads(position))
        hiddens, units = [], []
        for i, layer in enumerate(self.layers):
            hiddens.append(hidden)
            inputs = tf.concat([*tf.unstack(taps[i]), hidden], -1)
            units.append(gate_halves(tf.matmul(inputs, self.gate_kernels[i]) + gates[:, i]))
            if i < len(self.layers) - 1:
                hidden = layer.residual(hidden, tf.matmul(units[-1], self.residual_kernels[i]))
        # The slot to write contains the oldest tap, so all taps are read first.
        queues = tf.tensor_scatter_nd_update(
            queues, self.rings.writes(position)[:, None], tf.stack(hiddens)
        )
        return tf.matmul(tf.concat(units, -1), self.skip_kernel), queues


class Step(LayerStep):
    """One time step of a `WaveNet` on a batch of waveforms."""

    network: WaveNet

    def __call__(
        self, position: tf.Tensor, past: Any, queues: tf.Tensor, gates: tf.Tensor
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Return the parameters of this step [batch, parameters], the past, and the queues."""
        hidden, prediction, past = self.network.front_step(past, position)
        skips, queues = self.skips(position, hidden, queues, gates)
        return self.network.head(skips, prediction), past, queues

    def shift(self, past: Any, level: tf.Tensor) -> Any:
        """Append `level`, int32 [batch], to the past inputs."""
        read = self.network.config.reads_levels
        return self.network.append_input(
            past, (level if read else self.network.wave(level))[:, None]
        )
