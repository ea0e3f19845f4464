"""Cached generation of a vocoder as one XLA program a chunk: a step of the layers a bunch.

The layers' queues are those of `xla.Rings`, one entry a bunch. What layers and head read of the
past directly, samples and residuals, lies in two buffers as long as history and chunk together.
"""

from typing import NamedTuple

import tensorflow as tf

from wavenet.conditioner import Condition
from wavenet.samplers.xla import LayerStep, Rings
from wavenet.vocoder import AHEAD, VocoderWaveNet


class VocoderState(NamedTuple):
    """All that the next bunch depends on beside noise and condition."""

    position: tf.Tensor
    """int32 [], samples so far, a multiple of the bunch."""
    wave: tf.Tensor
    """The last samples, float [history, batch]."""
    residual: tf.Tensor
    """The last residuals, float [history, batch]."""
    scaled: tf.Tensor
    """The last samples over their level, float [history, batch]."""
    queues: tf.Tensor
    """Past inputs of all layers, [slots, batch, residual_channels]."""


class VocoderSampler:
    """Generates with a network's current weights; compiled once for each chunk shape."""

    found = "parameters"  # beside levels and state, what `generate_chunk` returns

    def __init__(self, network: VocoderWaveNet):
        self.network = network
        self.rings = Rings(network.config)
        self.history = max(network.config.history_samples, network.config.prediction_order, 1)
        self._chunk = tf.function(self.chunk, jit_compile=True, autograph=False)
        self._prime = tf.function(self._primed, autograph=False, reduce_retracing=True)

    def initial_state(self, batch: int) -> VocoderState:
        """The state before the first sample: silence, and empty queues."""
        config, network = self.network.config, self.network
        past = tf.zeros([self.history, batch], network.front_dtype)
        queues = tf.zeros([self.rings.slots, batch, config.residual_channels], network.dtype)
        return VocoderState(tf.constant(0), past, past, past, queues)

    def generate_chunk(self, state: VocoderState, condition, noise, temperature: float = 1.0):
        """The next levels, int32 [batch, time], their parameters, and the state after them.

        Args:
          state: from `initial_state`, `prime` or the chunk before.
          condition: [batch, time, channels] of these samples.
          noise: float32 [batch, time, noise_channels] of these samples, whole bunches.
          temperature: 1 samples the model, less is closer to its mode.
        """
        return self._chunk(state, condition, noise, tf.constant(temperature, tf.float32))

    def prime(self, state: VocoderState, condition, levels) -> VocoderState:
        """The state after the given levels, int32 [batch, time], computed in one parallel pass.

        `state` must be an initial state; time must be a multiple of the bunch.
        """
        return self._prime(state, condition, levels)

    def chunk(self, state: VocoderState, condition, noise, temperature):
        """What `generate_chunk` compiles: a pure function of tensors and the weights.

        temperature: float32 [], or [batch], one for each.
        """
        network, bunch = self.network, self.network.config.bunch_samples
        rows, time = noise.shape[0], noise.shape[1]
        if time % bunch:
            raise ValueError(f"`noise` must hold whole bunches of {bunch}, got {time} samples.")
        batch = tf.shape(noise)[0] if rows is None else rows
        made = network.split(tf.cast(condition, network.front_dtype))
        step = BunchStep(network, self.rings, made, noise, temperature, self.history)
        local = tf.cast(made.local, network.dtype)[:, ::bunch]
        gates = step.gate_offsets(local, batch, time // bunch)
        room = [[0, time], [0, 0]]
        buffers = tuple(tf.pad(x, room) for x in (state.wave, state.residual, state.scaled))
        outputs = network.likelihood.num_parameters
        written = (
            tf.TensorArray(tf.int32, time, element_shape=[rows]),
            tf.TensorArray(network.front_dtype, time, element_shape=[rows, outputs]),
        )
        start = state.position // bunch

        def body(n, buffers, queues, levels, parameters):
            skips, queues = step.of_bunch(start + n, n * bunch, buffers, queues, gates[n])
            given = network.from_layers(skips)
            for i, part in enumerate(tf.split(given, bunch, -1)):
                level, now, buffers = step.sample(n * bunch + i, buffers, part)
                levels = levels.write(n * bunch + i, level)
                parameters = parameters.write(n * bunch + i, now)
            return n + 1, buffers, queues, levels, parameters

        _, buffers, queues, levels, parameters = tf.while_loop(
            lambda n, *_: n < time // bunch,
            body,
            (tf.constant(0), buffers, state.queues, *written),
            maximum_iterations=time // bunch,
        )
        wave, residual, scaled = (x[-self.history :] for x in buffers)
        after = VocoderState(state.position + time, wave, residual, scaled, queues)
        return tf.transpose(levels.stack()), tf.transpose(parameters.stack(), [1, 0, 2]), after

    def _primed(self, state, condition, levels):
        network = self.network
        inputs = tf.cast(network.inputs(levels), network.front_dtype)
        made = network.split(tf.cast(condition, network.front_dtype))
        _, residuals, ratios = network.residuals(inputs, made)
        past = (state.wave, state.residual, state.scaled)
        wave, residual, scaled = (
            tf.concat([before, tf.transpose(new)], 0)[-self.history :]
            for before, new in zip(past, (inputs, residuals, ratios), strict=True)
        )
        queues = self.rings.fill(network.resumed(inputs, condition)[1])
        return VocoderState(tf.shape(levels)[1], wave, residual, scaled, queues)


class BunchStep(LayerStep):
    """One step of the layers and the samples of its bunch, over the condition of a chunk."""

    network: VocoderWaveNet

    def __init__(
        self,
        network: VocoderWaveNet,
        rings: Rings,
        made: Condition,
        noise,
        temperature,
        history: int,
    ):
        super().__init__(network, rings)
        self.made, self.history, self.noise, self.temperature = made, history, noise, temperature
        self.front_width = network.config.front_width
        self.head_width = network.config.head_width
        self.gain, self.shrink = tf.exp(-made.log_gain), tf.exp(-made.log_level)

    def of_bunch(self, number, first, buffers, queues, gates):
        """The layers' skips [batch, skip] for the bunch that begins at `first`, and the queues."""
        _, residual, scaled = buffers
        hidden = self.network.front(
            self._last(residual, first, self.front_width),
            self._last(scaled, first, self.front_width),
            self._pitch_taps(residual, first),
        )
        return self.skips(number, hidden, queues, gates)

    def sample(self, time, buffers, given):
        """The level of one sample int32 [batch], its parameters, and the buffers with it.

        given: what the layers give to the head of this sample, [batch, units].
        """
        network = self.network
        wave, residual, scaled = buffers
        recent = network.from_recent(
            self._last(residual, time, self.head_width),
            self._last(scaled, time, self.head_width),
            self._pitch_taps(residual, time),
        )
        predicted = self._predicted(wave, time)
        raw = network.outputs(given + recent)
        now = network.in_wave_units(raw, predicted, self.made.log_gain[:, time])
        level = network.likelihood.sample(now, self.noise[:, time], self.temperature)
        value = tf.cast(network.inputs(level), wave.dtype)
        entries = (
            value,
            (value - predicted) * self.gain[:, time],
            value * self.shrink[:, time],
        )
        place = [[self.history + time]]
        return (
            level,
            now,
            tuple(
                tf.tensor_scatter_nd_update(x, place, entry[None])
                for x, entry in zip(buffers, entries, strict=True)
            ),
        )

    def _predicted(self, wave, time):
        order = self.network.config.prediction_order
        if not order:
            return tf.zeros_like(wave[0])
        past = self._last(wave, time, order)
        return tf.reduce_sum(past[:, ::-1] * self.made.coefficients[:, time], -1)

    def _last(self, values, time, width: int):
        """The `width` values before a time, oldest first, [batch, width]."""
        first = self.history + time - width
        return tf.transpose(tf.slice(values, [first, 0], [width, -1]))

    def _pitch_taps(self, residual, time):
        taps = self.network.config.pitch_taps
        if not taps:
            return None
        period = self.network.whole_period(self.made.period[:, time])
        first = self.history + time - period + AHEAD + 1 - taps
        rows = first[:, None] + tf.range(taps)
        columns = tf.broadcast_to(tf.range(tf.shape(rows)[0])[:, None], tf.shape(rows))
        return tf.gather_nd(residual, tf.stack([rows, columns], -1))
