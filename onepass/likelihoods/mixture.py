"""Mixtures of Gaussians and of logistics, over numbers, over levels and over whole pixels."""

import abc
import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf

from onepass.foundation.rules import check_components, check_levels, must_be
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import gaussian
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.codec import COLDEST, Real, sample_categorical
from onepass.likelihoods.noise import Int


@dataclasses.dataclass(frozen=True)
class Mixture(abc.ABC):
    """A weighted sum of densities that differ in location and scale.

    A subclass defines the density by four methods. The parameters [..., 3 * components] are
    [logits | means | log_scales]; means and scales are in units in which the grid of levels spans
    [-1, 1]. Log-scales are clamped to at least `min_log_scale`.

    Args:
      levels: number of levels, 2 to 2^22; None: symbols are real numbers.
      components: number of densities in the mixture, at least 1.
      min_log_scale: lower bound; smaller log-scales are raised to it.
    """

    levels: int | None = 65536
    components: int = 10
    min_log_scale: float = -16.0
    noise_channels = 2  # a uniform for the component, and a standard draw

    def __post_init__(self) -> None:
        if self.levels is not None:
            check_levels(self.levels)
        check_components(self.components)

    @property
    def num_parameters(self) -> int:
        """Number of parameters, three per component: a logit, a mean and a log-scale."""
        return 3 * self.components

    @property
    def sections(self) -> tuple[int, int, int]:
        """Numbers of logits, means and log-scales among the parameters."""
        return self.components, self.components, self.components

    @abc.abstractmethod
    def log_mass(self, means: tf.Tensor, log_scales: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the log-mass of a bin under each component; float levels are between levels."""

    @abc.abstractmethod
    def component_log_density(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """Return the log-density at real values [...], nats per unit, float32 [...]."""

    @abc.abstractmethod
    def cumulative_share(self, z: tf.Tensor) -> tf.Tensor:
        """Return the mass of the standard density below z, of the type and shape of z."""

    @abc.abstractmethod
    def draw_from_bits(self, words: tf.Tensor) -> tf.Tensor:
        """Return a draw from the standard density for each random word uint32, float32 [...]."""

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """See `Distribution.noise`: a uniform and a standard draw for each symbol."""
        words = counter_noise.bits(seed, rows, start, length)
        uniform = counter_noise.uniform_from_bits(words[..., 0])
        return tf.stack([uniform, self.draw_from_bits(words[..., 1])], axis=-1)

    def log_mass_at(self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return the log-mass of bins around real `values`; outer bins extend to infinity."""
        return self.log_mass(means, log_scales, (values + 1.0) * (0.5 * self._half_bins))

    def log_mass_around(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """Return the log-mass of finite bins around real `values` [...]."""
        density = self.component_log_density(means, log_scales, values)
        return density + math.log(2.0 / self._half_bins)

    @property
    def _num_levels(self) -> int:
        if self.levels is None:
            raise ValueError("`levels` must be given for the probability of a level, got None.")
        return self.levels

    @property
    def _half_bins(self) -> float:
        return self._num_levels - 1.0

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        if self.levels is None:
            return self.log_density(tf.cast(parameters, tf.float32), symbols)
        logits, means, log_scales = self.split(tf.cast(parameters, tf.float32))
        log_mass = self.log_mass(means, log_scales, symbols[..., tf.newaxis])
        return tf.reduce_logsumexp(tf.nn.log_softmax(logits) + log_mass, axis=-1)

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Continuous.log_density`; differentiable in both arguments."""
        logits, means, log_scales = self.split(parameters)
        values = tf.cast(values, means.dtype)[..., tf.newaxis]
        each = self.component_log_density(means, log_scales, values)
        return tf.reduce_logsumexp(tf.nn.log_softmax(logits) + each, axis=-1)

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`: the symbol nearest to `mean_k + temperature scale_k noise[1]`.

        `noise[0]`, a uniform, chooses the component k. The temperature also divides the logits; 0
        gives the mean of the component with the largest logit.
        """
        logits, means, log_scales = self.split(parameters)
        component = sample_categorical(logits, noise[..., 0], temperature)
        mean, log_scale = take(means, component), take(log_scales, component)
        return level_grid.sample_symbol(mean, log_scale, temperature * noise[..., 1], self.levels)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`: the symbol at the mean of the highest component.

        That is the component with the largest weighted mass on the level of its mean or, for real
        symbols, the largest weighted density at its mean. Higher maxima where components overlap,
        and outer levels, whose bins are whole tails, are not considered.
        """
        logits, means, log_scales = self.split(parameters)
        peaks = level_grid.symbol_of(means, self.levels)
        measure = self.component_log_density if self.levels is None else self.log_mass
        heights = tf.nn.log_softmax(logits) + measure(means, log_scales, peaks)
        best = tf.argmax(heights, axis=-1, output_type=tf.int32)
        return level_grid.symbol_of(take(means, best), self.levels)

    def split(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return logits, means and clamped log-scales, [..., components] each."""
        logits, means, log_scales = tf.split(level_grid.real(parameters), 3, axis=-1)
        return logits, means, tf.maximum(log_scales, self.min_log_scale)

    def initial_parameters(self, reach: float = 0.5) -> tf.Tensor:
        """See `LocationScale.initial_parameters`: means evenly spaced, log-scales -2 to -5."""
        spread = tf.linspace(-reach, reach, self.components)
        log_scales = tf.linspace(-2.0, -5.0, self.components)
        return tf.concat([tf.zeros([self.components]), spread, log_scales], 0)


def take(values: tf.Tensor, component: tf.Tensor) -> tf.Tensor:
    """Return the entry of `values` [..., components] at index `component` [...], shape [...]."""
    chosen = tf.one_hot(component, values.shape[-1], dtype=values.dtype)
    return tf.reduce_sum(values * chosen, axis=-1)


@dataclasses.dataclass(frozen=True)
class GaussianMixture(Mixture):
    """A mixture of normal distributions, each integrated over the bins of the level grid.

    `Mixture` documents the parameters, arguments and errors.

    Source: Bishop 1994, "Mixture density networks", equation 22; the bins are those of `Gaussian`.
    """

    form = "normal"  # key of `onepass.compression.odds.FORMS`

    def log_mass(self, means: tf.Tensor, log_scales: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Mixture.log_mass`."""
        return gaussian.log_mass(means, log_scales, levels, self._num_levels)

    def component_log_density(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """See `Mixture.component_log_density`."""
        return gaussian.log_normal(means, log_scales, values)

    def cumulative_share(self, z: tf.Tensor) -> tf.Tensor:
        """See `Mixture.cumulative_share`."""
        return tf.exp(gaussian.log_upper_tail(-z))

    def draw_from_bits(self, words: tf.Tensor) -> tf.Tensor:
        """See `Mixture.draw_from_bits`."""
        uniform = counter_noise.uniform64_from_bits(words)
        return tf.cast(tf.math.ndtri(uniform), tf.float32)

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """See `Distribution.noise`: a uniform and a standard normal for each symbol."""
        uniform = counter_noise.uniform(seed, rows, start, length)[..., :1]
        return tf.concat([uniform, counter_noise.normal(seed, rows, start, length, 1)[..., :1]], -1)


# Far below any relevant bin; keeps the logarithm of a bin's width finite for scales like e^80.
_SMALLEST_WIDTH = 1e-30


@dataclasses.dataclass(frozen=True)
class LogisticMixture(Mixture):
    """A mixture of logistic distributions, each integrated over the bins of the level grid.

    `Mixture` documents the parameters, arguments and errors.

    Source: Salimans et al. 2017, arXiv:1701.05517, section 2.1; with 10 components over 16-bit
    audio in van den Oord et al. 2017, arXiv:1711.10433.
    """

    form = "logistic"  # key of `onepass.compression.odds.FORMS`

    def component_log_density(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """See `Mixture.component_log_density`.

        For integer symbols, the density is averaged over a bin around the value, so it is never
        sharper than the grid: log(mass / width), width = 2 / (levels - 1). At an inner level, it is
        the level's probability divided by the width. Between levels it interpolates; its integral
        over a bin is not quite the bin's mass (0.839 instead of 0.973 for 256 levels, log-scale -7
        and a mean in mid-bin).
        """
        if self.levels is None:
            noise = (values - means) * tf.exp(-log_scales)
            return -noise - 2.0 * tf.nn.softplus(-noise) - log_scales
        inside = self.log_mass_around(means, log_scales, values)
        return inside - math.log(2.0 / (self.levels - 1))

    def cumulative_share(self, z: tf.Tensor) -> tf.Tensor:
        """See `Mixture.cumulative_share`."""
        return tf.sigmoid(z)

    def draw_from_bits(self, words: tf.Tensor) -> tf.Tensor:
        """See `Mixture.draw_from_bits`."""
        return counter_noise.logistic_from_bits(words)

    def log_mass(self, means: tf.Tensor, log_scales: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Mixture.log_mass`."""
        # Computed from edges, so that adjacent bins share an edge exactly.
        num_levels = self._num_levels
        centre = level_grid.centre_levels(levels, num_levels)
        upper, lower = (
            level_grid.edge_distance(centre + side, means, num_levels) for side in (1.0, -1.0)
        )
        below, above, inside = self._log_parts(upper, lower, log_scales)
        return self._select(centre, below, above, inside)

    def log_mass_at(self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Mixture.log_mass_at`."""
        distance = (values - means) * self._half_bins
        below, above, inside = self._log_parts(distance + 1.0, distance - 1.0, log_scales)
        return self._select(values * self._half_bins, below, above, inside)

    def log_mass_around(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """See `Mixture.log_mass_around`."""
        distance = (values - means) * self._half_bins
        return self._log_parts(distance + 1.0, distance - 1.0, log_scales)[2]

    def _select(
        self, centre: tf.Tensor, below: tf.Tensor, above: tf.Tensor, inside: tf.Tensor
    ) -> tf.Tensor:
        upper = tf.where(centre >= self._half_bins, above, inside)
        return tf.where(centre <= -self._half_bins, below, upper)

    def _log_parts(
        self, upper: tf.Tensor, lower: tf.Tensor, log_scales: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the log-masses below a bin's upper edge, above its lower edge, and of the bin.

        `sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(-(b - a)))`, where `b - a` is
        known without a subtraction, so no precision is lost even for a narrow or remote bin.
        """
        half_bins_per_scale = tf.exp(-log_scales) * (1.0 / self._half_bins)
        below = -tf.nn.softplus(-upper * half_bins_per_scale)
        above = -tf.nn.softplus(lower * half_bins_per_scale)
        width = tf.maximum(2.0 * half_bins_per_scale, _SMALLEST_WIDTH)
        return below, above, below + above + tf.math.log(-tf.math.expm1(-width))


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
      levels: number of levels of a channel, 2 to 2^22.
      channels: number of channels, 1 or 3.
      components: number of densities in the mixture, at least 1.
      min_log_scale: lower bound; smaller log-scales are raised to it.
      make_mixture: subclass of `Mixture`, which defines the densities.
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
        whole = tf.nn.log_softmax(logits) + tf.reduce_sum(mass, axis=-2)
        return tf.reduce_logsumexp(whole, axis=-1)

    def log_densities(
        self, parameters: tf.Tensor, values: tf.Tensor, before: tf.Tensor
    ) -> tf.Tensor:
        """Return the log-density of a real value of each channel, float32 [..., channels], nats.

        It is the density before rounding to levels, averaged over a bin around the value as in
        `LogisticMixture.component_log_density`, in units in which the grid spans [-1, 1]. Values
        may be outside [-1, 1]. Each replaces only its own channel of the pixel `before`, and is
        conditioned on the channels of `before` that precede it.
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
        """Return the probability of every level of the channel after `before`, levels int32 [...].

        They are float32 [..., levels], for sampling: differences of a cumulative distribution, with
        an absolute error of about 1e-7. `level_log_probs` is precise in the tails, too, but takes
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
        self, parameters: tf.Tensor, before: list[tf.Tensor], temperature: Real = 1.0
    ) -> tf.Tensor:
        """Return the log-probability of every level of the channel after `before`.

        They are float32 [..., levels], nats, precise in both tails and differentiable, for
        training. The temperature, a scalar or [...], counts as 1e-6 if it is 0.
        """
        logits, mean, log_scale = self._channel_parameters(parameters, before, temperature)
        every = tf.range(self.levels)[:, tf.newaxis]
        mass = self.mixture.log_mass(mean[..., tf.newaxis, :], log_scale[..., tf.newaxis, :], every)
        weights = tf.nn.log_softmax(logits)[..., tf.newaxis, :]
        return tf.reduce_logsumexp(weights + mass, axis=-1)

    def _channel_parameters(
        self, parameters: tf.Tensor, before: list[tf.Tensor], temperature: Real
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

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
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
            scale = log_scales[..., c]
            drawn.append(level_grid.sample_level(mean[..., 0], scale, draw, self.levels))
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

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
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
        shape = tf.concat([tf.shape(parameters)[:-1], [-1, self.components]], 0)
        sizes = [*parameters.shape[:-1], self.num_parameters // self.components, self.components]
        rows = tf.ensure_shape(tf.reshape(parameters, shape), sizes)
        log_scales = tf.maximum(rows[..., 1 + count : 1 + 2 * count, :], self.min_log_scale)
        coefficients = tf.tanh(rows[..., 1 + 2 * count :, :])
        return rows[..., 0, :], rows[..., 1 : 1 + count, :], log_scales, coefficients
