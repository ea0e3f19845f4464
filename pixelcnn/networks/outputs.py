"""The last layer: from hidden units to the distribution of a whole pixel, channel by channel.

An output computes `log_prob(hidden, levels)` and `sample(hidden, noise, temperature)` for every
position separately; the dependence of a channel on the channels before it stays inside.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from likelihoods import PixelMixture, noise
from likelihoods.categorical import COLDEST, sample_categorical
from likelihoods.initial import Initial
from likelihoods.registry import LIKELIHOODS
from pixelcnn.networks.config import OutputConfig
from pixelcnn.networks.groups import cut
from pixelcnn.networks.layers import matmul

NULL_FLOOR = 1e-5  # the least probability that guidance lets a level have without condition
SMALLEST = 1e-30  # a probability whose logarithm is finite
START_REACH = 0.25  # how far from the prediction the components start, of the half range


class Hidden(NamedTuple):
    """The hidden state of pixels: units [..., units], and a linear prediction [..., channels]."""

    units: tf.Tensor
    prediction: tf.Tensor


class PixelOutput(tf.Module):
    """The last layer of a network of images.

    Args:
      config: the settings of a pixel's distribution.
      name: name of the module.
    """

    def __init__(self, config: OutputConfig, name: str) -> None:
        super().__init__(name=name)
        self.kind, self.levels, self.channels = config.likelihood, config.levels, config.channels

    def sample(
        self,
        hidden: Hidden,
        words: tf.Tensor,
        temperature: float | tf.Tensor = 1.0,
        guidance: float | tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return pixels, int32 [..., channels], from words uint32 [..., noise_words].

        `guidance` is the weight of `sample_guided`; None: the hidden states are of separate images.
        """
        own: Any = self
        if guidance is not None:
            return sample_guided(own, hidden, words, temperature, guidance)
        return own.drawn(hidden, words, temperature)


