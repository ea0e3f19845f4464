"""Cached sampling of a vocoder as one XLA program per chunk, with one layer step per bunch.

The layers' queues are stored as in `xla.Rings`, with one entry per bunch. Three more buffers, float
[rows, batch] each, store the past that layers and head read directly: samples, residuals, and
samples divided by the level. Each has room for the history and one bunch. Rows before `end` are
the past, oldest first.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.samplers.cached import ChunkSampler
from onepass.samplers.registry import register
from onepass.step import incremental
from wavenet.conditioner import Condition
from wavenet.samplers.xla import LayerStep, Rings
from wavenet.vocoder import AHEAD, VocoderWaveNet


class BunchStep(LayerStep):
    """The computation of one bunch, under the condition `made` of a chunk."""

    network: VocoderWaveNet

    def __init__(self, network: VocoderWaveNet, rings: Rings, made: Condition) -> None:
        super().__init__(network, rings)
        self.made = made
        self.front_width = network.config.front_width
        self.head_width = network.config.head_width
        self.gain, self.shrink = tf.exp(-made.log_gain), tf.exp(-made.log_level)

    def of_bunch(
        self,
        number: tf.Tensor,
        time: int | tf.Tensor,
        end: int | tf.Tensor,
        buffers: Sequence[tf.Tensor],
        queues: tf.Tensor,
        gates: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run the layers; return their contribution to the head, and the queues.

        The contribution is [batch, B * 2 head_channels] for a bunch of B samples, the `gates` are
        [batch, layers, 2 gate], and `end` is the row of the buffers after the newest sample.
        """
        _, residual, scaled = buffers
        hidden = self.network.front(
            last(residual, end, self.front_width),
            last(scaled, end, self.front_width),
            self._pitch_taps(residual, time, end),
        )
        skips, queues = self.skips(number, hidden, queues, gates)
        return self.network.from_layers(skips), queues

    def parameters(
        self,
        time: int | tf.Tensor,
        end: int | tf.Tensor,
        buffers: Sequence[tf.Tensor],
        given: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the parameters of one sample [batch, parameters], and its prediction [batch].

        `end` is the row of the buffers after the newest sample; `given` is the layers' contribution
        to the head for this sample, [batch, 2 head_channels].
        """
        network = self.network
        wave, residual, scaled = buffers
        recent = network.from_recent(
            last(residual, end, self.head_width),
            last(scaled, end, self.head_width),
            self._pitch_taps(residual, time, end),
        )
        predicted = self._predict_sample(wave, time, end)
        raw = network.outputs(given + recent)
        return network.in_wave_units(raw, predicted, self.made.log_gain[:, time]), predicted

    def entries(
        self, time: int | tf.Tensor, value: tf.Tensor, predicted: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the entries [batch] of a new sample in the three buffers, given its value."""
        return value, (value - predicted) * self.gain[:, time], value * self.shrink[:, time]

    def _predict_sample(
        self, wave: tf.Tensor, time: int | tf.Tensor, end: int | tf.Tensor
    ) -> tf.Tensor:
        order = self.network.config.prediction_order
        if not order:
            return tf.zeros_like(wave[0])
        past = last(wave, end, order)
        return tf.reduce_sum(past[:, ::-1] * self.made.coefficients[:, time], -1)

    def _pitch_taps(
        self, residual: tf.Tensor, time: int | tf.Tensor, end: int | tf.Tensor
    ) -> tf.Tensor | None:
        taps = self.network.config.pitch_taps
        if not taps:
            return None
        period = self.network.whole_period(self.made.period[:, time])
        # The newest tap is AHEAD samples after the sample one period ago, still in the past.
        first = end - period + AHEAD + 1 - taps
        rows = first[:, None] + tf.range(taps)
        columns = tf.broadcast_to(tf.range(tf.shape(rows)[0])[:, None], tf.shape(rows))
        return tf.gather_nd(residual, tf.stack([rows, columns], -1))


class BunchDraws:
    """A vocoder's step for one row, over the step derived from its layers, in float32.

    The state consists of the latest samples, residuals and samples divided by the level, float
    [history] each, and of the layers' state. Attributes: `block`, the samples of a bunch.
    """

    def __init__(self, network: VocoderWaveNet) -> None:
        config = network.config
        self.block = config.bunch_samples
        self.history = max(config.history_samples, config.prediction_order, 1)
        self._network = copy.copy(network)  # which has the same variables
        self._network.dtype = self._network.front_dtype = tf.float32
        hidden = tf.TensorSpec([None, None, config.residual_channels])
        local = tf.TensorSpec([None, None, network.gate_channels])
        self._layers = incremental(network.stack, inputs=hidden, condition=local)

    def first_state(self) -> tuple[list[tf.Tensor], Any]:
        """Return the state before the first sample: silence, and zeroed queues."""
        return [tf.zeros([self.history]) for _ in range(3)], self._layers.initial_state(1)

    def draw_block(
        self,
        condition: tf.Tensor,
        state: tuple[list[tf.Tensor], Any],
        draw: Callable[[int, tf.Tensor], tf.Tensor],
    ) -> tuple[list[tf.Tensor], Any]:
        """Draw a bunch of one row; return the state after it.

        `condition` is [1, channels]; `draw` maps a sample's index and its parameters
        [1, parameters] to its level [1].
        """
        network, config = self._network, self._network.config
        made = network.split(condition[:, tf.newaxis])
        gain, shrink = tf.exp(-made.log_gain[0]), tf.exp(-made.log_level[0])
        buffers, layers = state
        new: list[list[tf.Tensor]] = [[], [], []]  # entries of this bunch, for each buffer

        def recent(kind: int, width: int) -> tf.Tensor:
            before = max(0, width - len(new[kind]))
            return tf.concat([buffers[kind][self.history - before :], *new[kind][-width:]], 0)

        hidden = network.front(
            recent(1, config.front_width)[tf.newaxis],
            recent(2, config.front_width)[tf.newaxis],
            self._pitch_taps(buffers[1], made, 0),
        )
        skips, layers = self._layers.step(hidden[:, tf.newaxis], layers, made.local)
        given = tf.reshape(network.from_layers(skips[:, 0]), [self.block, -1])
        for index in range(self.block):
            # The taps of most vocoders end before the bunch.
            is_short = config.pitch_taps < self.block
            residuals = tf.concat([buffers[1], *new[1]], 0) if is_short else buffers[1]
            gates = network.from_recent(
                recent(1, config.head_width)[tf.newaxis],
                recent(2, config.head_width)[tf.newaxis],
                self._pitch_taps(residuals, made, index),
            )
            predicted = tf.zeros([1])
            if order := config.prediction_order:
                past = recent(0, order)[::-1] * made.coefficients[0, 0]
                predicted = tf.reduce_sum(past, keepdims=True)
            raw = network.outputs(given[index : index + 1] + gates)
            level = draw(index, network.in_wave_units(raw, predicted, made.log_gain[:, 0]))
            value = network.inputs(level)
            entries = value, (value - predicted) * gain, value * shrink
            for kind, entry in enumerate(entries):
                new[kind].append(entry)
        after = [tf.concat([x[self.block :], *y], 0) for x, y in zip(buffers, new, strict=True)]
        return after, layers

    def _pitch_taps(self, residual: tf.Tensor, made: Condition, index: int) -> tf.Tensor | None:
        taps = self._network.config.pitch_taps
        if not taps:
            return None
        period = self._network.whole_period(made.period[0, 0])
        first = self.history + index - period + AHEAD + 1 - taps
        return tf.slice(residual, [first], [taps])[tf.newaxis]


def last(values: tf.Tensor, end: int | tf.Tensor, width: int) -> tf.Tensor:
    """Return the `width` values before the row `end`, oldest first, [batch, width]."""
    return tf.transpose(tf.slice(values, [end - width, 0], [width, -1]))


def written_at(
    buffers: Sequence[tf.Tensor], row: int | tf.Tensor, entries: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, ...]:
    """Return the buffers after writing an entry [batch] to a row of each."""
    return tuple(
        tf.tensor_scatter_nd_update(x, [[row]], entry[None])
        for x, entry in zip(buffers, entries, strict=True)
    )


class VocoderState(NamedTuple):
    """The state between two bunches."""

    position: tf.Tensor
    """Number of samples so far, a multiple of the bunch size, int32 []."""
    wave: tf.Tensor
    """The latest samples, float [history, batch]."""
    residual: tf.Tensor
    """The latest residuals, float [history, batch]."""
    scaled: tf.Tensor
    """The latest samples divided by the level, float [history, batch]."""
    queues: tf.Tensor
    """Past inputs of all layers, [slots, batch, residual_channels]."""


@register(VocoderWaveNet, object, method="cached")
@register(VocoderWaveNet, object, method="xla")
class VocoderSampler(ChunkSampler):
    """The cached sampler of a `VocoderWaveNet`."""

    def __init__(self, network: VocoderWaveNet, distribution: Any = None) -> None:
        super().__init__(network)
        self.rings = Rings(network.config)
        self.history = max(network.config.history_samples, network.config.prediction_order, 1)

    def initial_state(self, batch: int) -> VocoderState:
        """Return the state before the first sample: silence, and zeroed queues."""
        config, network = self.network.config, self.network
        past = tf.zeros([self.history, batch], network.front_dtype)
        queues = tf.zeros([self.rings.slots, batch, config.residual_channels], network.dtype)
        return VocoderState(tf.constant(0), past, past, past, queues)

    def chunk(
        self, state: VocoderState, condition: tf.Tensor, noise: tf.Tensor, temperature: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, VocoderState]:
        """Draw a chunk bunch by bunch; return levels, parameters and the next state."""
        network, bunch = self.network, self.network.config.bunch_samples
        rows, time = noise.shape[0], noise.shape[1]
        if time % bunch:
            raise ValueError(f"`noise` must hold whole bunches of {bunch}, got {time} samples.")
        batch = tf.shape(noise)[0] if rows is None else rows
        made = network.split(tf.cast(condition, network.front_dtype))
        step = BunchStep(network, self.rings, made)
        local = tf.cast(made.local, network.dtype)[:, ::bunch]
        gates = step.gate_offsets(local, batch, time // bunch)
        room = [[0, bunch], [0, 0]]
        buffers = tuple(tf.pad(x, room) for x in (state.wave, state.residual, state.scaled))
        outputs = network.likelihood.num_parameters
        written = (
            tf.TensorArray(tf.int32, time, element_shape=[rows]),
            tf.TensorArray(network.front_dtype, time, element_shape=[rows, outputs]),
        )
        start = state.position // bunch

        def body(
            n: tf.Tensor,
            buffers: Sequence[tf.Tensor],
            queues: tf.Tensor,
            levels: tf.TensorArray,
            parameters: tf.TensorArray,
        ) -> tuple[Any, ...]:
            first, end = n * bunch, self.history
            given, queues = step.of_bunch(start + n, first, end, buffers, queues, gates[n])
            for i, part in enumerate(tf.split(given, bunch, -1)):
                time, end = first + i, self.history + i
                now, predicted = step.parameters(time, end, buffers, part)
                level = network.likelihood.sample(now, noise[:, time], temperature)
                value = tf.cast(network.inputs(level), state.wave.dtype)
                buffers = written_at(buffers, end, step.entries(time, value, predicted))
                levels = levels.write(time, level)
                parameters = parameters.write(time, now)
            buffers = tuple(tf.pad(x[bunch:], room) for x in buffers)
            return n + 1, buffers, queues, levels, parameters

        _, buffers, queues, levels, parameters = tf.while_loop(
            lambda n, *_: n < time // bunch,
            body,
            (tf.constant(0), buffers, state.queues, *written),
        )
        wave, residual, scaled = (x[: self.history] for x in buffers)
        after = VocoderState(state.position + time, wave, residual, scaled, queues)
        return tf.transpose(levels.stack()), tf.transpose(parameters.stack(), [1, 0, 2]), after

    def prime_state(
        self, state: VocoderState, condition: tf.Tensor, levels: tf.Tensor
    ) -> VocoderState:
        """Return the initial `state` after levels int32 [batch, time], by one network pass."""
        network = self.network
        inputs = tf.cast(network.inputs(levels), network.front_dtype)
        made = network.split(tf.cast(condition, network.front_dtype))
        _, residuals, ratios = network.residuals(inputs, made)
        past = (state.wave, state.residual, state.scaled)
        wave, residual, scaled = (
            tf.concat([before, tf.transpose(new)], 0)[-self.history :]
            for before, new in zip(past, (inputs, residuals, ratios), strict=True)
        )
        queues = self.rings.fill(network.run_layers(inputs, condition)[1])
        return VocoderState(tf.shape(levels)[1], wave, residual, scaled, queues)
