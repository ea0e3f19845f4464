"""Perceptual losses: differences between the features that a speech-unit classifier computes.

van den Oord et al. 2017, "Parallel WaveNet" (arXiv 1711.10433): a classifier of speech
sounds should compute the same features for the student's sound as for the recording, either frame
by frame or in their correlations. These are the feature reconstruction loss and the style loss of
Johnson et al. 2016, "Perceptual Losses for Real-Time Style Transfer", equations 2 and 4; the style
loss is due to Gatys et al.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from distill.losses.terms import Draw
from distill.losses.unit_classifier import UnitClassifier
from distill.spectra import log_mel
from onepass.foundation.errors import UserError
from onepass.replicator import Replicator
from wavenet.features import MelConvention

LEAST = 1e-6  # lower bound of the mean square in a denominator


@dataclasses.dataclass(frozen=True)
class PerceptualLoss:
    """The mean squared difference between hidden features of sounds and recordings, a scalar.

    Each layer's difference is divided by the mean square of the recorded features, so that all
    layers have equal weight, and the layers are averaged. The loss is 0 for equal sounds; for
    unrelated features f it is 2 (1 - mean(f)^2 / mean(f^2)), which is below 2, since rectified
    features have a positive mean. The gradient reaches only the sound.

    Attributes:
      compared: function from a layer's features to what is compared: the features themselves, or
        their `gram`, for which sounds may differ in length.
    """

    classifier: UnitClassifier
    convention: MelConvention
    compared: Callable[[tf.Tensor], tf.Tensor] = tf.identity

    def __post_init__(self) -> None:
        """Raise UserError unless the convention is the classifier's."""
        expected = self.classifier.config.convention
        if self.convention.to_dict() != expected.to_dict():
            raise UserError(
                f"`convention` must be the classifier's, {expected}, got {self.convention}."
            )

    def __call__(
        self, sound: tf.Tensor, recorded: tf.Tensor, energies: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the loss of sounds float32 [batch, time] in [-1, 1], at the level of the corpus.

        `energies` are those of the whole batch, float32 [layers]; None: those of `recorded`.
        """
        targets = [tf.stop_gradient(target) for target in self._features(recorded)]
        parts = [
            tf.reduce_mean(tf.square(values - target)) / tf.maximum(energy, LEAST)
            for values, target, energy in zip(
                self._features(sound),
                targets,
                tf.unstack(_energies(targets) if energies is None else energies),
                strict=True,
            )
        ]
        return tf.add_n(parts) / len(parts)

    def energies(self, recorded: tf.Tensor) -> tf.Tensor:
        """Return the mean square of each layer's compared features, float32 [layers].

        The energies of a batch are the mean of the energies of its equal shares.
        """
        return _energies(self._features(recorded))

    def _features(self, sound: tf.Tensor) -> list[tf.Tensor]:
        # The classifier reads `wavenet.features.above_silence` of the log-mel frames.
        frames = 1.0 - log_mel(sound, self.convention) / self.convention.silence
        return [self.compared(layer) for layer in self.classifier.features(frames)]


@dataclasses.dataclass(frozen=True)
class Perceived:
    """A perceptual loss as a term, relative to the energies of the whole batch."""

    name: str
    loss: PerceptualLoss

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the loss, a scalar."""
        energies = draw.batch.get(f"{self.name}_energies")
        return self.loss(draw.output.output, draw.recorded, energies)

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict[str, tf.Tensor]:
        """Return the energies of the whole batch."""
        means = {f"{self.name}_energies": self.loss.energies(batch["waveform"])}
        return dict(replicator.all_reduce(means, "mean"))


def gram(features: tf.Tensor) -> tf.Tensor:
    """Return the Gram matrix over frames, float32 [batch, channels, channels].

        G[i, j] = 1 / (channels frames) sum_f F[f, i] F[f, j]

    It does not depend on the time at which a sound occurs in the clip.
    """
    _, frames, channels = features.shape
    return tf.matmul(features, features, transpose_a=True) / (channels * frames)


def _energies(targets: list[tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.reduce_mean(tf.square(target)) for target in targets])
