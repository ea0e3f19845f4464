"""Mixtures of distributions over real numbers or levels: of Gaussians and of logistics."""

import abc
import dataclasses
import math

import tensorflow as tf

from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import gaussian
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.categorical import sample_categorical
from onepass.likelihoods.limits import check_components, check_levels


@dataclasses.dataclass(frozen=True)
class Mixture(abc.ABC):
    """A weighted sum of densities that differ in location and scale.

    A subclass defines the density by four methods. The parameters [..., 3 * components] are
    [logits | means | log_scales]; means and scales are in units in which the grid of levels spans
    [-1, 1]. Log-scales are clamped to at least `min_log_scale`.

    Args:
      levels: number of levels; None: symbols are real numbers.
      components: number of densities in the mixture.
      min_log_scale: lower bound; smaller log-scales are raised to it.
    """

    levels: int | None = 65536
    components: int = 10
    min_log_scale: float = -16.0

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

    @property
    def noise_channels(self) -> int:
        """Number of random numbers per symbol: a uniform for the component, and a standard draw."""
        return 2

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

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
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

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
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

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
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
