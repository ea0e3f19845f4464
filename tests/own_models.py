"""Small models of users, and bundles of them, made once."""

import functools
import tempfile
from pathlib import Path

import attention_networks
import causal_networks
import keras
import numpy as np
import tensorflow as tf

import onepass
import serving
from distill.any_teacher import flow_student
from examples.own_distribution import LEVELS, Laplace
from onepass import likelihoods

LONGEST, RATE_HZ = 70, 4000
SHAPE = (4, 4, 1)
NUM, SEED = 2, 2**63 + 5  # beyond int64, as seeds may be


def gru(num_parameters):
    """A recurrent network as users write them."""
    keras.utils.set_random_seed(1)
    stack = [keras.Input([None, 1]), keras.layers.GRU(4, return_sequences=True)]
    return keras.Sequential([*stack, keras.layers.Dense(num_parameters)])


class Masked(tf.Module):
    """An image network that sees the pixel to the left and the one above."""

    def __init__(self, num_parameters):
        super().__init__()
        self.kernel = causal_networks.variable([2, num_parameters], 3)
        self.bias = causal_networks.variable([num_parameters], 4)

    def __call__(self, x):
        left = tf.pad(x, [[0, 0], [0, 0], [1, 0], [0, 0]])[:, :, :-1]
        above = tf.pad(x, [[0, 0], [1, 0], [0, 0], [0, 0]])[:, :-1]
        return tf.tensordot(tf.concat([left, above], -1), self.kernel, 1) + self.bias


def mixture(levels):
    return likelihoods.LogisticMixture(levels=levels, components=2)


def images(levels):
    return onepass.Autoregressive(Masked(6), mixture(levels), order="raster")


MAKERS = {
    "own": lambda: onepass.Autoregressive(gru(2), Laplace()),
    "sound": lambda: onepass.Autoregressive(causal_networks.Gated(6), mixture(65536)),
    "conditioned": lambda: onepass.Autoregressive(
        causal_networks.two_inputs(), likelihoods.Gaussian(levels=LEVELS)
    ),
    "real": lambda: onepass.Autoregressive(
        gru(2), likelihoods.Gaussian(levels=None), codec=likelihoods.Reals(20.0, 3.0)
    ),
    "picture": lambda: images(256),
    "deep": lambda: images(4096),
    "attention": lambda: onepass.Autoregressive(
        causal_networks.skewed_attention(4, 4),
        likelihoods.Categorical(4),
        codec=likelihoods.Linear(4),
    ),
    "tokens": lambda: onepass.Autoregressive(
        attention_networks.Rotary(),
        likelihoods.Categorical(attention_networks.TOKENS),
        codec=likelihoods.Integers(attention_networks.TOKENS),
        inputs=attention_networks.SPEC,
    ),
    "long": lambda: model("tokens"),
    "tiles": lambda: onepass.Autoregressive(Masked(4), likelihoods.Categorical(4), order="raster"),
    "student": lambda: flow_student(model("real"), num_flows=2, channels=4),
}
LENGTHS = {"picture": SHAPE, "deep": SHAPE, "tiles": SHAPE, "long": 600}


@functools.cache
def model(name):
    return MAKERS[name]()


def length(name):
    return LENGTHS.get(name, LONGEST)


def condition(name):
    if name != "conditioned":
        return ()
    return (np.random.default_rng(3).normal(size=[NUM, LONGEST, 2]).astype(np.float32),)


@functools.cache
def drawn(name):
    return model(name).sample(NUM, length(name), SEED, *condition(name))


@functools.cache
def root():
    return Path(tempfile.mkdtemp())


@functools.cache
def bundle_folder(name):
    rate_hz = RATE_HZ if name == "sound" else None
    made, longest = model(name), None if name == "sound" else length(name)
    return onepass.export(made, root() / name / "1", length=longest, sample_rate_hz=rate_hz)


@functools.cache
def bundle(name):
    return serving.load(bundle_folder(name))


class Store:
    """A folder of models as `http_running` and `grpc_running` take one."""

    def __init__(self, *names):
        self.root = root()
        for name in names:
            bundle_folder(name)

    def load(self, path, *rest, **named):
        return bundle(Path(path).parent.name)
