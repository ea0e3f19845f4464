"""Distributions: what a network's output channels mean, and those over a table of levels.

A distribution is over *symbols*: integers [0, levels), or real numbers if `levels` is None. It is
independent of sound and images; a `Codec` converts their elements to symbols and back.

Optional methods and attributes are found by name, so a user's distribution need not declare them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from onepass.foundation.rules import MAX_TOKENS, check_levels
from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.codec import Real
from onepass.likelihoods.noise import Int


@runtime_checkable
class Distribution(Protocol):
    """A distribution over symbols, parameterised by channels of a network's output.

    Methods are pure functions that treat every location independently, so results do not depend on
    batch size, chunking or order, and they compile under XLA.
    `tests/onepass/likelihoods/test_distributions.py` checks these laws: probabilities sum to 1,
    frequencies of samples match `log_prob`, `sample` never decreases when its last noise channel
    increases, and no symbol is more probable than `mode` (of mixtures: by more than 0.3 nats).
    """

    @property
    def levels(self) -> int | None:
        """Number of integer symbols; None: symbols are real numbers."""

    @property
    def num_parameters(self) -> int:
        """Number of output channels that a network must have."""

    @property
    def noise_channels(self) -> int:
        """Number of random numbers that `sample` needs per symbol."""

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability, or log-density of real symbols, float32 [...], nats.

        Args:
          parameters: [..., num_parameters].
          symbols: int32 [...], or float32 [...] if `levels` is None.
        """

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """Return symbols [...], which depend only on the arguments.

        Args:
          parameters: [..., num_parameters].
          noise: [..., noise_channels], from `noise`.
          temperature: at least 0, a scalar or [...]; 1 samples the distribution, smaller values
            give symbols closer to its mode. A distribution may allow only 1.
        """

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the most probable symbol [...], or one close to it if that has no closed form."""

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """Return noise [rows, length, noise_channels] for `sample`: float32, or random integers.

        The kind of noise is an implementation detail of the distribution: a caller gets the noise
        here and passes it to `sample`.

        Args:
          seed: an integer in [0, 2^64) or a key uint32 [2] for all rows, or keys [rows, 2].
          rows: row numbers int32 [rows], in any order; each has its own random stream.
          start: position of the first symbol, an integer, an int32 scalar or int32 [rows].
          length: number of positions.
        """


@runtime_checkable
class Continuous(Distribution, Protocol):
    """A distribution that also has a density over the reals, differentiable in its values."""

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return the log-density float32 [...], nats per unit, of real `values` [...].

        For integer symbols the unit is half the span of the grid, which runs from -1 to 1.
        """


@runtime_checkable
class LocationScale(Distribution, Protocol):
    """A distribution whose parameters are logits, means and log-scales, in this order.

    Shifting and scaling the symbols shifts and scales the means, adds to the log-scales and leaves
    the logits unchanged, so a network may express the parameters in other units.
    """

    @property
    def sections(self) -> tuple[int, int, int]:
        """Numbers of logits, means and log-scales among the parameters."""

    def initial_parameters(self, reach: float = 0.5) -> tf.Tensor:
        """Return parameters float32 [num_parameters] to start training from.

        Args:
          reach: largest absolute value of the means.
        """


