"""Models of networks as their users write them, for the test of everything done with one."""

import attention_networks
import causal_networks
import indexing_networks
import keras
import numpy as np
import tensorflow as tf

from onepass.likelihoods import Bernoulli, Categorical, Integers, Linear
from onepass.model import Autoregressive

layers, ops = keras.layers, keras.ops
TOKENS, WIDTH = 12, 8
SPEC = tf.TensorSpec([None, None], tf.int32)


def of_network(block):
    tokens = keras.Input([None], dtype="int32")
    h = layers.Embedding(TOKENS, WIDTH, embeddings_initializer="normal")(tokens)
    return of_tokens(keras.Model(tokens, layers.Dense(TOKENS)(block(h))), TOKENS)


def of_tokens(network, count):
    return Autoregressive(network, Categorical(count), codec=Integers(count), inputs=SPEC)


def of_waves(network, levels):
    """A model of sounds whose network has one output for each level."""
    return Autoregressive(network, Categorical(levels), codec=Linear(levels))


def recur(h):
    return layers.GRU(WIDTH, return_sequences=True)(h)


def of_function(network):
    """A language model of a network of four channels."""
    table, head = causal_networks.variable([TOKENS, 4], 1), causal_networks.variable([4, TOKENS], 2)
    return of_tokens(lambda tokens: network(tf.gather(table, tokens)) @ head, TOKENS)


class SelectiveScan(layers.Layer):
    """Mamba's recurrence of a state [channels, 3] by a scan."""

    def __init__(self):
        super().__init__()
        self.inputs, self.outputs, self.rate = layers.Dense(3), layers.Dense(3), layers.Dense(WIDTH)

    def build(self, shape):
        self.poles = self.add_weight(shape=(shape[-1], 3), initializer="ones")

    def call(self, h):
        rate = tf.nn.softplus(self.rate(h))[..., None]
        decay = tf.exp(-rate * tf.nn.softplus(self.poles))
        drive = rate * self.inputs(h)[:, :, None] * h[..., None]
        rows = tuple(tf.transpose(x, [1, 0, 2, 3]) for x in (decay, drive))
        first = tf.zeros_like(rows[1][0])
        states = tf.scan(lambda state, row: state * row[0] + row[1], rows, first)
        states = tf.transpose(states, [1, 0, 2, 3])
        return h + tf.reduce_sum(states * self.outputs(h)[:, :, None], -1)


class Sinusoids(layers.Layer):
    """A table of positions that is held as a constant tensor, not as a weight."""

    def __init__(self):
        super().__init__()
        rows = np.sin(np.arange(512)[:, None] / 10.0 ** np.arange(WIDTH))
        self.table = ops.convert_to_tensor(rows.astype(np.float32))

    def call(self, h):
        return h + self.table[: ops.shape(h)[1]]


class Recomputed(layers.Layer):
    """A layer whose activations are computed again for its gradient."""

    def build(self, shape):
        self.inner = layers.Dense(WIDTH, activation="tanh")
        self.inner.build(shape)

    def call(self, h):
        return tf.recompute_grad(lambda x: self.inner(x))(h)


@tf.custom_gradient
def steep(h):
    """The same values, with a gradient of their own."""
    return tf.identity(h), lambda upstream: 3.0 * upstream


def of_policy(policy, layer):
    """A model of sounds under a policy of mixed precision."""
    waves = keras.Input([None, 1])
    h = layers.Conv1D(WIDTH, 2, padding="causal", dtype=policy)(waves)
    h = layer(policy)(h)
    return of_waves(keras.Model(waves, layers.Dense(8, dtype="float32")(h)), 8)


def of_changed(change):
    """A model of a network whose inner layer was changed after it was built."""
    inner = layers.Dense(WIDTH, activation="relu")
    network = of_network(lambda h: recur(inner(h))).network
    change(inner)
    return of_tokens(network, TOKENS)


WAVES = {
    "dilated_functional": 5, "sequential": 3, "Gated": 3, "Padded": 4, "Chomped": 4, "gru": 4,
    "lstm_after_convolution": 2, "shifted_gru": 3, "stacked_cells": 2, "separable": 8, "grouped": 4,
    "normalised": 4, "scanned": 2, "nested": 4, "half_precision": 4, "einsum": 6, "delayed_sum": 2,
    "taps": 2,
}  # fmt: skip
ATTENTION = (
    *("Rotary", "Biased", "Relative", "Learned", "Windowed", "Retention", "Linear", "Product"),
    *(
        "Convolved",
        "Exclusive",
        "mini_gpt",
        "grouped_queries",
        "sliding_window",
        "recurrent_and_attention",
    ),
)
INDEXING = (
    *("experts", "top_experts", "complex_rotation", "associative_scan", "attention"),
    *("additive_attention",),
)
MODELS = {
    **{
        name: lambda name=name: of_waves(causal_networks.CAUSAL[name](), WAVES[name])
        for name in WAVES
    },
    **{
        name: lambda name=name: of_tokens(
            attention_networks.NETWORKS[name](), attention_networks.TOKENS
        )
        for name in ATTENTION
    },
    **{
        name: lambda name=name: of_function(indexing_networks.NETWORKS[name]()) for name in INDEXING
    },
    "long convolution": lambda: of_function(indexing_networks.convolved_by_fft()),
    "Receptive": lambda: Autoregressive(causal_networks.Receptive(), Bernoulli(), codec=Linear(2)),
    "selective scan": lambda: of_network(SelectiveScan()),
    "constant table": lambda: of_network(lambda h: recur(Sinusoids()(h))),
    "recomputed activations": lambda: of_network(lambda h: Recomputed()(h)),
    "gradient of its own": lambda: of_network(layers.Lambda(lambda h: steep(tf.tanh(h)))),
    "bfloat16 gru": lambda: of_policy(
        "mixed_bfloat16", lambda policy: layers.GRU(WIDTH, return_sequences=True, dtype=policy)
    ),
    "float16": lambda: of_policy(
        "mixed_float16", lambda policy: layers.Dense(WIDTH, "tanh", dtype=policy)
    ),
    "int8": lambda: of_changed(lambda layer: layer.quantize("int8")),
    "lora": lambda: of_changed(lambda layer: layer.enable_lora(2)),
}


def model(name):
    """A model whose weights are the same in every process."""
    keras.utils.set_random_seed(1)
    return MODELS[name]()
