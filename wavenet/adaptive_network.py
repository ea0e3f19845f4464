"""A WaveNet around linear predictions that adapt to the audio: a density for lossless compression.

Each block of samples has several linear predictors, which are solved from windows of the samples
before it (`wavenet.linear_prediction`). With the prediction p of the first predictor, its residuals
e and their expected size g, the network

    reads    e_(t-1..t-K) / g, x_(t-1..t-K) / level, the other predictions, logs of g and level
    mean     p + sum_k c_k e_(t-k) + sum_w v_w (p_w - p) + m g s
    scale    g s

where the network computes the corrections c, the weights v of the other predictions p_w, and the
means m and scales s of the mixture.
"""

from typing import Any

import tensorflow as tf

from onepass.likelihoods.distribution import with_scales
from wavenet.config import WaveNetConfig
from wavenet.linear_prediction import PastPrediction
from wavenet.network import WaveNet

LOG_LEVEL = -6.0  # of speech, about the middle of the logs that the network reads
LOG_SPREAD = 3.0


class AdaptiveWaveNet(WaveNet):
    """A `WaveNet` for configurations with `prediction_windows`, with a different front and head."""

    def __init__(self, config: WaveNetConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        located = with_scales(self.likelihood)
        if located is not None:  # from a little above the residual's expected size to below it
            *others, scales = located.sections
            start = [0.0] * sum(others), tf.linspace(0.5, -1.5, scales), [0.0] * config.corrections
            self.head2_bias.assign(tf.concat(start, 0))
        self.period, self.renew_samples = config.prediction_block, max(config.prediction_windows)
        # Past samples that corrections and predictions of one sample read.
        self._taps = config.front_width + config.prediction_order
        self.past_prediction = PastPrediction(config.prediction_order, config.prediction_windows)

    def _front(self, past: tf.Tensor, skipped: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
        config, shape = self.config, tf.shape(past)
        block, longest = config.prediction_block, max(config.prediction_windows)
        wave, short = tf.cast(past, tf.float64), -shape[1] % block
        windows = tf.signal.frame(tf.pad(wave, [[0, 0], [longest - 1, short]]), longest, block)
        before = config.front_width + config.prediction_order - 1
        recent = tf.signal.frame(tf.pad(wave, [[0, 0], [before, short]]), before + block, block)
        made = self._of_blocks(self.past_prediction(windows), recent)
        return tuple(
            tf.reshape(part, [shape[0], -1, part.shape[-1]])[:, : shape[1]] for part in made
        )

    def initial_state(self, batch: int) -> dict[str, Any]:
        """See `Network.initial_state`; the state includes the predictors, which are zero."""
        config = self.config
        windows = [batch, len(config.prediction_windows), config.prediction_order + 2]
        length = self._taps if self.is_renewed else max(config.prediction_windows)
        past, solved = tf.zeros([batch, length]), tf.zeros(windows, tf.float64)
        return {**super().initial_state(batch), "past": past, "solved": solved}

    def renew(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Network.renew`: the predictors of the next block."""
        return {"solved": self.past_prediction(tf.cast(inputs, tf.float64))}

    def _front_after(
        self, inputs: tf.Tensor, state: dict[str, Any]
    ) -> tuple[tf.Tensor, tf.Tensor | None, dict[str, Any]]:
        """Return a step's hidden state and prediction; solve predictors if a block begins."""
        if inputs.shape[1] != 1:
            raise ValueError(f"`inputs` must hold 1 sample, got {inputs.shape[1]}.")
        wave = tf.concat([state["past"][:, 1:], inputs], 1)
        recent, solved = tf.cast(wave, tf.float64), state["solved"]
        if not self.is_renewed:
            solved = tf.cond(
                tf.equal((state["position"] - 1) % self.period, 0),
                lambda: self.past_prediction(recent),
                lambda: state["solved"],
            )
        hidden, prediction = self._of_blocks(solved, recent[:, -self._taps :])
        return hidden, prediction, {"past": wave, "solved": solved}

    def _of_blocks(self, solved: tf.Tensor, recent: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return hidden states and predictions [..., block, channels]: p, g and corrections."""
        width, order = self.config.front_width, self.config.prediction_order
        coefficients, gains, levels = tf.split(solved, [order, 1, 1], -1)
        logs = tf.concat([gains[..., 0], levels[..., :1, 0]], -1)
        gain, level = (tf.exp(logs[..., i, None, None]) for i in (0, -1))
        taps, backwards = tf.signal.frame(recent, order, 1), tf.reverse(coefficients, [-1])
        predicted = tf.matmul(taps, backwards[..., :1, :], transpose_b=True)
        residual = recent[..., order:] - predicted[..., :-1, 0]
        errors = tf.signal.frame(residual, width, 1) / gain
        samples = tf.signal.frame(recent[..., order:], width, 1) / level
        now = predicted[..., width:, :]
        others = tf.matmul(taps[..., width:, :], backwards[..., 1:, :], transpose_b=True)
        others = (others - now) / gain
        alike = tf.zeros_like(now)  # broadcasts values of a block to its samples
        given = (logs[..., None, :] - LOG_LEVEL) / LOG_SPREAD + alike
        read = tf.concat([tf.asinh(errors), tf.asinh(samples), tf.asinh(others), given], -1)
        read = tf.cast(read, self.front_dtype)
        hidden = tf.matmul(read, tf.cast(self.front_kernel, read.dtype))
        hidden += tf.cast(self.front_bias, read.dtype)
        known = tf.concat([now, gain + alike, errors, others], -1)
        return tf.cast(hidden, self.dtype), tf.cast(known, self.front_dtype)

    def _in_scaled_units(self, raw: tf.Tensor, prediction: tf.Tensor | None) -> tf.Tensor:
        located, corrections = with_scales(self.likelihood), self.config.corrections
        if located is None or prediction is None:  # no configuration has this
            return super()._in_scaled_units(raw, prediction)
        sections = [*located.sections, corrections]
        weight, mean, log_scale, correction = tf.split(raw, sections, -1)
        now, gain, terms = tf.split(prediction, [1, 1, corrections], -1)
        moved = tf.reduce_sum(correction * terms, -1, keepdims=True)
        mean = now + gain * (moved + mean * tf.exp(log_scale))
        return tf.concat([weight, mean, log_scale + tf.math.log(gain)], -1)