@runtime_checkable
class Normal(Distribution, Protocol):
    """A normal distribution, discretised or not, with divergences in closed form."""

    def normal(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and log-scale, [...] each."""


@runtime_checkable
class HasEntropy(Distribution, Protocol):
    """A distribution with a closed-form entropy."""

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the entropy float32 [...], nats."""


@runtime_checkable
class Cumulative(Distribution, Protocol):
    """A distribution over levels with computable cumulative probabilities, for compression."""

    def cumulative(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """Return the probability of the levels below `levels`, float32 [...] in [0, 1].

        Args:
          parameters: [..., num_parameters].
          levels: int32 [...], 0 to the number of levels.
        """


class Tabulated:
    """Base class for distributions over few levels that define only `log_prob`.

    A subclass defines `levels`, `num_parameters` and `log_prob`; everything else is computed from
    the log-probabilities of all levels, which take memory for `levels` numbers per symbol.
    """

    levels: int
    noise_channels = 1

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        raise NotImplementedError(f"`log_prob` must be written in {type(self).__name__}.")

    def table(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of every level, float32 [..., levels], nats."""
        every = tf.range(self.levels)
        shape = tf.concat([tf.shape(parameters)[:-1], [self.levels]], 0)
        return self.log_prob(parameters[..., tf.newaxis, :], tf.broadcast_to(every, shape))

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`: the first level with a cumulative mass above the noise."""
        return level_grid.sample_categorical(self.table(parameters), noise[..., 0], temperature)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`."""
        return tf.argmax(self.table(parameters), axis=-1, output_type=tf.int32)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `HasEntropy.entropy`."""
        table = self.table(parameters)
        return -tf.reduce_sum(tf.math.multiply_no_nan(table, tf.exp(table)), axis=-1)

    def noise(self, seed: Int, rows: tf.Tensor, start: Int, length: int) -> tf.Tensor:
        """See `Distribution.noise`: one uniform in (0, 1) for each symbol."""
        return counter_noise.uniform(seed, rows, start, length)[..., :1]


def bits_per_sample(log_prob_nats: tf.Tensor) -> tf.Tensor:
    """Return the mean code length of samples in bits, float32 [], from their log-probabilities."""
    return -tf.reduce_mean(log_prob_nats) / math.log(2.0)


def pixel_channels(distribution: Distribution) -> int | None:
    """Return the number of channels of a pixel if symbols are whole pixels, else None."""
    return getattr(distribution, "channels", None)


def with_density(distribution: Distribution) -> Continuous | None:
    """Return the distribution if it has a density over the reals, else None."""
    # A class that supports the method only for certain settings defines `has_density`.
    has_density = getattr(distribution, "has_density", True)
    return distribution if isinstance(distribution, Continuous) and has_density else None


def with_scales(distribution: Distribution) -> LocationScale | None:
    """Return the distribution if it is a `LocationScale`, else None."""
    return distribution if isinstance(distribution, LocationScale) else None


def cumulative_of(distribution: Distribution) -> Callable[..., Any] | None:
    """Return the distribution's method `cumulative` if it has one, else None."""
    return getattr(distribution, "cumulative", None)


def table_of(distribution: Distribution) -> Callable[..., Any] | None:
    """Return the method `table`, the log-probability of every level, if there is one, else None."""
    return getattr(distribution, "table", None)


def is_of_tokens(distribution: Distribution) -> bool:
    """Return whether the symbols are tokens: integers that have no order or scale."""
    return bool(getattr(distribution, "of_tokens", False))


def tempers(distribution: Distribution) -> bool:
    """Return whether the distribution can be sampled at temperatures other than 1."""
    return bool(getattr(distribution, "tempers", True))


def closed_form(distribution: Distribution) -> dict[str, Any]:
    """Return the attributes that `compression.forms` reads, by name; {} without a closed form."""
    names = ("form", "sections", "min_log_scale")
    if getattr(distribution, "form", None) is None:
        return {}
    return {name: getattr(distribution, name, None) for name in names}


def with_normal(distribution: Distribution) -> Normal | None:
    """Return the distribution if it is a `Normal`, else None."""
    return distribution if isinstance(distribution, Normal) else None


@dataclasses.dataclass(frozen=True)
class Categorical(Tabulated):
    """Softmax over 2 to 2^20 `levels`; the parameters [..., levels] are its logits.

    Source: van den Oord et al. 2016, arXiv:1609.03499, section 2.2.
    """

    levels: int = 256
    form = "softmax"  # key of `onepass.compression.odds.FORMS`
    of_tokens = True

    def __post_init__(self) -> None:
        check_levels(self.levels, MAX_TOKENS)

    @property
    def num_parameters(self) -> int:
        """Number of logits, one per level."""
        return self.levels

    def log_prob(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        labels, logits = tf.cast(levels, tf.int32), tf.cast(parameters, tf.float32)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
        """See `Distribution.sample`: the first level with a cumulative mass above the noise."""
        return level_grid.sample_categorical(self.logits(parameters), noise[..., 0], temperature)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`: the level with the largest logit."""
        return tf.argmax(parameters, axis=-1, output_type=tf.int32)

    def logits(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the parameters as float32 or float64 [..., levels], not normalised."""
        return level_grid.real(parameters)

    def table(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of every level, float32 or float64 [..., levels], nats."""
        return tf.nn.log_softmax(self.logits(parameters))


class Bernoulli(Tabulated):
    """A distribution over two levels, with one parameter: the logit log p(1) - log p(0).

    It suits networks with one sigmoid output, such as a PixelCNN of black and white images or a
    network of binary events. The parameter is the network's output before its sigmoid,
    so a last layer `Dense(1, activation="sigmoid")` becomes `Dense(1)`.
    """

    levels = 2
    of_tokens = True
    num_parameters = 1

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`.

        It is computed from the logit itself, so it stays exact where a probability rounds to 1.

        Args:
          parameters: [..., 1].
          symbols: int32 [...], 0 or 1.
        """
        logits = level_grid.real(parameters)[..., 0]
        sign = tf.cast(2 * symbols - 1, logits.dtype)
        return tf.cast(tf.math.log_sigmoid(sign * logits), tf.float32)
