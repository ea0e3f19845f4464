"""A softmax over levels."""

import dataclasses

import tensorflow as tf

from onepass.likelihoods import codec as level_grid
from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.limits import MAX_TOKENS, check_levels

COLDEST = 1e-6  # smallest temperature above 0


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Softmax over `levels` levels; the parameters [..., levels] are its logits.

    Source: van den Oord et al. 2016, arXiv:1609.03499, section 2.2.

    Raises:
      ValueError: there are fewer than 2 levels, or more than 2^20.
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

    @property
    def noise_channels(self) -> int:
        """Number of random numbers that `sample` needs per symbol: one uniform."""
        return 1

    def log_prob(self, parameters: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """See `Distribution.log_prob`."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(levels, tf.int32), logits=tf.cast(parameters, tf.float32)
        )

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """See `Distribution.sample`: the first level with a cumulative mass above the noise."""
        return sample_categorical(self.logits(parameters), noise[..., 0], temperature)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `Distribution.mode`: the level with the largest logit."""
        return tf.argmax(parameters, axis=-1, output_type=tf.int32)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """See `Distribution.noise`: one uniform in (0, 1) for each symbol."""
        return counter_noise.uniform(seed, rows, start, length)[..., :1]

    def logits(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the parameters as float32 or float64 [..., levels], not normalised."""
        return level_grid.real(parameters)

    def table(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of every level, float32 or float64 [..., levels], nats."""
        return tf.nn.log_softmax(self.logits(parameters))

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """See `HasEntropy.entropy`."""
        table = self.table(parameters)
        return -tf.reduce_sum(tf.math.multiply_no_nan(table, tf.exp(table)), axis=-1)


def sample_categorical(
    logits: tf.Tensor, uniform: tf.Tensor, temperature: float | tf.Tensor = 1.0
) -> tf.Tensor:
    """Return the smallest k with `uniform c[-1] < c[k]`, c = cumsum(softmax(logits / T)).

    c[-1] is 1 only up to rounding; the factor keeps the error from making the last choice likelier.
    The temperature T is a scalar or [...]; 0 chooses the largest logit.
    """
    shifted = logits - tf.reduce_max(logits, axis=-1, keepdims=True)
    divisor = tf.cast(tf.maximum(temperature, COLDEST), logits.dtype)[..., tf.newaxis]
    cumulative = tf.cumsum(tf.nn.softmax(shifted / divisor), axis=-1)
    threshold = tf.cast(uniform[..., tf.newaxis], logits.dtype) * cumulative[..., -1:]
    passed = threshold >= cumulative[..., :-1]
    drawn = tf.math.count_nonzero(passed, axis=-1, dtype=tf.int32)
    largest = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.where(tf.convert_to_tensor(temperature) > 0, drawn, largest)
