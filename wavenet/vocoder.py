"""A WaveNet for vocoding: linear prediction and pitch from frames, several samples per step.

The residual layers are WaveNet's (wavenet/network.py); the input and output differ:

    x_t = p_t + g_t e_t     p_t, g_t: linear prediction from the mel (LPCNet, arXiv 1810.11846)
    p(x_t | x_<t, c) = p_e(e_t | ...) / g_t                      a mixture of logistics over e_t
    inputs: past residuals e, past samples over their level, residuals one pitch period ago
                                                         (pitch taps: QPNet, arXiv 2007.05663)

The layers run once per bunch of B samples; a small head, causal within the bunch, computes the
mixture of each sample (bunched LPCNet, arXiv 2008.04574). Every density is exact.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.foundation.runtime import compute_dtype
from onepass.likelihoods.distribution import with_scales
from onepass.likelihoods.noise import Initial
from wavenet.conditioner import SIDE_FRAMES, Condition, Conditioner
from wavenet.config import MelConvention, WaveNetConfig
from wavenet.linear_prediction import predictions, with_past
from wavenet.network import (
    Network,
    OwnStep,
    check_condition,
    gate_halves,
    initial_embedding,
    speaker_row,
    stack_of,
)

AHEAD = 4  # number of pitch taps after the sample exactly one period ago


class VocoderWaveNet(Network):
    """The vocoder; it contains only variables, and is called like `WaveNet`."""

    def __init__(self, config: WaveNetConfig, mel: MelConvention, seed: int = 0) -> None:
        super().__init__()
        if not config.conditioner_units:
            raise UserError("`conditioner_units` must be above 0 for a vocoder, got 0.")
        initial = Initial(seed)
        self.config, self.codec = config, config.make_codec()
        likelihood = config.make_likelihood()
        located = with_scales(likelihood)
        if located is None:
            name = type(likelihood).__name__
            raise ValueError(f"`likelihood` must have means and scales for a vocoder, got {name}.")
        self.likelihood = located
        self.dtype = compute_dtype(config.compute_dtype)
        self.front_dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        residual = config.residual_channels
        self.conditioner = Conditioner(config, initial, mel)
        self.speaker_embedding = initial_embedding(config, initial)
        inputs = 2 * config.front_width + config.pitch_taps
        self.front_kernel = initial.kernel([inputs, residual], "front_kernel")
        self.front_bias = initial.zeros([residual], "front_bias")
        # Of the condition that the gates read, and samples per sub-frame, for which it is constant.
        self.gate_channels = config.gate_inputs - config.prediction_order - 3
        self.row_samples = config.hop_samples // config.subframes
        self.stack = stack_of(config, initial, self.gate_channels)
        self.skip_bias = initial.zeros([config.skip_channels], "skip_bias")
        units = config.head_channels
        inputs = 2 * config.head_width + config.pitch_taps
        self.head_kernel = initial.kernel(
            [config.skip_channels, config.bunch_samples * 2 * units], "head_kernel"
        )
        self.head_bias = initial.zeros([config.bunch_samples, 2 * units], "head_bias")
        self.recent_kernel = initial.kernel([inputs, 2 * units], "recent_kernel")
        self.head1_kernel = initial.kernel([units, units], "head1_kernel", gain=1.4)
        self.head1_bias = initial.zeros([units], "head1_bias")
        outputs = self.likelihood.num_parameters
        self.head2_kernel = initial.kernel([units, outputs], "head2_kernel", gain=0.1)
        logits, means, scales = self.likelihood.sections
        bias = tf.concat([tf.zeros([logits + means]), tf.linspace(-3.0, 0.0, scales)], 0)
        self.head2_bias = tf.Variable(bias, name="head2_bias")

    def copy_untrained(self) -> "VocoderWaveNet":
        """See `Network.copy_untrained`."""
        return VocoderWaveNet(self.config, self.conditioner.mel)

    def inputs(self, levels: tf.Tensor) -> tf.Tensor:
        """See `Network.inputs`."""
        return self.codec.scale(levels)

    def condition(
        self,
        frames: tf.Tensor | None = None,
        speaker: tf.Tensor | None = None,
        num_samples: int | None = None,
    ) -> tf.Tensor:
        """See `Network.condition`: the concatenated fields of `Condition`, which `split` takes."""
        rows = self.rows(frames, speaker)
        whole = tf.repeat(rows, self.row_samples, 1)
        return whole if num_samples is None else whole[:, :num_samples]

    def rows(
        self, frames: tf.Tensor | None, speaker: tf.Tensor | None = None, side_frames: int = 0
    ) -> tf.Tensor:
        """Return the condition [batch, rows, channels] of every sub-frame but the side frames'."""
        check_condition(self.config, frames, speaker)
        made = self.conditioner(frames, side_frames)
        local = made.local
        if self.config.speakers:
            row = tf.cast(speaker_row(self.config, self.speaker_embedding, speaker), local.dtype)
            local = tf.concat([local, tf.repeat(row[:, None], tf.shape(local)[1], 1)], -1)
        scalars = tf.stack([made.log_gain, made.log_level, made.period], -1)
        return tf.concat([local, made.coefficients, scalars], -1)

    def split(self, condition: tf.Tensor) -> Condition:
        """Split a condition [batch, rows, channels] into its fields."""
        sizes = [self.gate_channels, self.config.prediction_order, 1, 1, 1]
        local, coefficients, *numbers = tf.split(condition, sizes, -1)
        log_gain, log_level, period = (each[..., 0] for each in numbers)
        return Condition(local, coefficients, log_gain, log_level, period)

    def __call__(self, inputs: tf.Tensor, condition: tf.Tensor, row_samples: int = 1) -> tf.Tensor:
        """See `Network.__call__`.

        The first sample begins a bunch. The condition has a row every `row_samples` samples: 1 for
        a result of `condition`. The result is float32, or float64 if `compute_dtype` is.
        """
        time = tf.shape(inputs)[1]
        if row_samples == 1 and self.config.bunch_samples > 1:  # longer rows are whole bunches
            # Pad the end to a whole bunch; no earlier sample depends on the padding.
            short = [[0, 0], [0, -time % self.config.bunch_samples]]
            inputs, condition = tf.pad(inputs, short), tf.pad(condition, [*short, [0, 0]])
        made = self.split(tf.cast(condition, self.front_dtype))
        bottom = self._bottom(tf.cast(inputs, self.front_dtype), made, row_samples)
        raw = self.head(self.stack(bottom.hidden, bottom.local), bottom)
        log_gain = spread(made.log_gain, row_samples)
        return self.in_wave_units(raw, bottom.predicted, log_gain)[:, :time]

    @property
    def past_samples(self) -> dict[str, int]:
        """Number of past samples, residuals and samples over their level that a step reads."""
        config = self.config
        return {
            "wave": max(config.prediction_order, 1),
            "residual": config.history_samples,
            "scaled": max(config.front_width, config.head_width),
        }

    def initial_state(self, batch: int) -> dict[str, Any]:
        """See `Network.initial_state`.

        The state holds the past without its newest sample, which is the next input: its prediction,
        its inverse gain and level, and the layers' contribution to the head for the present bunch.
        """
        config, kind = self.config, self.front_dtype
        sizes = {name: n + config.bunch_samples - 1 for name, n in self.past_samples.items()}
        past = {name: tf.zeros([batch, size], kind) for name, size in sizes.items()}
        newest = {name: tf.zeros([batch], kind) for name in ("predicted", "gain", "shrink")}
        heads = tf.zeros([batch, config.bunch_samples * 2 * config.head_channels], self.dtype)
        return {**past, **newest, "heads": heads, "layers": self.stack.initial_state(batch)}

    def stepper(self, condition: tf.Tensor | None) -> OwnStep:
        """See `Network.stepper`; the layers run in the first step of a bunch."""
        made = self.split(tf.cast(condition, self.front_dtype))
        gain, shrink = tf.exp(-made.log_gain), tf.exp(-made.log_level)
        front, head = self.config.front_width, self.config.head_width

        def step(
            time: Any, remainder: int, newest: tf.Tensor, state: dict[str, Any]
        ) -> tuple[tf.Tensor, dict[str, Any]]:
            past, taps = self._append_newest(newest, state, begins=not remainder), None
            residual, scaled = past["residual"], past["scaled"]
            if count := self.config.pitch_taps:
                first = (
                    residual.shape[1] + AHEAD + 1 - count - self.whole_period(made.period[:, time])
                )
                taps = tf.gather(residual, first[:, tf.newaxis] + tf.range(count), batch_dims=1)
            heads, layers = state["heads"], state["layers"]
            if not remainder:
                hidden = self.front(residual[:, -front:], scaled[:, -front:], taps)
                local = tf.cast(made.local[:, time], self.dtype)[:, tf.newaxis]
                skips, layers = self.stack.step(hidden[:, tf.newaxis], layers, local)
                heads = self.from_layers(skips[:, 0])
            recent = self.from_recent(residual[:, -head:], scaled[:, -head:], taps)
            raw = self.outputs(tf.split(heads, self.config.bunch_samples, -1)[remainder] + recent)
            predicted = tf.zeros_like(past["wave"][:, 0])
            if order := self.config.prediction_order:
                terms = past["wave"][:, : -order - 1 : -1] * made.coefficients[:, time]
                predicted = tf.reduce_sum(terms, -1)
            parameters = self.in_wave_units(raw, predicted, made.log_gain[:, time])
            newest = {"predicted": predicted, "gain": gain[:, time], "shrink": shrink[:, time]}
            return parameters[:, tf.newaxis], {**past, **newest, "heads": heads, "layers": layers}

        return step

    def chunk(
        self, inputs: tf.Tensor, state: dict[str, Any], condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """See `Network.chunk`."""
        made = self.split(tf.cast(condition, self.front_dtype))
        past = self._append_newest(inputs[:, :1], state, begins=True)
        # No parameters depend on the last sample, which is not known yet.
        wave = tf.cast(tf.pad(inputs[:, 1:], [[0, 0], [0, 1]]), self.front_dtype)
        bottom = self._bottom(wave, made, 1, past)
        steps = inputs.shape[1] // self.config.bunch_samples
        hidden = tf.ensure_shape(bottom.hidden, [None, steps, None])
        skips, layers = self.stack.step(hidden, state["layers"], bottom.local)
        parameters = self.in_wave_units(
            self.head(skips, bottom, past), bottom.predicted, made.log_gain
        )
        new = {"wave": wave, "residual": bottom.residual, "scaled": bottom.scaled}
        after = {
            name: tf.concat([past[name], new[name][:, :-1]], 1)[:, -state[name].shape[1] :]
            for name in past
        }
        last = {"gain": tf.exp(-made.log_gain[:, -1]), "shrink": tf.exp(-made.log_level[:, -1])}
        after |= {**last, "predicted": bottom.predicted[:, -1], "layers": layers}
        return parameters, {**state, **after}

    def _append_newest(
        self, newest: tf.Tensor, state: dict[str, Any], begins: bool
    ) -> dict[str, tf.Tensor]:
        """Return the past with its newest sample, [batch, 1]; where a bunch begins, without one."""
        value = tf.cast(newest[:, 0], self.front_dtype)
        residual = (value - state["predicted"]) * state["gain"]
        entries = {"wave": value, "residual": residual, "scaled": value * state["shrink"]}
        first = self.config.bunch_samples if begins else 0
        return {
            name: tf.concat([state[name], entry[:, tf.newaxis]], 1)[:, first:]
            for name, entry in entries.items()
        }

    def training_parameters(
        self, inputs: tf.Tensor, frames: tf.Tensor | None, speaker: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the parameters of training clips whose frames have `SIDE_FRAMES` neighbours."""
        return self(inputs, self.rows(frames, speaker, SIDE_FRAMES), self.row_samples)

    def clip_rows(
        self,
        frames: tf.Tensor | None,
        speaker: tf.Tensor | None,
        num_samples: int,
        side_frames: int = 0,
    ) -> tf.Tensor:
        """Return the condition of sub-frames covering `num_samples`, [batch, rows, channels]."""
        return self.rows(frames, speaker, side_frames)[:, : -(-num_samples // self.row_samples)]

    def of_rows(self, inputs: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """See `Network.of_rows`."""
        time = tf.shape(inputs)[1]
        beyond = tf.shape(rows)[1] * self.row_samples - time
        padded = tf.pad(inputs, [[0, 0], [0, beyond]])
        return self(padded, rows, self.row_samples)[:, :time]

    def _bottom(
        self,
        wave: tf.Tensor,
        made: Condition,
        row_samples: int,
        before: Mapping[str, tf.Tensor] = MappingProxyType({}),
    ) -> "_Bottom":
        """Return what layers and head read, for a wave after the entries `before` of a state."""
        bunch = self.config.bunch_samples
        residual_before, scaled_before = before.get("residual"), before.get("scaled")
        predicted, residual, scaled = self.residuals(wave, made, row_samples, before.get("wave"))
        taps, step_taps = None, None
        if self.config.pitch_taps:
            period = spread(made.period, row_samples)
            taps = self.pitch_taps(residual, period, residual_before)
            step_taps = taps[:, ::bunch]
        width = self.config.front_width
        own = past(residual, width, bunch, residual_before)
        hidden = self.front(own, past(scaled, width, bunch, scaled_before), step_taps)
        local = tf.cast(made.local, hidden.dtype)
        if row_samples < bunch:
            local = local[:, :: bunch // row_samples]
        return _Bottom(hidden, local, predicted, residual, scaled, taps)

    def residuals(
        self,
        wave: tf.Tensor,
        made: Condition,
        row_samples: int = 1,
        before: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return predictions p_t, residuals e_t, and samples x_t / level, [batch, time] each."""
        predicted = tf.zeros_like(wave)
        if self.config.prediction_order:
            predicted = predictions(wave, made.coefficients, before)
        residual = (wave - predicted) * spread(tf.exp(-made.log_gain), row_samples)
        return predicted, residual, wave * spread(tf.exp(-made.log_level), row_samples)

    def front(self, residuals: tf.Tensor, scaled: tf.Tensor, taps: tf.Tensor | None) -> tf.Tensor:
        """Return the input of the first layer, [..., residual_channels].

        `residuals` and `scaled` precede the step, oldest first, [..., front_width] each.
        """
        inputs = tf.concat([residuals, scaled] + ([] if taps is None else [taps]), -1)
        hidden = tf.matmul(inputs, tf.cast(self.front_kernel, inputs.dtype))
        return tf.cast(hidden + tf.cast(self.front_bias, hidden.dtype), self.dtype)

    def pitch_taps(
        self, residual: tf.Tensor, period: tf.Tensor, before: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the residuals around one period before every sample, [batch, time, pitch_taps].

        Tap j of sample t is the residual of sample t - period + j - pitch_taps + AHEAD + 1, always
        an earlier one since `whole_period` has a lower bound.
        """
        taps, longest = self.config.pitch_taps, self.config.longest_period
        padded = with_past(residual, longest + taps, before)
        start = tf.range(tf.shape(residual)[1]) - self.whole_period(period)
        index = start[..., None] + (longest + AHEAD + 1 + tf.range(taps))
        return tf.gather(padded, index, batch_dims=1)

    def whole_period(self, period: tf.Tensor) -> tf.Tensor:
        """Return the period in whole samples, clipped to the range of the taps, int32 [...]."""
        shortest, longest = self.config.pitch_taps + AHEAD, self.config.longest_period
        return tf.cast(tf.clip_by_value(tf.round(period), shortest, longest), tf.int32)

    def head(
        self,
        skips: tf.Tensor,
        bottom: "_Bottom",
        before: Mapping[str, tf.Tensor] = MappingProxyType({}),
    ) -> tf.Tensor:
        """Return the mixture parameters of the residuals, [batch, time, parameters]."""
        config, heads = self.config, self.from_layers(skips)
        heads = tf.reshape(heads, [tf.shape(skips)[0], -1, 2 * config.head_channels])
        recent = self.from_recent(
            past(bottom.residual, config.head_width, 1, before.get("residual")),
            past(bottom.scaled, config.head_width, 1, before.get("scaled")),
            bottom.taps,
        )
        return self.outputs(heads + recent)

    def from_layers(self, skips: tf.Tensor) -> tf.Tensor:
        """Return the layers' contribution to the head per bunch, [..., B * 2 head_channels]."""
        dtype = skips.dtype
        hidden = tf.nn.relu(skips + tf.cast(self.skip_bias, dtype))
        gates = tf.matmul(hidden, tf.cast(self.head_kernel, dtype))
        return gates + tf.cast(tf.reshape(self.head_bias, [-1]), dtype)

    def from_recent(
        self, residuals: tf.Tensor, scaled: tf.Tensor, taps: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the contribution of the latest samples to the head, [..., 2 head_channels]."""
        inputs = tf.concat([residuals, scaled] + ([] if taps is None else [taps]), -1)
        gates = tf.matmul(inputs, tf.cast(self.recent_kernel, inputs.dtype))
        return tf.cast(gates, self.dtype)

    def outputs(self, gates: tf.Tensor) -> tf.Tensor:
        """Return the residual's parameters [..., parameters] from gates [..., 2 head_channels]."""
        dtype = gates.dtype
        hidden = tf.matmul(gate_halves(gates), tf.cast(self.head1_kernel, dtype))
        hidden = tf.nn.relu(hidden + tf.cast(self.head1_bias, dtype))
        raw = tf.cast(tf.matmul(hidden, tf.cast(self.head2_kernel, dtype)), self.front_dtype)
        return raw + tf.cast(self.head2_bias, raw.dtype)

    def in_wave_units(self, raw: tf.Tensor, predicted: tf.Tensor, log_gain: tf.Tensor) -> tf.Tensor:
        """Convert the mixture over e_t to one over x_t: mean p + g m, log-scale log g + s."""
        weights, means, log_scales = tf.split(raw, self.likelihood.sections, -1)
        gain = log_gain[..., None]
        means = predicted[..., None] + tf.exp(gain) * means
        return tf.concat([weights, means, log_scales + gain], -1)


class _Bottom(NamedTuple):
    """Inputs of the layers and the head, which are computed before the layers run."""

    hidden: tf.Tensor
    local: tf.Tensor
    predicted: tf.Tensor
    residual: tf.Tensor
    scaled: tf.Tensor
    taps: tf.Tensor | None


def past(x: tf.Tensor, width: int, every: int = 1, before: tf.Tensor | None = None) -> tf.Tensor:
    """Return the `width` values before every `every`-th value, [batch, time / every, width]."""
    padded = with_past(x, width, before)
    time = tf.shape(x)[1]
    return tf.stack([padded[:, j : j + time : every] for j in range(width)], -1)


def spread(rows: tf.Tensor, times: int) -> tf.Tensor:
    """Repeat each value of `rows` [batch, rows] `times` times, [batch, rows * times]."""
    return rows if times == 1 else tf.repeat(rows, times, 1)
