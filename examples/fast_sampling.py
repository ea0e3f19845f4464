"""Fast sampling from a trained WaveNet of Keras in three lines, without training or rewriting.

python -m examples.fast_sampling
"""

import time

import keras
import numpy as np
import tyro

import onepass
from onepass import likelihoods

layers = keras.layers


def wavenet(num_layers: int, channels: int, levels: int) -> keras.Model:
    """Return a common gated WaveNet, [batch, time, 1] to logits."""
    inputs = keras.Input([None, 1])
    h, skips = layers.Conv1D(channels, 2, padding="causal")(inputs), []
    for i in range(num_layers):
        options = {"padding": "causal", "dilation_rate": 2 ** (i % 10)}
        values = layers.Conv1D(channels, 2, activation="tanh", **options)(h)
        gates = layers.Conv1D(channels, 2, activation="sigmoid", **options)(h)
        z = layers.Conv1D(channels, 1)(layers.Multiply()([values, gates]))
        h, skips = layers.Add()([h, z]), [*skips, z]
    return keras.Model(inputs, layers.Dense(levels)(layers.ReLU()(layers.Add()(skips))))


def main(num_layers: int = 24, channels: int = 32, length: int = 16000) -> None:
    """Time the sampler with and without a cache.

    Args:
      num_layers: of the network.
      channels: of every layer.
      length: elements of the sample, one second at 16 kHz.
    """
    network = wavenet(num_layers, channels, 256)  # or keras.models.load_model("mine.keras")

    distribution, codec = likelihoods.Categorical(256), likelihoods.MuLaw(256)
    model = onepass.Autoregressive(network, distribution, codec=codec)
    sound = model.sample(num=1, length=length, seed=1)

    start = time.monotonic()
    model.sample(num=1, length=length, seed=2)
    cached = length / (time.monotonic() - start)
    window = np.zeros([1, 2 ** min(num_layers, 11), 1], np.float32)
    network(window)
    start = time.monotonic()
    network(window)
    naive = 1.0 / (time.monotonic() - start)
    print(f"{sound.shape}: {cached:,.0f} elements/s; without a cache: {naive:,.1f} elements/s")


if __name__ == "__main__":
    tyro.cli(main)
