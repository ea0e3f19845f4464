"""A discretised Gaussian."""

import dataclasses
import math

import tensorflow as tf

from onepass.foundation.rules import check_levels
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.codec import Real
from onepass.likelihoods.noise import Int

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)
# log(erfc(z) / t) + z^2 as a polynomial in t = 1 / (1 + z/2), fractional error below 1.2e-7.
# Source: Press et al., "Numerical Recipes", second edition, section 6.2, `erfcc`.
_ERFC_POLYNOMIAL = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip
# Positive nodes and halved weights of the four-point Gauss-Legendre rule on [-1, 1].
_QUADRATURE = ((0.3399810435848563, 0.3260725774312731), (0.8611363115940526, 0.1739274225687269))


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """A normal distribution, integrated over the bins of the level grid.

    The parameters [..., 2] are [mean, log_scale] in units in which the grid spans [-1, 1]. The
    log-scale is clamped to at least `min_log_scale`. Source: the density is the single Gaussian of
    Ping et al. 2018, arXiv:1807.07281, section 3.1.

    Args:
      levels: number of levels, 2 to 2^22; None: symbols are real numbers.
      min_log_scale: lower bound; smaller log-scales are raised to it.
    """

    levels: int | None = 65536
    min_log_scale: float = -16.0
    form = "normal"  # key of `onepass.compression.odds.FORMS`
    num_parameters = 2  # a mean and a log-scale
    sections = (0, 1, 1)  # see `LocationScale.sections`
    noise_channels = 1  # a standard normal

    def __post_init__(self) -> None:
        if self.levels is not None:
            check_levels(self.levels)

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        mean, log_scale = self.normal(tf.cast(parameters, tf.float32))
        if self.levels is None:
            return log_normal(mean, log_scale, symbols)
        return log_mass(mean, log_scale, symbols, self.levels)

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Continuous.log_density`; differentiable in both arguments.

        log N(x; mean, scale) = -log scale - log sqrt(2 pi) - ((x - mean) / scale)^2 / 2.
        """
        mean, log_scale = self.normal(parameters)
        return log_normal(mean, log_scale, tf.cast(values, mean.dtype))

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `HasEntropy.entropy`: that of the density, even for integer symbols."""
        return self.normal(parameters)[1] + _LOG_SQRT_TAU + 0.5

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`: the symbol nearest to `mean + temperature scale noise`."""
        mean, log_scale = self.normal(parameters)
        return level_grid.sample_symbol(mean, log_scale, temperature * noise[..., 0], self.levels)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`: the symbol at the mean.

        No inner level is more probable, but an outer level, whose bin is a whole tail, may be.
        """
        return level_grid.symbol_of(self.normal(parameters)[0], self.levels)

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """See `Distribution.noise`: one standard normal for each symbol."""
        return counter_noise.normal(seed, rows, start, length)[..., :1]

    def normal(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Normal.normal`; the log-scale is clamped."""
        mean, log_scale = tf.unstack(level_grid.real(parameters), num=2, axis=-1)
        return mean, tf.maximum(log_scale, self.min_log_scale)

    def initial_parameters(self, reach: float = 0.5) -> tf.Tensor:
        """See `LocationScale.initial_parameters`: a mean of 0 and a log-scale of -3."""
        del reach
        return tf.constant([0.0, -3.0])


def log_normal(mean: tf.Tensor, log_scale: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return the log-density of a normal at real values, nats per unit, [...]."""
    return -log_scale - _LOG_SQRT_TAU - 0.5 * tf.square((values - mean) * tf.exp(-log_scale))


def log_mass(
    mean: tf.Tensor, log_scale: tf.Tensor, levels: tf.Tensor, num_levels: int
) -> tf.Tensor:
    """Return the log-mass of a level's bin; the grid spans [-1, 1], its outer bins are infinite."""
    half_bins_per_scale = tf.exp(-log_scale) * (1.0 / (num_levels - 1))
    # In half bins, so that adjacent bins share an edge exactly.
    centre = level_grid.centre_levels(levels, num_levels)
    low, middle, high = (
        level_grid.edge_distance(centre + offset, mean, num_levels) * half_bins_per_scale
        for offset in (-1.0, 0.0, 1.0)
    )
    log_width = math.log(2.0 / (num_levels - 1)) - log_scale
    inside = _log_bin(low, middle, high, 2.0 * half_bins_per_scale, log_width)
    upper = tf.where(centre == num_levels - 1.0, log_upper_tail(low), inside)
    return tf.where(centre == 1.0 - num_levels, log_upper_tail(-high), upper)


def log_upper_tail(x: tf.Tensor) -> tf.Tensor:
    """Return the log-probability `log Q(x)` that a standard normal exceeds x, float32 [...]."""
    positive, negative = tf.maximum(x, 0.0), tf.maximum(-x, 0.0)
    below = tf.exp(-0.5 * tf.square(negative) + _log_tail_ratio(negative))
    above = -0.5 * tf.square(positive) + _log_tail_ratio(positive)
    return tf.where(x >= 0.0, above, tf.math.log1p(-below))


def _log_tail_ratio(x: tf.Tensor) -> tf.Tensor:
    """Return `log Q(x) + x^2 / 2` for x >= 0, where `Q(x) = erfc(x / sqrt 2) / 2`."""
    t = 1.0 / (1.0 + x * (0.5 * math.sqrt(0.5)))
    polynomial = tf.zeros_like(t)
    for coefficient in reversed(_ERFC_POLYNOMIAL):
        polynomial = polynomial * t + coefficient
    return tf.math.log(t) + polynomial - math.log(2.0)


def _log_bin(
    low: tf.Tensor, middle: tf.Tensor, high: tf.Tensor, width: tf.Tensor, log_width: tf.Tensor
) -> tf.Tensor:
    """Return `log(Phi(high) - Phi(low))`, with edges, middle and width in standard deviations.

    The bin is mirrored to the upper tail. Each of three formulas is used where it is precise:
    quadrature if the density hardly changes within the bin, the complement of both tails if the bin
    contains the mean, the difference of two tails otherwise.
    """
    mirrored = middle < 0.0
    near, far = tf.where(mirrored, -high, low), tf.where(mirrored, -low, high)
    distance = tf.abs(middle)
    narrow = width * (1.0 + distance) < 1.0
    straddles = near < 0.0
    wide = tf.where(straddles, _log_around(near, far), _log_beyond(near, far, distance, width))
    return tf.where(narrow, _log_narrow(distance, width, log_width), wide)


def _log_narrow(distance: tf.Tensor, width: tf.Tensor, log_width: tf.Tensor) -> tf.Tensor:
    """Return `log(width phi(c)) + log(sum_i w_i cosh(c h x_i) exp(-(h x_i)^2 / 2))`.

    c = distance, h = width / 2; x_i and w_i are the nodes and weights of the quadrature.
    """
    half = tf.minimum(0.5 * width, 0.5)
    slope = tf.minimum(0.5 * distance * width, 0.5)
    total = tf.add_n(
        [
            2.0 * weight * tf.cosh(slope * node) * tf.exp(-0.5 * tf.square(half * node))
            for node, weight in _QUADRATURE
        ]
    )
    return log_width - _LOG_SQRT_TAU - 0.5 * tf.square(distance) + tf.math.log(total)


def _log_around(near: tf.Tensor, far: tf.Tensor) -> tf.Tensor:
    """Return `log(1 - Q(-near) - Q(far))` for near < 0 < far and a bin wider than 1/2."""
    # When this formula is used, far is above a third: the tails never sum to 1.
    left, right = tf.maximum(-near, 0.0), tf.maximum(far, 0.25)
    tails = tf.exp(log_upper_tail(left)) + tf.exp(log_upper_tail(right))
    return tf.math.log1p(-tails)


def _log_beyond(
    near: tf.Tensor, far: tf.Tensor, distance: tf.Tensor, width: tf.Tensor
) -> tf.Tensor:
    """Return `log Q(near) + log(1 - Q(far) / Q(near))` for 0 <= near < far."""
    near, far = tf.maximum(near, 0.0), tf.maximum(far, 0.0)
    near_ratio = _log_tail_ratio(near)
    # (far^2 - near^2) / 2 = distance * width, which avoids subtracting two large squares.
    drop = distance * width + near_ratio - _log_tail_ratio(far)
    drop = tf.maximum(drop, 0.25)  # it exceeds 1/2 whenever this formula is used
    return near_ratio - 0.5 * tf.square(near) + tf.math.log(-tf.math.expm1(-drop))
