"""Perceptual losses: distances between the features of a classifier of speech units.

van den Oord et al. 2017, "Parallel WaveNet" (arXiv 1711.10433), section 3.3: a student should have
the features that a classifier of speech sounds computes of a recording, either frame by frame or in
their correlations (the feature reconstruction and the style loss of Johnson et al. 2016,
"Perceptual Losses for Real-Time Style Transfer", equations 2 and 4, the latter after Gatys et al.).
"""

import tensorflow as tf

from distill.losses.unit_classifier import UnitClassifier
from distill.spectra import log_mel
from replicator.runs.errors import UserError
from wavenet.features import MelConvention

LEAST = 1e-6  # of a mean square to divide by


def feature_loss(
    classifier: UnitClassifier,
    convention: MelConvention,
    sound: tf.Tensor,
    recorded: tf.Tensor,
    energies: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the mean squared difference of the hidden features, float32 [].

    Each layer's difference is divided by the mean square of the recorded features, so that layers
    weigh alike, and layers are averaged: 0 for the same sound, and for unrelated features f 2 (1 -
    mean(f)^2 / mean(f^2)), which is below 2, since rectified ones have no mean of 0. The gradient
    reaches `sound` alone.

    Args:
      classifier: frozen here.
      convention: of the mel frames, the one that the classifier was trained with.
      sound: float32 [batch, time] in [-1, 1] at the convention's rate and the level of the
        classifier's corpus.
      recorded: likewise.
      energies: float32 [layers], those mean squares, if not of `recorded`: of a batch that this is
        a share of; see `feature_energies`.
    """
    pairs = _pairs(classifier, convention, sound, recorded)
    return _relative(pairs, energies)


def style_loss(
    classifier: UnitClassifier,
    convention: MelConvention,
    sound: tf.Tensor,
    recorded: tf.Tensor,
    energies: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the mean squared difference of the Gram matrices of the hidden features, float32 [].

        G[i, j] = 1 / (channels frames) sum_f F[f, i] F[f, j]

    is independent of when in the clip something was heard. Arguments and normalisation are those of
    `feature_loss`, with `style_energies`; the sounds may differ in length.
    """
    pairs = _pairs(classifier, convention, sound, recorded)
    return _relative([(gram(f), gram(target)) for f, target in pairs], energies)


def feature_energies(
    classifier: UnitClassifier, convention: MelConvention, recorded: tf.Tensor
) -> tf.Tensor:
    """Return the mean square of each layer's features, float32 [layers], for `feature_loss`.

    That of a batch is the mean of those of its equal shares.
    """
    return _energies(classifier.features(_frames(recorded, convention)))


def style_energies(
    classifier: UnitClassifier, convention: MelConvention, recorded: tf.Tensor
) -> tf.Tensor:
    """Return the same of the Gram matrices, for `style_loss`."""
    features = classifier.features(_frames(recorded, convention))
    return _energies([gram(layer) for layer in features])


def gram(features: tf.Tensor) -> tf.Tensor:
    """Return the Gram matrix over frames, float32 [batch, channels, channels]."""
    _, frames, channels = features.shape
    return tf.matmul(features, features, transpose_a=True) / (channels * frames)


def _relative(pairs: list[tuple[tf.Tensor, tf.Tensor]], energies: tf.Tensor | None) -> tf.Tensor:
    """Return the mean over layers of the squared distance over the targets' energies."""
    if energies is None:
        energies = _energies([targets for _, targets in pairs])
    parts = [
        tf.reduce_mean(tf.square(values - targets)) / tf.maximum(energy, LEAST)
        for (values, targets), energy in zip(pairs, tf.unstack(energies), strict=True)
    ]
    return tf.add_n(parts) / len(parts)


def _energies(targets: list[tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.reduce_mean(tf.square(target)) for target in targets])


def _pairs(
    classifier: UnitClassifier, convention: MelConvention, sound: tf.Tensor, recorded: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Return the features of both, layer by layer."""
    if convention.to_dict() != classifier.config.convention.to_dict():
        raise UserError(
            f"`convention` must be the classifier's, {classifier.config.convention}, "
            f"got {convention}."
        )
    found = classifier.features(_frames(sound, convention))
    targets = classifier.features(_frames(recorded, convention))
    return [(f, tf.stop_gradient(t)) for f, t in zip(found, targets, strict=True)]


def _frames(sound: tf.Tensor, convention: MelConvention) -> tf.Tensor:
    """Return the classifier's input: `wavenet.features.above_silence` of the log-mel frames."""
    return 1.0 - log_mel(sound, convention) / convention.silence
