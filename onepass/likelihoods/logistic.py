"""A discretised mixture of logistics."""

import dataclasses
import math

import tensorflow as tf

from onepass.likelihoods import levels as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.mixture import Mixture

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
        return self._select(centre, *self._log_parts(upper, lower, log_scales))

    def log_mass_at(self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Mixture.log_mass_at`."""
        distance = (values - means) * self._half_bins
        parts = self._log_parts(distance + 1.0, distance - 1.0, log_scales)
        return self._select(values * self._half_bins, *parts)

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
