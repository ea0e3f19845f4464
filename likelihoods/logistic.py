"""A discretised mixture of logistics."""

import dataclasses
import math

import tensorflow as tf

from likelihoods import levels as level_grid
from likelihoods import noise as counter_noise
from likelihoods.categorical import sample_categorical
from likelihoods.limits import check_components, check_levels

# Far below any bin that matters; keeps the logarithm of a bin's width finite for scales like e^80.
_SMALLEST_WIDTH = 1e-30


@dataclasses.dataclass(frozen=True)
class LogisticMixture(level_grid.LinearLevels):
    """Mixture of logistic densities, each integrated over the bins of the level grid.

    The parameters [..., 3 * components] are [logits | means | log_scales]; means and scales are in
    the units of `scale`, where the grid spans [-1, 1]. Log-scales are held at or above
    `min_log_scale`.

    Raises:
      ValueError: fewer than 2 levels or more than 2^22, or no component.
    Source: Salimans et al. 2017, arXiv:1701.05517, section 2.1; with 10 components over 16-bit
    sound in van den Oord et al. 2017, arXiv:1711.10433.
    """

    levels: int = 65536
    components: int = 10
    min_log_scale: float = -16.0

    def __post_init__(self) -> None:
        check_levels(self.levels)
        check_components(self.components)

    @property
    def num_parameters(self) -> int:
        """A logit, a mean and a log-scale for each component."""
        return 3 * self.components

    @property
    def noise_channels(self) -> int:
        """A uniform, which takes the component, and a standard logistic."""
        return 2

    def log_prob(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...], nats, of `levels` int32 [...] under `parameters` [..., 3 * components]."""
        logits, means, log_scales = self.split(tf.cast(parameters, tf.float32))
        log_mass = self.log_mass(means, log_scales, levels[..., tf.newaxis])
        return tf.reduce_logsumexp(tf.nn.log_softmax(logits) + log_mass, axis=-1)

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """float32 [...], nats per unit of `scale`, of real `values` [...]; differentiable in both.

        The density is the mean of the mixture's own over a bin around the value, so that nothing
        is sharper than the grid: log(mass / width), width = 2 / (levels - 1). At the value of an
        inner level it is that level's probability over the width. Between levels it moves from one
        to the next: it is smoother than the mixture, and its integral over a bin is not quite the
        bin's mass (at 256 levels and log-scale -7, in the middle of a bin, 0.839 for 0.973).
        """
        logits, means, log_scales = self.split(parameters)
        inside = self.log_mass_around(means, log_scales, values[..., tf.newaxis])
        log_mass = tf.reduce_logsumexp(tf.nn.log_softmax(logits) + inside, axis=-1)
        return log_mass - math.log(2.0 / (self.levels - 1))

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """int32 [...], the level of `mean_k + temperature scale_k noise[1]`.

        Args:
          parameters: [..., 3 * components].
          noise: [..., 2], a uniform, which takes the component k, and a standard logistic.
          temperature: multiplies the logistic and divides the logits; 0 gives the mean of the
            component with the largest logit.
        """
        logits, means, log_scales = self.split(parameters)
        component = sample_categorical(logits, noise[..., 0], temperature)
        mean, log_scale = _take(means, component), _take(log_scales, component)
        return level_grid.sample_level(mean, log_scale, temperature * noise[..., 1], self.levels)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """int32 [...], the level of the mean of one component.

        It is the component that puts the largest mass, weight included, on the level of its own
        mean. Overlap between components is not searched for a higher level, nor are the outer
        levels, which hold whole tails.
        """
        logits, means, log_scales = self.split(parameters)
        peaks = level_grid.nearest(means, self.levels)
        peak_mass = tf.nn.log_softmax(logits) + self.log_mass(means, log_scales, peaks)
        best = tf.argmax(peak_mass, axis=-1, output_type=tf.int32)
        return level_grid.nearest(_take(means, best), self.levels)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """float32 [rows, length, 2], a uniform and a logistic; arguments as for `noise.bits`."""
        words = counter_noise.bits(seed, rows, start, length)
        uniform = counter_noise.uniform_from_bits(words[..., 0])
        return tf.stack([uniform, counter_noise.logistic_from_bits(words[..., 1])], axis=-1)

    def split(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Logits, means and log-scales, [..., components] each, the last one clamped."""
        logits, means, log_scales = tf.split(level_grid.real(parameters), 3, axis=-1)
        return logits, means, tf.maximum(log_scales, self.min_log_scale)

    def log_mass(self, means: tf.Tensor, log_scales: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Log of `sigmoid(b) - sigmoid(a)`, where a and b are the edges of the bin over the scale.

        The outer bins reach to infinity.
        """
        # By edges, so that neighbouring bins share one to the last bit.
        centre = level_grid.centred(levels, self.levels)
        upper, lower = (
            level_grid.edge_distance(centre + side, means, self.levels) for side in (1.0, -1.0)
        )
        return self._by_place(centre, *self._log_parts(upper, lower, log_scales))

    def log_mass_at(self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """The same of bins around real `values`; those of the outer levels reach to infinity."""
        half_bins = self.levels - 1.0
        distance = (values - means) * half_bins
        parts = self._log_parts(distance + 1.0, distance - 1.0, log_scales)
        return self._by_place(values * half_bins, *parts)

    def log_mass_around(
        self, means: tf.Tensor, log_scales: tf.Tensor, values: tf.Tensor
    ) -> tf.Tensor:
        """Log-mass of a bin around real `values` [...], none of which reaches to infinity."""
        distance = (values - means) * (self.levels - 1.0)
        return self._log_parts(distance + 1.0, distance - 1.0, log_scales)[2]

    def _by_place(
        self, centre: tf.Tensor, below: tf.Tensor, above: tf.Tensor, inside: tf.Tensor
    ) -> tf.Tensor:
        """Of `_log_parts` what a bin around `centre`, in half bins, holds."""
        upper = tf.where(centre >= self.levels - 1.0, above, inside)
        return tf.where(centre <= 1.0 - self.levels, below, upper)

    def _log_parts(
        self, upper: tf.Tensor, lower: tf.Tensor, log_scales: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Log-masses of all below a bin's upper edge, above its lower edge, and of the bin.

        `sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(-(b - a)))`, in which `b - a`
        needs no subtraction: no digit is lost however narrow or remote the bin.

        upper, lower: how far the edges lie above the mean, in half bins.
        """
        half_bins_per_scale = tf.exp(-log_scales) * (1.0 / (self.levels - 1))
        below = -tf.nn.softplus(-upper * half_bins_per_scale)
        above = -tf.nn.softplus(lower * half_bins_per_scale)
        width = tf.maximum(2.0 * half_bins_per_scale, _SMALLEST_WIDTH)
        return below, above, below + above + tf.math.log(-tf.math.expm1(-width))


def _take(values: tf.Tensor, component: tf.Tensor) -> tf.Tensor:
    chosen = tf.one_hot(component, values.shape[-1], dtype=values.dtype)
    return tf.reduce_sum(values * chosen, axis=-1)
