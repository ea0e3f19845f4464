"""Flows of image students, and the features that their guidance compares.

It is feature matching (Salimans et al. 2016, arXiv 1606.03498, section 3.1) with a classifier
instead of a discriminator. The classifier is not the one that measures samples: it is trained with
a different seed, on images at the size that the flow draws.

The student draws whole images from noise and knows their density. One pass of the teacher over
these images gives the distribution of every number (a channel of a pixel) given the preceding
numbers, for `losses.divergence`, as with sound. The teacher reads values within the range of the
levels, so numbers beyond the outer levels are clipped before it reads them; its density still
extends there, because it is the density of numbers before they are rounded to levels. That density
is the teacher's own, smoothed over a bin (`LogisticMixture.log_density`). The KL of the numbers
bounds the KL of the levels from a teacher smoothed in this way, which is close to the teacher where
its scales are at least as wide as a bin.

Reverse KL ignores modes that a flow with one logistic per number cannot reach. The terms
`likelihood` and `forward` cover all modes: they bound the likelihood of training images and of
images that the teacher draws (forward KL).
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from distill.images.config import FlowTargets
from distill.losses import divergence
from distill.losses.terms import Weighted, sum_weighted
from onepass.foundation.rules import UserError
from onepass.likelihoods import PixelMixture
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.codec import value_of
from onepass.replicator import Replicator
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import (
    ImageDensity,
    ImageLoss,
    condition_at,
    drop_guidance_pair,
    image_words,
    pair_for_guidance,
    sample,
)
from pixelcnn.measures import Classifier, load_classifier, train_classifier
from pixelcnn.networks.layers import EXACT, Condition, Mode, guided_log_prob
from pixelcnn.networks.pixelcnn import PixelCNN

FILE = "classifier.npz"  # the file's name in a run directory
SEED = 1  # classifiers that measure samples have seed 0
EPSILON = 1e-3  # added to variances by batch normalisation in Keras
LEAST = 1e-6  # lower bound of the mean square in a denominator


def classifier_for(dataset: ImageDataset, size: int, path: Path) -> Classifier:
    """Load a classifier of images of `size` pixels, or train it if there is no file."""
    train: Any = dataset.source.splits["train"] if dataset.classes else None  # an `ImageSet`
    if train is None or train.labels is None:
        raise UserError("--targets.features needs images with classes.")
    every = train.images.shape[1] // size
    if path.exists() and (known := load_classifier(path)) is not None:
        return known
    small = dataclasses.replace(train, images=train.images[:, ::every, ::every])
    return train_classifier(small, len(dataset.classes), path, SEED)


class Features:
    """The features of a classifier, computed with its weights as constants."""

    def __init__(self, classifier: Classifier) -> None:
        *stages, _, _ = classifier.network.get_weights()
        self._layers = []
        for first in range(0, len(stages), 5):
            kernel, scale, offset, mean, variance = stages[first : first + 5]
            factor = scale / np.sqrt(variance + EPSILON)  # of the batch normalisation
            self._layers.append((kernel * factor, offset - mean * factor))

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        """Return features [batch, features] of images float32 [batch, height, width, channels]."""
        for number, (kernel, bias) in enumerate(self._layers):
            stride = 1 + number % 2
            values = tf.nn.relu(tf.nn.conv2d(values, kernel, stride, "SAME") + bias)
        return tf.reduce_mean(values, [1, 2])

    def distance(self, drawn: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Return `features_apart` for two batches of images, a scalar."""
        return features_apart(self.statistics(drawn, images))

    def statistics(self, drawn: tf.Tensor, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the means that `features_apart` reads; images are float32 in [-1, 1]."""
        found, wanted = self(drawn), tf.stop_gradient(self(images))
        return {
            "features": tf.reduce_mean(found, 0),
            "wanted_features": tf.reduce_mean(wanted, 0),
            "feature_energy": tf.reduce_mean(tf.square(wanted)),
        }


def features_apart(means: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the mean squared difference of mean features, over the mean square of real ones."""
    apart = tf.reduce_mean(tf.square(means["features"] - means["wanted_features"]))
    return apart / tf.maximum(means["feature_energy"], LEAST)


LEAST_POWER = 1e-3  # frequencies with less power than this do not count as different
# Folded into an example's seed: for the student's image, the draws and the teacher's image.
IMAGE, DRAWS, TEACHER = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class PixelConditionals:
    """The distribution of every number of images, `before`, given the preceding numbers."""

    likelihood: PixelMixture
    parameters: tf.Tensor
    before: tf.Tensor

    def log_density(self, values: tf.Tensor) -> tf.Tensor:
        """Return the log density of values [..., batch, height, width, channels], nats per unit."""
        return self.likelihood.log_densities(self.parameters, values, self.before)


def conditionals(teacher: PixelCNN, values: tf.Tensor, condition: Condition) -> PixelConditionals:
    """Return the conditionals of a PixelCNN with a mixture of logistics, for real-valued images."""
    before = tf.clip_by_value(values, -1.0, 1.0)
    parameters = teacher.output.parameters(teacher(before, condition))
    return PixelConditionals(teacher.output.likelihood, parameters, before)


class FlowLoss(ImageLoss):
    """The loss for distilling a PixelCNN, or the base of a multiscale model, into a flow.

    `features` are those of a classifier for images of the base's size, for the weight of that name.
    """

    def __init__(
        self,
        student: ImageDensity,
        teacher: ImageDensity,
        targets: FlowTargets,
        features: Features | None = None,
    ) -> None:
        super().__init__(student)
        if targets.features and features is None:
            raise ValueError("`features` must be given for their term.")
        self.targets, self._features = targets, features if targets.features else None
        model = teacher.multiscale
        self._teacher: Any = teacher.pixelcnn if model is None else model.base
        if student.multiscale is None or not student.multiscale.has_flow:
            raise ValueError("`student` must be a multiscale model whose base is a flow.")
        self._model = student.multiscale
        of_base = {weight.ref() for weight in self._model.base.trainable_variables}
        self._kept = [w for w in student.trainable_variables if w.ref() not in of_base]

    def __call__(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the weighted sum of terms, nats per dimension of the base, and each by name."""
        targets, mode = self.targets, self.density.training_mode(batch)
        levels, condition = self._at_base(batch)
        terms: dict[str, Weighted] = {}
        if targets.kl or targets.spectrum or targets.features:
            drawn = self._draw_flow_output(batch["seed"], levels.shape, condition, mode)
            kl, cross, own = self._divergence(drawn, batch["seed"], condition)
            terms |= {"kl": Weighted(targets.kl, tf.reduce_mean(kl))}
            terms |= {"cross_entropy": Weighted(0.0, cross), "entropy": Weighted(0.0, own)}
            means = of_whole(self._statistics(drawn.output, levels), batch)
            if targets.spectrum:
                terms["spectrum"] = Weighted(targets.spectrum, spectra_apart(means))
            if targets.features:
                terms["features"] = Weighted(targets.features, features_apart(means))
        if targets.likelihood:
            nats = self._model.base.nats(levels, condition, mode, batch["seed"])
            code = -tf.reduce_mean(nats) / math.prod(levels.shape[1:])
            terms["likelihood"] = Weighted(targets.likelihood, code)
        if targets.forward:
            apart = tf.reduce_mean(self._forward_divergence(batch, condition, mode))
            terms["forward"] = Weighted(targets.forward, apart / math.prod(levels.shape[1:]))
        # The training state needs a gradient for every weight; it is zero for the other parts.
        nothing = [0.0 * tf.reduce_sum(weight) for weight in self._kept]
        loss, values = sum_weighted(terms)
        return tf.add_n([loss, *nothing]), values

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict:
        """Return the values of `ImageLoss.global_inputs`, and means over the whole batch.

        Spectra and features are compared as means over the whole batch, because means over a
        replica's share vary more. To compute them, the student draws its batch once more here.
        """
        known = super().global_inputs(batch, replicator)
        targets = self.targets
        if targets.spectrum or targets.features:
            share = {**batch, **known}
            levels, condition = self._at_base(share)
            mode = self.density.training_mode(share)
            drawn = self._draw_flow_output(share["seed"], levels.shape, condition, mode)
            known |= replicator.all_reduce(self._statistics(drawn.output, levels), "mean")
        return known

    def _statistics(self, drawn: tf.Tensor, levels: tf.Tensor) -> dict[str, tf.Tensor]:
        images = value_of(levels, self._model.output_config.levels)
        means: dict[str, tf.Tensor] = {}
        if self.targets.spectrum:
            means |= {"power": power_spectrum(drawn), "wanted_power": power_spectrum(images)}
        if self._features is not None:
            means |= self._features.statistics(drawn, images)
        return means

    def divergences(self, batch: dict) -> dict[str, tf.Tensor]:
        """Return an estimate of the base's KL for each image, in nats, as {base: float32 [batch]}.

        It is KL(P_S || P_T) if the loss has that term, else an upper bound on KL(P_T || P_S).
        """
        levels, condition = self._at_base(batch)
        if not self.targets.kl:
            return {self._model.parts[0]: self._forward_divergence(batch, condition, EXACT)}
        drawn = self._draw_flow_output(batch["seed"], levels.shape, condition, EXACT)
        kl = self._divergence(drawn, batch["seed"], condition)[0]
        return {self._model.parts[0]: math.prod(levels.shape[1:]) * kl}

    def _forward_divergence(self, batch: dict, condition: Condition, mode: Mode) -> tf.Tensor:
        """Return an upper bound on log P_T - log P_S for images from P_T, nats, float32 [batch]."""
        side, keys = self._model.config.base_size, counter_noise.fold_in(batch["seed"], TEACHER)
        words = image_words(self._teacher, keys, tf.zeros_like(keys[:, 0]), side, side)
        guidance, output = self.targets.guidance or None, self._teacher.output
        paired, words = pair_for_guidance(self.density.conditioner, batch, guidance, words)
        paired = condition_at(paired, side)
        both = sample(self._teacher, words, paired, guidance=guidance)
        hidden, levels = self._teacher(both, paired), drop_guidance_pair(guidance, both)
        if guidance is None:
            nats = output.log_prob(hidden, levels)
        else:
            nats = guided_log_prob(output, hidden, levels, guidance)
        theirs = tf.stop_gradient(tf.reduce_sum(nats, [1, 2]))
        return theirs - self._model.base.nats(levels, condition, mode, batch["seed"])

    def _at_base(self, batch: dict) -> tuple[tf.Tensor, Condition]:
        levels, condition = self._model.at_base(batch["levels"], self.density.conditioner(batch))
        fixed: Condition = tf.nest.map_structure(
            lambda part: None if part is None else tf.stop_gradient(part), condition
        )
        return levels, fixed

    def _draw_flow_output(
        self, seeds: tf.Tensor, shape: tf.TensorShape, condition: Condition, mode: Mode
    ) -> FlowOutput:
        _, height, width, channels = shape
        keys, rows = counter_noise.fold_in(seeds, IMAGE), tf.zeros_like(seeds[:, 0])
        words = counter_noise.words(keys, rows, 0, height * width, channels)
        noise = counter_noise.logistic_from_bits(words)
        return self._model.base(tf.reshape(noise, [-1, *shape[1:]]), condition, mode)

    def _divergence(
        self, drawn: FlowOutput, seeds: tf.Tensor, condition: Condition
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the KL per number, [batch], and the mean cross-entropy and entropy, in nats."""
        numbers, count = math.prod(drawn.output.shape[1:]), self.targets.draws
        keys, rows = counter_noise.fold_in(seeds, DRAWS), tf.shape(seeds)[0]
        names = tf.zeros_like(seeds[:, 0])  # each image has its own seed
        draws = divergence.standard_draws("logistic", keys, rows, numbers, count, names)
        draws = tf.reshape(draws, [count, -1, *drawn.output.shape[1:]])
        given = conditionals(self._teacher, drawn.output, condition)
        cross = divergence.cross_entropy(given, drawn, draws)
        own = divergence.entropy(drawn, "logistic")
        kl = tf.reduce_mean(cross - own, [1, 2, 3])
        return kl, tf.reduce_mean(cross), tf.reduce_mean(own)


def of_whole(means: dict[str, tf.Tensor], batch: dict) -> dict[str, tf.Tensor]:
    """Return a share's means with the values of the whole batch and the gradients of the share.

    The average over shares of a function's gradients is then the gradient for the whole batch.
    """
    return {
        name: mean + tf.stop_gradient(batch[name] - mean) if name in batch else mean
        for name, mean in means.items()
    }


def spectra_apart(means: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the mean squared difference of log power spectra, a scalar."""
    power, wanted = (tf.math.log(means[name] + LEAST_POWER) for name in ("power", "wanted_power"))
    return tf.reduce_mean(tf.square(power - wanted))


def power_spectrum(images: tf.Tensor) -> tf.Tensor:
    """Return the mean power spectrum of images [batch, height, width, channels]."""
    spectra = tf.signal.rfft2d(tf.transpose(images, [0, 3, 1, 2]))
    return tf.reduce_mean(tf.square(tf.abs(spectra)), 0) / math.prod(images.shape[1:3])
