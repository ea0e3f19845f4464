"""Sampling of a WaveNet written with Keras: `python -m benchmarks.keras_wavenet --seconds 1`."""

import argparse
import functools
from statistics import median
from timeit import repeat

import tensorflow as tf
from keras import Input, Model, layers

import onepass

RATE_HZ, NAIVE_SAMPLES = 16_000, 100


def wavenet(stacks: int = 4, dilations=(1, 2, 4, 8, 16, 32), units: int = 64) -> Model:
    """Return a gated WaveNet from [batch, time, 1] to the 30 parameters of ten logistics."""
    inputs = Input([None, 1])
    h, skipped = layers.Conv1D(units, 2, padding="causal")(inputs), 0.0
    for dilation in dilations * stacks:
        options = dict(dilation_rate=dilation, padding="causal")
        gate = layers.Conv1D(units, 2, activation="sigmoid", **options)(h)
        gated = gate * layers.Conv1D(units, 2, activation="tanh", **options)(h)
        h, skipped = h + layers.Dense(units)(gated), skipped + layers.Dense(units)(gated)
    hidden = layers.Dense(units, activation="relu")(layers.Activation("relu")(skipped))
    return Model(inputs, layers.Dense(30)(hidden))


def measure(network: Model, window: int, length: int) -> dict[str, float]:
    """Return seconds to the first sound of `length` samples, and per sample of each sampler.

    The naive sampler calls the network on the `window` samples that it sees, for every sample.
    """
    mixture = onepass.likelihoods.LogisticMixture(levels=65_536, components=10)
    make = functools.cache(lambda: onepass.Autoregressive(network, mixture))
    first, *rest = repeat(lambda: make().sample(num=1, length=length, seed=1), number=1, repeat=4)
    found = {"first sound": first, "cached": median(rest) / length}
    past = tf.random.stateless_uniform([1, window, 1], [0, 0], -0.5, 0.5)
    for name, compiled in (("naive window", False), ("naive window, XLA", True)):
        last = tf.function(lambda x: network(x)[:, -1], jit_compile=compiled, autograph=False)
        found[name] = median(repeat(functools.partial(last, past), number=1, repeat=NAIVE_SAMPLES))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of sound")
    figures = measure(wavenet(), 4 * 63 + 2, round(parser.parse_args().seconds * RATE_HZ))
    for name, seconds in figures.items():
        ratio = f"{seconds / figures['cached']:,.0f} times cached" if "naive" in name else ""
        print(f"{name:<18} {seconds:.3g} s {ratio}")
