"""What every distribution answers: the meaning of a network's output channels.

A distribution speaks of *symbols*: integers [0, levels), or real numbers where `levels` is None. It
knows nothing of sound or images; a `Codec` turns elements of these into symbols and back.
"""

import math
from typing import Protocol, runtime_checkable

import tensorflow as tf

from likelihoods import noise as counter_noise
from likelihoods.categorical import sample_categorical


@runtime_checkable
class Distribution(Protocol):
    """A distribution over symbols, read from `num_parameters` channels of a network's output.

    Every method is a pure function of its arguments that treats every place on its own, so that
    batch, chunk and order change nothing; it compiles under XLA. The laws are held by
    `tests/likelihoods/test_distributions.py`: probabilities sum to 1, samples are as frequent as
    `log_prob` says, `sample` never falls where its last noise channel rises, `mode` has the largest
    probability.
    """

    @property
    def levels(self) -> int | None:
        """Number of integers that a symbol may be; None: symbols are real numbers."""

    @property
    def num_parameters(self) -> int:
        """Output channels that a network must have."""

    @property
    def noise_channels(self) -> int:
        """Noise numbers that one symbol is made from."""

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability, or log-density of real symbols, float32 [...], nats.

        Args:
          parameters: [..., num_parameters].
          symbols: int32 [...], or float32 [...] where `levels` is None.
        """

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return symbols [...], a function of the parameters and the noise alone.

        Args:
          parameters: [..., num_parameters].
          noise: float32 [..., noise_channels], as `noise` makes it.
          temperature: at least 0, one for all or [...]; 1 samples the distribution, less is closer
            to its mode.
        """

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the most probable symbol [...]."""

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """Return noise [rows, length, noise_channels] for `sample`, float32 if it has an order.

        Arguments as for `noise.bits`. What kind of noise is the distribution's own affair: whoever
        samples asks for it here, and hands it on.
        """


@runtime_checkable
class Continuous(Distribution, Protocol):
    """A distribution that is a density over the reals too, through which gradients flow."""

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return the density float32 [...], nats per unit, of real `values` [...].

        For integer symbols the unit is half the span of the grid, which runs from -1 to 1.
        """


@runtime_checkable
class LocationScale(Distribution, Protocol):
    """A distribution whose parameters are logits, means and log-scales, in this order.

    Moving and scaling its symbols moves its means and scales, adds to its log-scales and leaves its
    logits: a network may say its parameters in units of its own.
    """

    @property
    def sections(self) -> tuple[int, int, int]:
        """How many parameters are logits, means and log-scales."""

    def initial_parameters(self, reach: float = 0.5) -> tf.Tensor:
        """Return parameters float32 [num_parameters] to start training from.

        reach: how far from 0 means may lie.
        """


@runtime_checkable
class Normal(Distribution, Protocol):
    """A normal, cut into levels or not: divergences between two are known in closed form."""

    def normal(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and log-scale, [...] each."""


@runtime_checkable
class HasEntropy(Distribution, Protocol):
    """A distribution whose entropy is known in closed form."""

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the entropy float32 [...], nats."""


class Tabulated:
    """Base of a distribution over few levels that says no more than `log_prob`.

    A subclass has `levels`, `num_parameters` and `log_prob`; here all the rest comes from the
    table of all levels, which takes memory for `levels` numbers a symbol.
    """

    levels: int
    noise_channels = 1

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability float32 [...], nats, see `Distribution.log_prob`."""
        raise NotImplementedError(f"`log_prob` must be written in {type(self).__name__}.")

    def table(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of every level, float32 [..., levels], nats."""
        every = tf.range(self.levels)
        shape = tf.concat([tf.shape(parameters)[:-1], [self.levels]], 0)
        return self.log_prob(parameters[..., tf.newaxis, :], tf.broadcast_to(every, shape))

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return int32 [...], the first level whose cumulative probability exceeds the noise.

        Args:
          parameters: [..., num_parameters].
          noise: [..., 1], uniform in (0, 1).
          temperature: divides the log-probabilities; 0 gives the mode.
        """
        return sample_categorical(self.table(parameters), noise[..., 0], temperature)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the most probable level, int32 [...]."""
        return tf.argmax(self.table(parameters), axis=-1, output_type=tf.int32)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the entropy float32 [...], nats."""
        table = self.table(parameters)
        return -tf.reduce_sum(tf.math.multiply_no_nan(table, tf.exp(table)), axis=-1)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """Return uniforms float32 [rows, length, 1]; arguments as for `noise.bits`."""
        return counter_noise.uniform(seed, rows, start, length)[..., :1]


def bits_per_sample(log_prob_nats: tf.Tensor) -> tf.Tensor:
    """float32 scalar, the mean code length in bits of samples with these log-probabilities."""
    return -tf.reduce_mean(log_prob_nats) / math.log(2.0)
