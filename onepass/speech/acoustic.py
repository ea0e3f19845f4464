"""The networks of `network.py` as a `tf.Module`, and the loss that trains it."""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.replicator.training.accumulation import Batch
from onepass.speech import network
from onepass.speech.network import VoiceConfig


class TensorFlowBackend:
    """The `network.Backend` for tensors [batch, time, channels]."""

    def neighbours(self, hidden: tf.Tensor, distance: int) -> tf.Tensor:
        """Concatenate the channels at t - distance, t and t + distance; zeros beyond the ends."""
        padded = tf.pad(hidden, [[0, 0], [distance, distance], [0, 0]])
        length = tf.shape(hidden)[1]
        before, after = padded[:, :length], padded[:, 2 * distance :]
        return tf.concat([before, hidden, after], axis=-1)

    def gate_halves(self, mixed: tf.Tensor) -> tf.Tensor:
        """Return tanh of the first half of the channels times sigmoid of the second half."""
        first, second = tf.split(mixed, 2, axis=-1)
        return tf.tanh(first) * tf.sigmoid(second)

    def gather(self, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Return the rows at the indices; `rows` without a batch axis are shared by the batch."""
        if len(rows.shape) == 2:
            return tf.gather(rows, index)
        return tf.gather(rows, index, batch_dims=1)

    def exp(self, values: tf.Tensor) -> tf.Tensor:
        """Return the exponential of each value."""
        return tf.exp(values)

    def join(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """Return the arrays concatenated along the channels."""
        return tf.concat(parts, axis=-1)

    def clip_values(self, values: tf.Tensor, low: float, high: float) -> tf.Tensor:
        """Return the values, clipped to the range from `low` to `high`."""
        return tf.clip_by_value(values, low, high)


class AcousticModel(tf.Module):
    """The encoder, melody and mel networks, with their weights as variables."""

    def __init__(self, config: VoiceConfig, seed: int = 0):
        super().__init__(name="acoustic")
        self.config = config
        values = network.initial_weights(config, seed)
        self.weights = {name: tf.Variable(value, name=name) for name, value in values.items()}

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return log-durations, melody and mel frames, given the recorded durations and pitch.

        They are [batch, phonemes]; [batch, frames, 2], log2(F0 / 200 Hz) and the logit of voicing;
        and [batch, frames, bands], in standard deviations of each band.
        """
        backend, frame_mask = TensorFlowBackend(), batch["frame_mask"][..., None]
        hidden, lengths = network.encoder(
            backend,
            self.config,
            self.weights,
            batch["numbers"],
            batch["contexts"],
            batch["phoneme_mask"][..., None],
        )
        spread, where = backend.gather(hidden, batch["phoneme_of_frame"]), batch["positions"]
        sung = spread * batch["kept_by_melody"][:, None]
        melody = network.melody(backend, self.config, self.weights, sung, where, frame_mask)
        mel = network.mel(
            backend,
            self.config,
            self.weights,
            spread * batch["kept_by_mel"][:, None],
            where,
            batch["pitch"],
            batch["harmonics"],
            frame_mask,
        )
        return lengths, melody, mel


@dataclasses.dataclass(frozen=True)
class AcousticLossConfig:
    """The weight of each error in the loss."""

    mel: float = 1.0
    """Weight of the mean absolute error of the mel bands, in standard deviations of each band."""
    duration: float = 0.5
    """Weight of the mean absolute error of the log-durations."""
    pitch: float = 1.0
    """Weight of the mean absolute error of F0, in octaves, over voiced frames."""
    voicing: float = 0.2
    """Weight of the cross-entropy of voicing, in nats."""


class AcousticLoss:
    """The loss of an acoustic model: the weighted sum of its errors on a batch."""

    def __init__(self, model: AcousticModel, config: AcousticLossConfig):
        self.model, self.config = model, config

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the loss, a scalar, and each unweighted error by name."""
        lengths, melody, mel = self.model(batch)
        voiced, frames = batch["pitch"][..., 1], batch["frame_mask"]
        logit = melody[..., 1]
        parts = {
            "mel": _mean(tf.reduce_mean(tf.abs(mel - batch["mel"]), axis=-1), frames),
            "duration": _mean(tf.abs(lengths - batch["log_durations"]), batch["duration_mask"]),
            "pitch": _mean(tf.abs(melody[..., 0] - batch["pitch"][..., 0]), frames * voiced),
            "voicing": _mean(tf.nn.softplus(logit) - voiced * logit, frames),
        }
        loss = tf.add_n([getattr(self.config, name) * value for name, value in parts.items()])
        return loss, parts


def _mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(values * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


def arrays(model: AcousticModel) -> dict[str, np.ndarray]:
    """Return the model's weights by name."""
    return {name: variable.numpy() for name, variable in model.weights.items()}
