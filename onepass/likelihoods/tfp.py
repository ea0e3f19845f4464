"""Distributions from TensorFlow Probability, or with the same interface."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import check_levels, must_be
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.codec import Real
from onepass.likelihoods.noise import Int

# Number of parameter vectors for which probabilities are summed, their largest standard deviation,
# and the rounding error allowed in a sum of 65,536 differences of cumulative probabilities.
PROBES, WIDEST, SLACK = 9, 4.0, 0.02
TOKENS = ("Bernoulli", "Categorical")  # distributions of TensorFlow Probability over tokens
SMALLEST = 2.0**-24  # smallest uniform; 1 - 2^-24 is still below 1 in float32


@dataclasses.dataclass(frozen=True)
class FromTFP:
    """A distribution over real numbers or integers that a function makes from parameters.

        FromTFP(lambda p: tfd.Laplace(p[..., 0], tf.nn.softplus(p[..., 1])), num_parameters=2)

    A symbol is the quantile of one uniform number; if the distribution has no `quantile`, it is
    drawn by `sample` with a separate seed. Symbols therefore do not depend on batch or chunk.

    Args:
      make: function from parameters [..., num_parameters] to a scalar distribution of batch shape
        [...], with `log_prob`, and `quantile` or `sample(seed=)`. For integers its probabilities on
        [0, levels) sum to 1.
      num_parameters: number of output channels that a network must have.
      levels: number of integers; None: symbols are real numbers.

    Raises:
      ValueError: there are fewer than 2 levels or more than 2^22, or their probabilities do not sum
        to 1, for example because the distribution is over real numbers.
    """

    make: Callable[[tf.Tensor], Any]
    num_parameters: int
    levels: int | None = None

    def __post_init__(self) -> None:
        if self.levels is not None:
            check_levels(self.levels)
            self._check_sums()

    @functools.cached_property
    def has_quantile(self) -> bool:
        """True if the distribution implements `quantile`, found by tracing a call."""
        return self._implements("quantile", 0.5)

    @functools.cached_property
    def cumulative(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None:
        """The method `cumulative` of `Cumulative`; None for real symbols, or without `cdf`."""
        return self._cumulative if self.levels and self._implements("cdf", 1.0) else None

    @functools.cached_property
    def of_tokens(self) -> bool:
        """True if the integers are tokens without an order, as for `tfd.Categorical`."""
        if self.levels is None:
            return False
        with tf.init_scope():
            made = self._make_distribution(tf.zeros([1, self.num_parameters]))
        return type(made).__name__ in TOKENS

    @property
    def tempers(self) -> bool:
        """True if the distribution can be sampled at temperatures other than 1."""
        return self.has_quantile

    @property
    def has_density(self) -> bool:
        """True if symbols are real numbers."""
        return self.levels is None

    @property
    def noise_channels(self) -> int:
        """Number of random numbers per symbol: one uniform, or the two words of a seed."""
        return 1 if self.has_quantile else 2

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        values = tf.cast(symbols, level_grid.real(parameters).dtype)
        return self._make_distribution(parameters).log_prob(values)

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`.

        A temperature up to 1 moves the uniform towards 1/2, so that 0 gives the median; one above 1
        multiplies its log-odds, which keeps it in (0, 1). Without `quantile` it must be 1.
        """
        if self.has_quantile:
            uniform = tf.cast(noise[..., 0], level_grid.real(parameters).dtype)
            tempered = _temper_uniforms(uniform, tf.cast(temperature, uniform.dtype))
            return self._symbols(self._make_distribution(parameters).quantile(tempered))
        if isinstance(temperature, float | int) and temperature != 1:
            raise ValueError(must_be("temperature", "1 without a quantile", temperature))
        shape = tf.shape(parameters)[:-1]
        each = tf.map_fn(
            lambda one: tf.cast(self._make_distribution(one[0]).sample(seed=one[1]), tf.float32),
            (
                tf.reshape(parameters, [-1, self.num_parameters]),
                tf.reshape(noise, [-1, self.noise_channels]),
            ),
            fn_output_signature=tf.float32,
        )
        return self._symbols(tf.reshape(each, shape))

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`."""
        return self._symbols(self._make_distribution(parameters).mode())

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """See `Continuous.log_density`; raise ValueError if the symbols are integers."""
        if self.levels is not None:
            raise ValueError(must_be("levels", "None for a density", self.levels))
        return self.log_prob(parameters, values)

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """See `Distribution.noise`: uniforms, 2^-24 or more from 0 and 1, or two seed words."""
        if self.has_quantile:
            return counter_noise.uniform(seed, rows, start, length)[..., :1]
        return tf.bitcast(counter_noise.bits(seed, rows, start, length), tf.int32)

    def _cumulative(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        dtype = level_grid.real(parameters).dtype
        below = self._make_distribution(parameters).cdf(tf.cast(tf.maximum(levels - 1, 0), dtype))
        return tf.where(levels > 0, tf.cast(below, tf.float32), 0.0)

    def _implements(self, name: str, argument: float) -> bool:
        def call(parameters: tf.Tensor) -> tf.Tensor:
            method = getattr(self._make_distribution(parameters), name, None)
            if method is None:
                raise NotImplementedError
            return method(tf.fill([1], tf.constant(argument, level_grid.real(parameters).dtype)))

        traced = tf.function(call, autograph=False)
        try:
            with tf.init_scope():
                traced.get_concrete_function(tf.TensorSpec([1, self.num_parameters]))
        except NotImplementedError:
            return False
        return True

    def _check_sums(self) -> None:
        """Raise ValueError unless probabilities sum to 1 for zeros as parameters.

        For some others it may be below 1 (counts can exceed the levels) or NaN, but not above 1.
        """
        generator = np.random.default_rng(0)
        size = [PROBES, self.num_parameters]
        probes = generator.normal(size=size) * np.linspace(0.0, WIDEST, PROBES)[:, np.newaxis]
        with tf.init_scope():
            levels = tf.range(self.levels)
            for number, probe in enumerate(probes.astype(np.float32)):
                parameters = tf.broadcast_to(probe, [self.levels, self.num_parameters])
                each = self.log_prob(parameters, levels).numpy().astype(np.float64)
                with np.errstate(over="ignore"):
                    total = float(np.exp(each).sum())
                if total > 1.0 + SLACK or (number == 0 and total < 1.0 - SLACK):
                    shown = (np.round(probe, 2) + 0.0).tolist()[:8]
                    raise ValueError(
                        f"`make` must be a distribution over integers whose probabilities on"
                        f" [0, {self.levels}) sum to 1, got {total:.4g} for the parameters {shown};"
                        " for one over real numbers leave `levels` out, or make it"
                        " tfd.QuantizedDistribution."
                    )

    def _make_distribution(self, parameters: tf.Tensor) -> Any:
        return self.make(level_grid.real(parameters))

    def _symbols(self, values: tf.Tensor) -> tf.Tensor:
        if self.levels is None:
            return tf.cast(values, tf.float32)
        return tf.cast(tf.clip_by_value(tf.round(values), 0, self.levels - 1), tf.int32)


def _temper_uniforms(uniform: tf.Tensor, temperature: tf.Tensor) -> tf.Tensor:
    odds = tf.math.log(uniform) - tf.math.log1p(-uniform)
    wider = tf.clip_by_value(tf.sigmoid(temperature * odds), SMALLEST, 1.0 - SMALLEST)
    return tf.where(temperature > 1.0, wider, 0.5 + temperature * (uniform - 0.5))