class MixtureOutput(PixelOutput):
    """The parameters of a `PixelMixture`: one matrix, and the prediction added to every mean."""

    def __init__(
        self, config: OutputConfig, units: int, initial: Initial, name: str = "output"
    ) -> None:
        super().__init__(config, name)
        make, sizes = LIKELIHOODS[self.kind].make, (config.components, config.min_log_scale)
        self.likelihood = PixelMixture(self.levels, self.channels, *sizes, make)
        self.kernel = initial.kernel([units, self.likelihood.num_parameters], "kernel", 0.1)
        self.bias = tf.Variable(_spread(self.likelihood), name="bias")

    @property
    def noise_words(self) -> int:
        """Random words per pixel."""
        return self.likelihood.noise_channels

    @property
    def hidden_units(self) -> int:
        """Units of a hidden state."""
        return self.kernel.shape[0]

    def log_prob(self, hidden: Hidden, levels: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of pixels int32 [..., channels], float32 [...], nats."""
        return self.likelihood.log_prob(self.parameters(hidden), levels)

    def level_probabilities(self, hidden: Hidden, before: list) -> tf.Tensor:
        """Return float32 [..., levels] of the next channel given those before, int32 [...]."""
        return self.likelihood.level_probabilities(self.parameters(hidden), before)

    def level_log_probs(
        self, hidden: Hidden, before: list, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return the logarithms of these at a temperature, nats, exact in both tails."""
        return self.likelihood.level_log_probs(self.parameters(hidden), before, temperature)

    def drawn(self, hidden: Hidden, words: tf.Tensor, temperature: float | tf.Tensor) -> tf.Tensor:
        """Return the pixels of `sample` without guidance."""
        noises = self.likelihood.noise_of(words)
        return self.likelihood.sample(self.parameters(hidden), noises, temperature)

    def parameters(self, hidden: Hidden) -> tf.Tensor:
        """Return the parameters of the mixture, [..., num_parameters]."""
        parameters = matmul(tf.cast(hidden.units, tf.float32), self.kernel) + self.bias
        return self.likelihood.shift_means(parameters, hidden.prediction)


class SoftmaxOutput(PixelOutput):
    """A softmax for each channel, which reads the values of the channels before it.

        logits_c = relu(h A_c + sum_{d < c} E_cd[x_d]) B_c + b_c

    Source: van den Oord et al. 2016, arXiv:1601.06759, equation 2; here the dependence of a channel
    on those before it is in the last layer, not in masks through all of them.
    """

    def __init__(
        self, config: OutputConfig, units: int, initial: Initial, name: str = "output"
    ) -> None:
        super().__init__(config, name)
        width = config.softmax_units
        each = range(config.channels)
        self.hidden_kernels = [
            initial.kernel([units + config.channels, width], f"hidden_{c}") for c in each
        ]
        self.hidden_biases = [initial.zeros([width], f"hidden_bias_{c}") for c in each]
        self.embeddings = [
            [initial.kernel([1, self.levels, width], f"embedding_{c}_{d}") for d in range(c)]
            for c in each
        ]
        self.kernels = [initial.kernel([width, self.levels], f"kernel_{c}", 0.3) for c in each]
        self.biases = [initial.zeros([self.levels], f"bias_{c}") for c in each]

    @property
    def noise_words(self) -> int:
        """Random words per pixel."""
        return self.channels

    @property
    def hidden_units(self) -> int:
        """Units of a hidden state."""
        return self.hidden_kernels[0].shape[0] - self.channels

    def log_prob(self, hidden: Hidden, levels: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of pixels int32 [..., channels], float32 [...], nats."""
        values = tf.unstack(levels, axis=-1)
        total = 0.0
        for c in range(self.channels):
            total -= tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=values[c], logits=self._logits(hidden, c, values[:c])
            )
        return total

    def level_probabilities(self, hidden: Hidden, before: list) -> tf.Tensor:
        """Return float32 [..., levels] of the next channel given those before, int32 [...]."""
        return tf.nn.softmax(self._logits(hidden, len(before), before))

    def level_log_probs(
        self, hidden: Hidden, before: list, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return the logarithms of these at a temperature, nats, exact in both tails."""
        cold = tf.maximum(temperature, COLDEST)[..., tf.newaxis]
        return tf.nn.log_softmax(self._logits(hidden, len(before), before) / cold)

    def drawn(self, hidden: Hidden, words: tf.Tensor, temperature: float | tf.Tensor) -> tf.Tensor:
        """Return the pixels of `sample` without guidance."""
        uniforms = noise.uniform_from_bits(words)
        pixel: list[tf.Tensor] = []
        for c in range(self.channels):
            logits = self._logits(hidden, c, pixel)
            pixel.append(sample_categorical(logits, uniforms[..., c], temperature))
        return tf.stack(pixel, axis=-1)

    def _logits(self, hidden: Hidden, channel: int, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return float32 [..., levels] of a channel given the levels [...] of those before it."""
        units = tf.concat([tf.cast(hidden.units, tf.float32), hidden.prediction], -1)
        inside = matmul(units, self.hidden_kernels[channel])
        inside += self.hidden_biases[channel]
        for value, embedding in zip(before, self.embeddings[channel], strict=True):
            inside += tf.gather(embedding[0], value)
        return matmul(tf.nn.relu(inside), self.kernels[channel]) + self.biases[channel]


Output = MixtureOutput | SoftmaxOutput


class PixelOutputs(NamedTuple):
    """The distribution of every pixel given the pixels before it.

    Attributes:
      output: the layer that reads the hidden states.
      hidden: the hidden state of each pixel, [rows, height, width, ...]; a row is an image, or a
        patch of one.
      levels: the level of each pixel, int32 [rows, height, width, channels].
      images: int32 [], the number of images that the rows belong to; None: one per row.
      share: number of pixels in the whole image per pixel here; these are evenly spaced in it.
      weights: float32 [rows, height, width], the weight of each pixel of a crop; None: all equal.
    """

    output: Output
    hidden: Hidden
    levels: tf.Tensor
    images: tf.Tensor | None = None
    share: float = 1.0
    weights: tf.Tensor | None = None

    def nats(self) -> tf.Tensor:
        """Return the log-probability of each image's pixels, float32 [images], in nats."""
        return self.summed(self.output.log_prob(self.hidden, self.levels))

    def summed(self, each: tf.Tensor) -> tf.Tensor:
        """Return the weighted sum over the pixels of each image, times the share, float32 [images].

        The values to sum are float32 [rows, height, width].
        """
        if self.weights is not None:
            each = self.weights * each
        rows = tf.reduce_sum(each, [1, 2])
        if self.images is not None:
            rows = tf.reduce_sum(tf.reshape(rows, [self.images, -1]), 1)
        return self.share * rows

    def weighted(self, weights: tf.Tensor) -> "PixelOutputs":
        """Return a copy with weights [images, height, width], cut like the images."""
        if self.images is not None:
            weights = cut(weights[..., tf.newaxis], self.levels.shape[1])[..., 0]
        return self._replace(weights=weights)


def sample_guided(
    output: Output,
    hidden: Hidden,
    words: tf.Tensor,
    temperature: float | tf.Tensor,
    weight: float | tf.Tensor,
) -> tf.Tensor:
    """Return pixels drawn from the distribution of `guided_nats`, int32 [2 batch, ..., channels].

    Each is returned twice, for both halves of the batch. The hidden states [2 batch, ...] are first
    those under the conditions, then those under the null condition; both halves of the words uint32
    [2 batch, ..., noise words] are the same. The temperature 0 takes the most probable level.
    """
    sides = both_sides(hidden)
    drawn: list[tf.Tensor] = []
    uniforms = noise.uniform_from_bits(tf.split(words, 2)[0])
    for c in range(hidden.prediction.shape[-1]):
        moved = guided_nats(output, sides, drawn, weight, temperature)
        drawn.append(sample_categorical(moved, uniforms[..., c], tf.sign(temperature)))
    return tf.tile(tf.stack(drawn, axis=-1), [2] + [1] * (words.shape.rank - 1))


def guided_log_prob(
    output: Output, hidden: Hidden, levels: tf.Tensor, weight: float | tf.Tensor
) -> tf.Tensor:
    """Return the guided log-probability of pixels int32 [batch, ..., channels], float32, nats.

    The hidden states [2 batch, ...] are those under the conditions, then under the null condition.
    """
    sides, channels = both_sides(hidden), tf.unstack(levels, axis=-1)
    total = 0.0
    for c, level in enumerate(channels):
        moved = guided_nats(output, sides, channels[:c], weight)
        total -= tf.nn.sparse_softmax_cross_entropy_with_logits(labels=level, logits=moved)
    return total


def both_sides(hidden: Hidden) -> list[Hidden]:
    """Return the halves of a hidden state [2 batch, ...]: with the conditions, with the null."""
    return [Hidden(*(tf.split(part, 2)[side] for part in hidden)) for side in range(2)]


def guided_nats(
    output: Output,
    sides: list[Hidden],
    before: list,
    weight: float | tf.Tensor,
    temperature: float | tf.Tensor = 1.0,
) -> tf.Tensor:
    """Return log q of the next channel, moved away from the null condition, float32 [..., levels].

    Level by level, where p is the model's distribution, and up to a constant:

        log q(x) = log p_T(x | condition) + weight / T (log p(x | condition) - log p(x | null))

    p_T is the distribution that `output.sample` draws at temperature T, so that without a weight
    the temperature has the same meaning as without guidance. (Where p_T is p^(1/T), of a softmax, q
    at T is q at 1 to the power 1/T.) p(x | null) counts as at least `NULL_FLOOR`: its far tails
    carry no information, and would draw samples to wherever it is narrower. q is no longer the
    model's own density.

    Source: Ho and Salimans 2021, "Classifier-Free Diffusion Guidance" (arXiv 2207.12598), with
    conditionals instead of scores.

    Args:
      output: reads the hidden state.
      sides: hidden states under the conditions and under the null condition.
      before: the levels int32 [...] of the channels before it.
      weight: weight away from the null condition, at least 0; a number or a tensor [].
      temperature: T, one for all or [...]; 0 counts as 1e-6.
    """
    given, null = (output.level_probabilities(side, before) for side in sides)
    nats = tf.math.log(tf.maximum(given, SMALLEST))
    # log p(x | condition) - log p(x | null), the direction away from the null condition.
    moved = nats - tf.math.log(tf.maximum(null, NULL_FLOOR))
    if isinstance(temperature, float) and temperature == 1.0:
        return nats + weight * moved
    cooled = tf.cond(  # saves a table at temperature 1
        tf.reduce_all(tf.equal(temperature, 1.0)),
        lambda: nats,
        lambda: output.level_log_probs(sides[0], before, temperature),
    )
    strength = weight / tf.maximum(temperature, COLDEST)[..., tf.newaxis]
    return cooled + strength * moved


def make_output(config: OutputConfig, units: int, initial: Initial) -> Output:
    """Return the output for a configuration."""
    kind = MixtureOutput if config.has_density else SoftmaxOutput
    return kind(config, units, initial)


def _spread(likelihood: PixelMixture) -> tf.Tensor:
    """Return biases that start the components evenly around the prediction."""
    count, channels = likelihood.components, likelihood.channels
    middle = START_REACH * ((2.0 * tf.range(count, dtype=tf.float32) + 1.0) / count - 1.0)
    wide = tf.fill([count], math.log(START_REACH / count))
    pairs = likelihood.num_parameters // count - 1 - 2 * channels
    rows = [tf.zeros([count]), *[middle] * channels, *[wide] * channels]
    return tf.concat([*rows, tf.zeros([pairs * count])], 0)
