"""Computation of a vocoder's condition from mel frames: spectrum, pitch and linear prediction."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.likelihoods.noise import Initial
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from wavenet.config import MelConvention
from wavenet.data.batch_sampling import ClipSource, batch
from wavenet.linear_prediction import MelPrediction
from wavenet.network import interpolate_frames

REFERENCE_HZ = 200.0  # as in `log_f0_features`
LOWEST_HZ, HIGHEST_HZ = 60.0, 600.0
WIDTHS = (5, 5, 3)  # kernel width of each layer, in frames
GAINS = (4.0, math.sqrt(2.0), math.sqrt(2.0))
READER_CLIPS = 16
NEAR_BINS = 4  # F0 is averaged over this many bins on either side of the most probable one
BLUR_CENTS = 25.0  # standard deviation of the target distribution over the bins
READER_OPTIMIZER = OptimizerConfig(2e-3, 50, "cosine", average_decay=0.99)


class PitchReader(tf.Module):
    """A small convolutional network that estimates F0 and voicing from frames.

    With `bins`, evenly spaced between 60 and 600 Hz on a logarithmic scale, it classifies F0, like
    CREPE (Kim et al. 2018, arXiv 1802.06182): if two octaves are plausible, it chooses one of them
    instead of a value in between. With 0, F0 is regressed.
    """

    side_frames = sum(width // 2 for width in WIDTHS)  # on either side, which an estimate reads

    def __init__(self, features: int, initial: Initial, channels: int = 96, bins: int = 0) -> None:
        super().__init__()
        self.bins, inputs = bins, (features, channels, channels)
        self.kernels = [
            initial.kernel([width, size, channels], f"kernel_{i}", gain)
            for i, (width, size, gain) in enumerate(zip(WIDTHS, inputs, GAINS, strict=True))
        ]
        self.biases = [initial.zeros([channels], f"bias_{i}") for i in range(len(WIDTHS))]
        outputs = bins + 1 if bins else 2
        self.head_kernel = initial.kernel([channels, outputs], "head_kernel", gain=0.1)
        self.head_bias = initial.zeros([outputs], "head_bias")

    def __call__(self, frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return log2(F0 / 200 Hz) and voicing's logit, [batch, frames - 2 side_frames] each."""
        raw = self._outputs(frames)
        if self.bins:
            logits, dtype = raw[..., :-1], raw.dtype
            best = tf.argmax(logits, -1, tf.int32)[..., tf.newaxis]
            # Average only nearby bins: a mean over two possible octaves would be neither of them.
            near = tf.cast(tf.abs(tf.range(self.bins) - best) <= NEAR_BINS, dtype)
            weights = tf.nn.softmax(logits) * near
            total = tf.reduce_sum(weights * _centres(self.bins, dtype), -1)
            return total / tf.reduce_sum(weights, -1), raw[..., -1]
        low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
        return tf.clip_by_value(raw[..., 0], low, high), raw[..., 1]

    def loss(self, frames: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
        """Return the scalar loss for the true `pitch`, [batch, frames - 2 side_frames, 2]."""
        if self.bins:
            raw = self._outputs(frames)
            return class_loss(raw[..., :-1], raw[..., -1], pitch)
        octaves, logit = self(frames)
        return pitch_loss(octaves, logit, pitch)

    def _outputs(self, frames: tf.Tensor) -> tf.Tensor:
        hidden = frames
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            sums = tf.nn.conv1d(hidden, tf.cast(kernel, hidden.dtype), 1, "VALID")
            hidden = tf.nn.relu(sums + tf.cast(bias, sums.dtype))
        raw = tf.matmul(hidden, tf.cast(self.head_kernel, hidden.dtype))
        return raw + tf.cast(self.head_bias, raw.dtype)


def _octaves_of(hz: float) -> float:
    return math.log2(hz / REFERENCE_HZ)


def _centres(bins: int, dtype: tf.DType) -> tf.Tensor:
    low, high = _octaves_of(LOWEST_HZ), _octaves_of(HIGHEST_HZ)
    return tf.linspace(tf.constant(low, dtype), tf.constant(high, dtype), bins)


def class_loss(logits: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of F0 over voiced frames plus the cross-entropy of voicing.

    The target over the bins, whose `logits` are [batch, frames, bins], is a normal distribution
    around F0 with a deviation of `BLUR_CENTS`. `logit` is that of voicing; `pitch`, [batch, frames,
    2], is from `log_f0_features`.
    """
    truth, voiced = tf.unstack(pitch, axis=-1)
    cents = 1200.0 * (truth[..., tf.newaxis] - _centres(logits.shape[-1], logits.dtype))
    target = tf.nn.softmax(-0.5 * tf.square(cents / BLUR_CENTS))
    error = tf.nn.softmax_cross_entropy_with_logits(target, logits)
    doubt = tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit)
    # Unvoiced frames have no F0; the minimum avoids a division by zero if no frame is voiced.
    share = tf.maximum(tf.reduce_mean(voiced), 1e-3)
    return tf.reduce_mean(voiced * error) / share + tf.reduce_mean(doubt)


def pitch_loss(octaves: tf.Tensor, logit: tf.Tensor, pitch: tf.Tensor) -> tf.Tensor:
    """Return the F0 error in semitones, linear above one, plus the cross-entropy of voicing."""
    truth, voiced = tf.unstack(pitch, axis=-1)
    off = tf.abs(12.0 * (octaves - truth))
    error = tf.reduce_mean(voiced * tf.minimum(tf.square(off), off))
    doubt = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(voiced, logit))
    return error / tf.maximum(tf.reduce_mean(voiced), 1e-3) + doubt


def train_pitch_reader(
    reader: PitchReader,
    source: ClipSource,
    steps: int,
    seed: int,
    prepare: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    """Train the reader on random clips of frames.

    The last two channels of the source's frames are the true F0 and voicing; `prepare` converts
    frames to the reader's input. The reader ends with averaged weights.
    """
    # A trained reader needs no optimiser.
    from onepass.replicator.training.training_run import train_network

    def loss(given: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        frames, side = given["frames"], reader.side_frames
        return reader.loss(prepare(frames), frames[:, side : frames.shape[1] - side, -2:]), {}

    def clips(start: int, *_: int) -> Iterator[dict[str, np.ndarray]]:
        for step in itertools.count(start):
            yield {"frames": batch(source, seed, step, READER_CLIPS)["frames"]}

    train_network(
        reader, loss, READER_OPTIMIZER, LoopConfig(steps), clips, title="learning to read F0"
    )


FRAME_WIDTH = 5  # frames that the first layer reads
SIDE_FRAMES = 8  # neighbouring frames on either side of a clip, enough for any conditioner


class Condition(NamedTuple):
    """The condition of each sub-frame or sample, one per row; zero or empty where there is none."""

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
    """Two layers over standardised frames, mel channels first, with pitch and linear prediction."""

    def __init__(self, config: Any, initial: Initial, mel: MelConvention) -> None:
        super().__init__()
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

    def _cast(self, weights: tf.Tensor) -> tf.Tensor:
        return tf.cast(weights, self.dtype)

    def _mel_and_pitch(self, frames: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        bands = self.mel.bands
        mel = frames[..., :bands]
        if self.reader is None:
            return mel, frames[..., bands:] if self.given_pitch else None
        octaves, logit = self.reader(self.standardise_mel(mel))
        pitch = tf.stop_gradient(tf.stack([octaves, tf.sigmoid(logit)], -1))
        # The pitch reader is not trained here: zero gradients, as in `freeze_variable`.
        still = self._cast(tf.add_n([0.0 * tf.reduce_sum(v) for v in self.reader.variables]))
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
