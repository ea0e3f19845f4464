"""A discretised mixture over the whole colour of a pixel."""

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf

from onepass.foundation.errors import must_be
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.categorical import COLDEST, sample_categorical
from onepass.likelihoods.mixture import LogisticMixture, Mixture

PAIRS = {1: (), 3: ((1, 0), (2, 0), (2, 1))}  # (channel, earlier channel that shifts its mean)


@dataclasses.dataclass(frozen=True)
class PixelMixture:
    """A mixture, by default of logistics, over a pixel's channels in the order R, G, B.

    A component is chosen once for the pixel; within it the mean of a channel depends linearly on
    the channels before it:

        mean_G = m_G + a R,    mean_B = m_B + b R + c G,    a, b, c in (-1, 1)

    The parameters [..., num_parameters] are [logits | means | log-scales | coefficients], channel
    by channel, `components` each. Source: Salimans et al. 2017, arXiv:1701.05517, section 2.2.

    Args:
      levels: number of levels of a channel.
      channels: number of channels, 1 or 3.
      components: number of densities in the mixture.
      min_log_scale: lower bound; smaller log-scales are raised to it.
      make_mixture: subclass of `Mixture`, which defines the densities.

    Raises:
      ValueError: there are fewer than 2 levels or more than 2^22, there is no component, or the
        number of channels is neither 1 nor 3.
    """

    levels: int = 256
    channels: int = 3
    components: int = 10
    min_log_scale: float = -7.0
    make_mixture: Callable[..., Mixture] = LogisticMixture

    def __post_init__(self) -> None:
        if self.channels not in PAIRS:
            raise ValueError(must_be("channels", "1 or 3", self.channels))
        self.mixture  # noqa: B018 - checks levels and components

    @property
    def mixture(self) -> Mixture:
        """The mixture over a single channel."""
        return self.make_mixture(self.levels, self.components, self.min_log_scale)

    @property
    def num_parameters(self) -> int:
        """Number of parameters: a logit, means, log-scales and coefficients per component."""
        return self.components * (1 + 2 * self.channels + len(PAIRS[self.channels]))

    @property
    def noise_channels(self) -> int:
        """Number of random numbers per pixel: a uniform, and a draw for each channel."""
        return 1 + self.channels

    def shift_means(self, parameters: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        """Return parameters with means moved by `offset` [..., channels], on a grid of [-1, 1]."""
        rest = self.num_parameters // self.components - 1 - self.channels
        wide = tf.repeat(offset, self.components, axis=-1)
        ends = [[0, 0]] * (offset.shape.rank - 1)
        return parameters + tf.pad(wide, [*ends, [self.components, rest * self.components]])

    def log_prob(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`, for pixels [..., channels]."""
        logits, means, log_scales, coefficients = self._split(parameters)
        values = tf.unstack(level_grid.value_of(levels, self.levels)[..., tf.newaxis], axis=-2)
        moved = [self._mean(c, means, coefficients, values) for c in range(self.channels)]
        mass = self.mixture.log_mass(tf.stack(moved, axis=-2), log_scales, levels[..., tf.newaxis])
        return tf.reduce_logsumexp(
            tf.nn.log_softmax(logits) + tf.reduce_sum(mass, axis=-2), axis=-1
        )

    def log_densities(
        self, parameters: tf.Tensor, values: tf.Tensor, before: tf.Tensor
    ) -> tf.Tensor:
        """Return the log-density of a real value of each channel, float32 [..., channels], nats.

        It is the density before rounding to levels, averaged over a bin around the value as in
        `LogisticMixture.component_log_density`, in units in which the grid spans [-1, 1]. Values
        may be outside [-1, 1].

        Args:
          before: the pixel's own values, [..., channels] in [-1, 1]; each entry of `values`
            replaces only its own channel and is conditioned on the channels of `before` that
            precede it.
        """
        logits, means, log_scales, coefficients = self._split(parameters)
        found = []
        known = tf.unstack(before[..., tf.newaxis], axis=-2)
        for c in range(self.channels):
            mean, log_scale = self._mean(c, means, coefficients, known), log_scales[..., c, :]
            inside = self.mixture.log_mass_around(mean, log_scale, values[..., c, tf.newaxis])
            found.append(tf.reduce_logsumexp(tf.nn.log_softmax(logits) + inside, axis=-1))
            logits += self.mixture.log_mass_at(mean, log_scale, known[c])
        return tf.stack(found, axis=-1) - math.log(2.0 / (self.levels - 1))

    def level_probabilities(self, parameters: tf.Tensor, before: list[tf.Tensor]) -> tf.Tensor:
        """Return the probability of every level of the channel after `before`.

        Args:
          before: levels int32 [...] of the preceding channels; empty for the first channel.

        Returns:
          float32 [..., levels], for sampling: differences of a cumulative distribution, with an
          absolute error of about 1e-7. `level_log_probs` is precise in the tails, too, but takes
          several times as long.
        """
        logits, mean, log_scale = self._channel_parameters(parameters, before, 1.0)
        mean, width = mean[..., tf.newaxis, :], tf.exp(log_scale[..., tf.newaxis, :])
        edges = (2.0 * tf.range(1.0, self.levels) - self.levels) / (self.levels - 1.0)
        below = self.mixture.cumulative_share((edges[:, tf.newaxis] - mean) / width)
        cumulative = tf.linalg.matvec(below, tf.nn.softmax(logits))
        ends = [[0, 0]] * (cumulative.shape.rank - 1)
        upper = tf.pad(cumulative, [*ends, [0, 1]], constant_values=1.0)
        return upper - tf.pad(cumulative, [*ends, [1, 0]])

    def level_log_probs(
        self,
        parameters: tf.Tensor,
        before: list[tf.Tensor],
        temperature: float | tf.Tensor = 1.0,
    ) -> tf.Tensor:
        """Return the log-probability of every level of the channel after `before`.

        Args:
          temperature: temperature of the distribution, a scalar or [...]; 0 counts as 1e-6.

        Returns:
          float32 [..., levels], nats, precise in both tails and differentiable, for training.
        """
        logits, mean, log_scale = self._channel_parameters(parameters, before, temperature)
        every = tf.range(self.levels)[:, tf.newaxis]
        mass = self.mixture.log_mass(mean[..., tf.newaxis, :], log_scale[..., tf.newaxis, :], every)
        weights = tf.nn.log_softmax(logits)[..., tf.newaxis, :]
        return tf.reduce_logsumexp(weights + mass, axis=-1)

    def _channel_parameters(
        self, parameters: tf.Tensor, before: list[tf.Tensor], temperature: float | tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        logits, means, log_scales, coefficients = self._split(parameters)
        cold = tf.maximum(temperature, COLDEST)[..., tf.newaxis]
        logits, log_scales = logits / cold, log_scales + tf.math.log(cold)[..., tf.newaxis]
        values = [level_grid.value_of(x, self.levels)[..., tf.newaxis] for x in before]
        for c, levels in enumerate(before):
            mean = self._mean(c, means, coefficients, values)
            # The posterior of the components given this channel's level, by Bayes' rule.
            logits += self.mixture.log_mass(mean, log_scales[..., c, :], levels[..., tf.newaxis])
        c = len(before)
        return logits, self._mean(c, means, coefficients, values), log_scales[..., c, :]

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """See `Distribution.sample`: pixels, int32 [..., channels].

        The noise is a uniform, and a draw from the standard density for each channel. The
        temperature multiplies the draws and divides the logits.
        """
        logits, means, log_scales, coefficients = self._split(parameters)
        # One component is drawn for the whole pixel, which correlates its channels.
        chosen = tf.one_hot(sample_categorical(logits, noise[..., 0], temperature), self.components)
        means, log_scales, coefficients = (
            tf.reduce_sum(each * chosen[..., tf.newaxis, :], axis=-1)
            for each in (means, log_scales, coefficients)
        )
        drawn: list[tf.Tensor] = []
        for c in range(self.channels):
            values = [level_grid.value_of(x, self.levels)[..., tf.newaxis] for x in drawn]
            mean = self._mean(c, means[..., tf.newaxis], coefficients[..., tf.newaxis], values)
            draw = temperature * noise[..., 1 + c]
            drawn.append(
                level_grid.sample_level(mean[..., 0], log_scales[..., c], draw, self.levels)
            )
        return tf.stack(drawn, axis=-1)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`: the most probable level of each channel, given those before it.

        The pixel need not be the most probable one.
        """
        drawn: list[tf.Tensor] = []
        for _ in range(self.channels):
            table = self.level_log_probs(parameters, drawn)
            drawn.append(tf.argmax(table, axis=-1, output_type=tf.int32))
        return tf.stack(drawn, axis=-1)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """See `Distribution.noise`: a uniform, and a draw for each channel."""
        return self.noise_of(counter_noise.words(seed, rows, start, length, self.noise_channels))

    def noise_of(self, words: tf.Tensor) -> tf.Tensor:
        """Return noise float32 [..., 1 + channels] from random words uint32 [..., 1 + channels]."""
        uniform = counter_noise.uniform_from_bits(words[..., :1])
        return tf.concat([uniform, self.mixture.draw_from_bits(words[..., 1:])], -1)

    def _mean(
        self, channel: int, means: tf.Tensor, coefficients: tf.Tensor, values: list[tf.Tensor]
    ) -> tf.Tensor:
        mean = means[..., channel, :]
        for i, (moved, by) in enumerate(PAIRS[self.channels]):
            if moved == channel:
                mean += coefficients[..., i, :] * values[by]
        return mean

    def _split(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        parameters, count = level_grid.real(parameters), self.channels
        rows = tf.reshape(
            parameters, tf.concat([tf.shape(parameters)[:-1], [-1, self.components]], 0)
        )
        rows = tf.ensure_shape(
            rows, [*parameters.shape[:-1], 1 + 2 * count + len(PAIRS[count]), self.components]
        )
        log_scales = tf.maximum(rows[..., 1 + count : 1 + 2 * count, :], self.min_log_scale)
        coefficients = tf.tanh(rows[..., 1 + 2 * count :, :])
        return rows[..., 0, :], rows[..., 1 : 1 + count, :], log_scales, coefficients
