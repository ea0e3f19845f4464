"""Functions that are causal networks, and distributions, of many levels."""

import tensorflow as tf

LEVELS = 65536


def outputs(x):
    """A causal network of a mean near the element before, and a log-scale."""
    return tf.concat([0.5 * x, 0.25 * x - 3.5], -1)


def mixed(x):
    """The same of three components."""
    means, scales = [0.5 * x, 0.25 * x, -0.25 * x], [0.25 * x - 3.5, 0.0 * x - 4.0, 0.125 * x - 6.0]
    return tf.concat([0.5 * x, 0.0 * x, -x, *means, *scales], -1)


def softmax(x):
    """Logits of 1000 levels."""
    return -0.5 * tf.square((tf.range(1000.0) - 500.0 - 250.0 * x) / 64.0)


class Steps:
    """A logistic in steps of one, as a library of distributions would write it, in float32."""

    def __init__(self, parameters):
        self.mean = 32768.0 * (1.0 + parameters[..., 0])
        self.scale = 32768.0 * tf.exp(parameters[..., 1])

    def cdf(self, value):
        whole = tf.sigmoid((value + 0.5 - self.mean) / self.scale)
        return tf.where(value >= LEVELS - 1, tf.ones_like(whole), whole)

    def log_prob(self, value):
        below = tf.where(value <= 0, 0.0, self.cdf(value - 1.0))
        return tf.math.log(tf.maximum(self.cdf(value) - below, 1e-12))

    def quantile(self, uniform):
        return tf.math.ceil(self.mean + self.scale * tf.math.log(uniform / (1 - uniform)) - 0.5)
