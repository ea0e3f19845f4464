"""What every likelihood answers: the meaning of a network's output channels."""

import math
from typing import Protocol, runtime_checkable

import tensorflow as tf


class Likelihood(Protocol):
    """A distribution over the integers [0, levels), read from `num_parameters` channels.

    Every method is a pure function of its arguments, in float32, and compiles under XLA.
    """

    @property
    def levels(self) -> int:
        """Number of levels."""

    @property
    def num_parameters(self) -> int:
        """Output channels a network must have."""

    @property
    def noise_channels(self) -> int:
        """Noise numbers that one sample is made from."""

    def log_prob(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...], nats; `parameters` [..., num_parameters], `levels` int32 [...]."""

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """int32 [...] levels, a function of `parameters` and `noise` [..., noise_channels]."""

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """int32 [...], the most probable level."""

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """float32 [rows, length, noise_channels] for `sample`; arguments as for `noise.bits`."""

    def encode(self, waveform: tf.Tensor) -> tf.Tensor:
        """int32 [...] levels of a waveform float32 [...] in [-1, 1]."""

    def decode(self, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...] waveform in [-1, 1] of levels int32 [...]."""

    def scale(self, levels: tf.Tensor) -> tf.Tensor:
        """float32 [...] in [-1, 1], what a network reads: `2 l / (levels - 1) - 1`."""


@runtime_checkable
class ContinuousLikelihood(Likelihood, Protocol):
    """A likelihood that is a density over the reals too, through which gradients flow."""

    def log_density(self, parameters: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """float32 [...], nats per unit of `scale`, of real `values` [...]."""


def bits_per_sample(log_prob_nats: tf.Tensor) -> tf.Tensor:
    """float32 scalar, the mean code length in bits of samples with these log-probabilities."""
    return -tf.reduce_mean(log_prob_nats) / math.log(2.0)
