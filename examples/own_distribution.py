"""A custom distribution in twenty lines: it trains, samples and is stored like any other.

python -m examples.own_distribution
"""

import keras
import numpy as np
import tensorflow as tf
import tyro

import onepass
from onepass import likelihoods

LEVELS = 64


class Laplace(likelihoods.Tabulated):
    """A discretised Laplace density: parameters [..., 2] are its centre and log-scale."""

    levels, num_parameters = LEVELS, 2

    def log_prob(self, parameters, symbols):
        """Return the log-probability float32 [...], nats, of symbols int32 [...]."""
        centre, log_scale = tf.unstack(tf.cast(parameters, tf.float32), axis=-1)
        value = 2.0 * tf.cast(symbols, tf.float32) / (LEVELS - 1) - 1.0
        width = 1.0 / (LEVELS - 1)
        upper = tf.where(symbols == LEVELS - 1, 1.0, self.below(value + width - centre, log_scale))
        lower = tf.where(symbols == 0, 0.0, self.below(value - width - centre, log_scale))
        return tf.math.log(tf.maximum(upper - lower, 1e-12))

    def below(self, distance, log_scale):
        """Return the probability below a distance from the centre."""
        z = distance * tf.exp(-tf.maximum(log_scale, -6.0))
        tail = 0.5 * tf.exp(-tf.abs(z))
        return tf.where(z < 0.0, tail, 1.0 - tail)


def main(steps: int = 1000, length: int = 400) -> None:
    """Train on random walks, and sample.

    Args:
      steps: number of updates.
      length: elements of each sample.
    """
    noise = np.random.default_rng(0).laplace(scale=0.05, size=[64, 400])
    walks = np.clip(np.cumsum(noise, 1), -1, 1).astype(np.float32)
    network = keras.Sequential(
        [keras.Input([None, 1]), keras.layers.GRU(16, return_sequences=True), keras.layers.Dense(2)]
    )
    model = onepass.Autoregressive(network, Laplace())
    onepass.fit(model, walks, steps=steps)
    print("bits per element:", -float(np.mean(model.log_prob(walks))) / np.log(2.0))
    print(model.sample(num=2, length=length, seed=1)[:, :8])


if __name__ == "__main__":
    tyro.cli(main)
