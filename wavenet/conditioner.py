"""Computation of a vocoder's condition from mel frames: spectrum, pitch and linear prediction."""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods.initial import Initial
from wavenet.features import MelConvention
from wavenet.linear_prediction import MelPrediction
from wavenet.pitch_reader import HIGHEST_HZ, LOWEST_HZ, REFERENCE_HZ, PitchReader
from wavenet.upsampling import interpolate_frames

FRAME_WIDTH = 5  # frames that the first layer reads
SIDE_FRAMES = 8  # neighbouring frames on either side of a clip, enough for any conditioner


class Condition(NamedTuple):
    """The condition of each sub-frame or sample, one per row.

    Without linear prediction, the coefficients are empty and `log_gain` and `log_level` are zero;
    without pitch, `period` is zero.
    """

    local: tf.Tensor
    """Condition that the gates read, [batch, rows, channels]."""
    coefficients: tf.Tensor
    """Coefficients of the linear prediction, [batch, rows, order]."""
    log_gain: tf.Tensor
    """Log of the gain of the prediction residual, [batch, rows]."""
    log_level: tf.Tensor
    """Log of the waveform's root mean square, [batch, rows]."""
    period: tf.Tensor
    """Pitch period in samples, [batch, rows]; meaningless where unvoiced."""
    pitch: tf.Tensor | None = None
    """log2(F0 / 200 Hz) and the probability of voicing of each frame, [batch, frames, 2], without
    gradient; None if there is no pitch, or if the condition is a result of `split`."""


class Conditioner(tf.Module):
    """Two layers over standardised frames, with pitch and linear prediction from the same frames.

    In a frame, the mel channels come first; F0 and voicing may follow.
    """

    def __init__(
        self, config: Any, initial: Initial, mel: MelConvention, name: str = "conditioner"
    ) -> None:
        super().__init__(name=name)
        self.config, self.mel = config, mel
        self.dtype = tf.float64 if config.compute_dtype == "float64" else tf.float32
        self.given_pitch = config.feature_channels > mel.bands
        features = mel.bands + (2 if config.reads_pitch else 0)
        hidden = config.conditioner_units
        self.mean = initial.zeros([mel.bands], "mean")
        self.deviation = tf.Variable(tf.ones([mel.bands]), name="deviation")
        self.reader = None
        if config.reads_pitch and not self.given_pitch:
            self.reader = PitchReader(mel.bands, initial, bins=config.pitch_bins)
        self.kernel1 = initial.kernel([FRAME_WIDTH, features, hidden], "kernel1", gain=1.5)
        self.bias1 = initial.zeros([hidden], "bias1")
        self.kernel2 = initial.kernel([hidden, config.condition_channels], "kernel2", gain=1.5)
        self.bias2 = initial.zeros([config.condition_channels], "bias2")
        self.prediction = None
        if config.prediction_order:
            self.prediction = MelPrediction(mel, config.prediction_order, config.exact_prediction)

    @property
    def stored_variables(self) -> tuple[tf.Variable, ...]:
        """The variables that are stored with the weights but not trained with the network."""
        reader = self.reader.variables if self.reader else ()
        return (self.mean, self.deviation, *reader)

    @property
    def side_frames(self) -> int:
        """Number of neighbouring frames on either side that a frame's condition depends on."""
        return FRAME_WIDTH // 2 + 1 + (self.reader.side_frames if self.reader else 0)

    def __call__(self, frames: tf.Tensor, side_frames: int = 0) -> Condition:
        """Return the condition of every sub-frame of the frames.

        `side_frames` on either side are only context and get no condition: 0, which assumes silence
        beyond the ends, or at least the property `side_frames`.
        """
        side = self.side_frames
        frames = tf.cast(frames, self.dtype)
        if side_frames == 0:
            frames = tf.pad(frames, [[0, 0], [side, side], [0, 0]])
        elif side_frames < side:
            raise ValueError(f"`side_frames` must be 0 or at least {side}, got {side_frames}.")
        elif side_frames > side:
            frames = frames[:, side_frames - side : side - side_frames]
        mel, pitch = self._mel_and_pitch(frames)
        hidden = self.compute_hidden(mel, pitch)
        local = tf.matmul(hidden, self._cast(self.kernel2)) + self._cast(self.bias2)
        near = FRAME_WIDTH // 2
        columns = [local, mel[:, near:-near]]
        if pitch is not None:
            columns.append(pitch[:, near:-near])
        made = self._describe_rows(
            interpolate_frames(tf.concat(columns, -1), self.config.subframes)
        )
        if pitch is None:
            return made
        return made._replace(pitch=tf.stop_gradient(pitch[:, near + 1 : -near - 1]))

    def compute_hidden(self, mel: tf.Tensor, pitch: tf.Tensor | None) -> tf.Tensor:
        """Return the units of the first layer, [batch, frames - 4, conditioner_units]."""
        inputs = self.standardise_mel(mel)
        if pitch is not None:
            inputs = tf.concat([inputs, 2.0 * pitch], -1)
        sums = tf.nn.conv1d(inputs, self._cast(self.kernel1), 1, "VALID")
        return tf.nn.silu(sums + self._cast(self.bias1))

    def standardise_mel(self, mel: tf.Tensor) -> tf.Tensor:
        """Return the mel frames scaled to mean 0 and standard deviation 1 per band."""
        return (mel - self._cast(freeze_variable(self.mean))) / self._cast(
            freeze_variable(self.deviation)
        )

    def _read(self, reader: PitchReader, mel: tf.Tensor) -> tf.Tensor:
        octaves, logit = reader(self.standardise_mel(mel))
        return tf.stop_gradient(tf.stack([octaves, tf.sigmoid(logit)], -1))

    def _cast(self, weights: tf.Tensor) -> tf.Tensor:
        return tf.cast(weights, self.dtype)

    def _mel_and_pitch(self, frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        bands = self.mel.bands
        mel = frames[..., :bands]
        if self.reader is None:
            return mel, frames[..., bands:] if self.given_pitch else None
        pitch = self._read(self.reader, mel)
        # The pitch reader is not trained here: zero gradients, as in `freeze_variable`.
        still = tf.add_n([0.0 * tf.reduce_sum(v) for v in self.reader.variables])
        still = self._cast(still)
        side = self.reader.side_frames
        return mel[:, side:-side], pitch + still

    def _describe_rows(self, rows: tf.Tensor) -> Condition:
        channels, bands = self.config.condition_channels, self.mel.bands
        local, mel = rows[..., :channels], rows[..., channels : channels + bands]
        zeros = tf.zeros_like(rows[..., 0])
        coefficients, log_gain, log_level = zeros[..., None][..., :0], zeros, zeros
        if self.prediction is not None:
            coefficients, log_gain, log_level = self.prediction(mel)
        period = zeros
        if self.config.reads_pitch:
            f0_hz = REFERENCE_HZ * tf.exp(math.log(2.0) * rows[..., channels + bands])
            f0_hz = tf.clip_by_value(f0_hz, LOWEST_HZ, HIGHEST_HZ)
            period = self.mel.sample_rate_hz / f0_hz
        return Condition(local, coefficients, log_gain, log_level, period)


def freeze_variable(variable: tf.Variable) -> tf.Tensor:
    """Return the value of an untrained variable, whose gradient is zero instead of None."""
    return tf.stop_gradient(variable) + 0.0 * variable
