"""A discretised mixture of Gaussians."""

import dataclasses

import tensorflow as tf

from onepass.likelihoods import gaussian
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.mixture import Mixture


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
