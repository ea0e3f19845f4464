"""A Bernoulli distribution: one logit for two levels."""

import tensorflow as tf

from onepass.likelihoods import codec as level_grid
from onepass.likelihoods.distribution import Tabulated


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
