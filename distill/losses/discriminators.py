"""Discriminators that distinguish a student's sound from recordings, and their losses.

Losses on mean log magnitudes do not reward the fine structure of harmonics; a discriminator does.
Yamamoto et al. 2019, "Probability density distillation with generative adversarial networks" (arXiv
1904.04472), add one to the KL. The spectrogram discriminators follow Jang et al. 2021, "UnivNet"
(2106.07889), and the period discriminators Kong et al. 2020, "HiFi-GAN" (2010.05646), both with
fewer channels; the losses are least squares (Mao et al. 2016, 1611.04076) and feature matching.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from distill.config import DiscriminatorConfig, LossConfig
from distill.losses.spectra import magnitudes
from distill.losses.terms import Draw, Weighted
from onepass.likelihoods.noise import Initial

SLOPE = 0.2  # slope of the leaky rectifiers below zero
FLOOR = 1e-3  # lower bound of magnitudes before the logarithm
SPECTRUM_KERNELS = ((3, 9, 1), (3, 9, 2), (3, 9, 2), (3, 5, 2), (3, 3, 1))  # time, bins, stride
PERIOD_KERNELS = ((5, 3), (5, 3), (5, 3), (5, 1), (3, 1))  # taps, stride, within a phase


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A discriminator's features and its scores, trained to be 1 for recordings, 0 for students."""

    scores: tf.Tensor
    features: tuple[tf.Tensor, ...]


class Convolutions(tf.Module):
    """2-D convolutions with rectifiers between; `shapes` are kernels and strides [down, across]."""

    def __init__(
        self, shapes: Sequence[tuple[int, int, list[int]]], channels: int, initial: Initial
    ) -> None:
        super().__init__()
        self.strides = [strides for _, _, strides in shapes]
        widths = [1, *[channels] * (len(shapes) - 1), 1]
        self.kernels = [
            initial.kernel([height, width, widths[i], widths[i + 1]], f"kernel_{i}")
            for i, (height, width, _) in enumerate(shapes)
        ]
        self.biases = [initial.zeros([width], f"bias_{i}") for i, width in enumerate(widths[1:])]

    def __call__(self, image: tf.Tensor, frozen: bool = False) -> Verdict:
        """Return the `Verdict` for [batch, height, width, 1]; `frozen` weights have no gradient."""
        features: list[tf.Tensor] = []
        for kernel, bias, strides in zip(self.kernels, self.biases, self.strides, strict=True):
            kernel, bias = tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias)
            if frozen:
                kernel, bias = tf.stop_gradient(kernel), tf.stop_gradient(bias)
            image = tf.nn.conv2d(image, kernel, strides, "SAME") + bias
            if len(features) < len(self.kernels) - 1:
                image = tf.nn.leaky_relu(image, SLOPE)
                features.append(image)
        return Verdict(image, tuple(features))


class SpectrogramDiscriminator(tf.Module):
    """A discriminator of log-magnitude spectrograms of one FFT size, up to a share of the bins."""

    def __init__(self, fft_size: int, config: DiscriminatorConfig, initial: Initial) -> None:
        super().__init__()
        self.fft_size, self.bins = fft_size, int(config.top_share * (fft_size // 2 + 1))
        shapes = [(height, width, [1, stride]) for height, width, stride in SPECTRUM_KERNELS]
        self.layers = Convolutions(shapes, config.channels, initial)

    def __call__(self, sound: tf.Tensor, frozen: bool = False) -> Verdict:
        """Return the `Verdict` for sounds, float32 [batch, time]."""
        hop, window = self.fft_size // 6, 3 * self.fft_size // 4
        spectrum = magnitudes(sound, window, hop, self.fft_size)[..., : self.bins]
        log = tf.math.log(tf.maximum(spectrum, FLOOR)) / 3.0 + 1.0  # about -1 to 2
        return self.layers(log[..., tf.newaxis], frozen)


class PeriodDiscriminator(tf.Module):
    """A discriminator that reads every `period`-th sample, each phase separately."""

    def __init__(self, period: int, config: DiscriminatorConfig, initial: Initial) -> None:
        super().__init__()
        self.period = period
        shapes = [(taps, 1, [stride, 1]) for taps, stride in PERIOD_KERNELS]
        self.layers = Convolutions(shapes, config.channels, initial)

    def __call__(self, sound: tf.Tensor, frozen: bool = False) -> Verdict:
        """Return the `Verdict` for sounds, float32 [batch, time]."""
        rows, samples = sound.shape
        whole = samples // self.period
        phases = tf.reshape(sound[:, : whole * self.period], [rows, whole, self.period, 1])
        return self.layers(phases, frozen)


class Discriminators(tf.Module):
    """All discriminators of a run."""

    def __init__(self, config: DiscriminatorConfig, seed: int = 0) -> None:
        super().__init__()
        initial = Initial(seed)
        self.members: list[SpectrogramDiscriminator | PeriodDiscriminator] = [
            *(SpectrogramDiscriminator(size, config, initial) for size in config.spectra),
            *(PeriodDiscriminator(period, config, initial) for period in config.periods),
        ]

    def losses(
        self, sound: tf.Tensor, recorded: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the student's adversarial loss and matching loss, and the discriminators' loss.

            adversarial   = mean (D(sound) - 1)^2
            matching      = mean |F(sound) - F(recorded)|
            discriminator = mean (D(recorded) - 1)^2 + mean D(sound)^2

        F are hidden features, and means are over discriminators too. The first two losses give no
        gradient to the discriminators' weights, the third gives none to the sound. In the gradient
        of their sum, student and discriminators therefore get only the gradients of their own
        losses. The mean over equal shares of a batch is the value for the batch.
        """
        adversarial, matching, scoring = [], [], []
        for member in self.members:
            drawn, real = member(sound, frozen=True), member(recorded)
            rated = member(tf.stop_gradient(sound))
            adversarial.append(tf.reduce_mean(tf.square(drawn.scores - 1.0)))
            pairs = zip(drawn.features, real.features, strict=True)
            gaps = [tf.reduce_mean(tf.abs(a - tf.stop_gradient(b))) for a, b in pairs]
            matching.append(tf.add_n(gaps) / len(gaps))
            scoring.append(
                tf.reduce_mean(tf.square(real.scores - 1.0))
                + tf.reduce_mean(tf.square(rated.scores))
            )
        count = float(len(self.members))
        return tuple(tf.add_n(values) / count for values in (adversarial, matching, scoring))


@dataclasses.dataclass(frozen=True)
class Opposition:
    """The adversarial terms: two losses of the student, and the loss of the discriminators."""

    discriminators: Discriminators
    config: LossConfig
    step: tf.Variable

    def __call__(self, draw: Draw) -> dict[str, Weighted]:
        """Return the losses of `Discriminators.losses` with their weights."""
        adversarial, matching, scoring = self.discriminators.losses(
            draw.output.output, draw.recorded
        )
        is_on = tf.cast(self.step >= self.config.adversarial_after, tf.float32)
        return {
            "adversarial": Weighted(self.config.adversarial * is_on, adversarial),
            "matching": Weighted(self.config.matching * is_on, matching),
            "discriminator": Weighted(1.0, scoring),
        }
