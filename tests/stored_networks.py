"""Networks as strangers write them, with what is hard to store."""

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
LEVELS = 8


def over(body, levels=LEVELS):
    """A network of tokens with `body` between its embedding and its logits."""
    tokens = keras.Input([None], dtype="int32")
    return keras.Model(tokens, layers.Dense(levels)(body(layers.Embedding(levels, 4)(tokens))))


class Sinusoids(layers.Layer):
    """A table that is no weight but a constant."""

    def __init__(self):
        super().__init__()
        table = np.sin(np.arange(2048)[:, None] / 10 ** np.arange(4))
        self.table = ops.convert_to_tensor(table.astype("float32"))

    def call(self, h):
        return h + self.table[: ops.shape(h)[1]]


class Scanned(layers.Layer):
    """A diagonal state space by `tf.scan`."""

    def build(self, shape):
        self.decay = self.add_weight(shape=[shape[-1]], name="decay")

    def call(self, h):
        rows = tf.transpose(h, [1, 0, 2])
        rows = tf.scan(lambda s, x: tf.sigmoid(self.decay) * s + x, rows, tf.zeros_like(rows[0]))
        return tf.transpose(rows, [1, 0, 2])


class Function(layers.Layer):
    """A recurrence inside a `tf.function`."""

    def build(self, shape):
        self.inner = layers.GRU(4, return_sequences=True)
        self.inner.build(shape)

    @tf.function(autograph=False)
    def run(self, h):
        return self.inner(h)

    def call(self, h):
        return self.run(h)


class Summed(layers.Layer):
    """The logarithm of a running sum of exponentials."""

    def call(self, h):
        return tf.math.cumulative_logsumexp(h, axis=1)


class Steep(layers.Layer):
    """A layer with a gradient of its own, which is not that of its operations."""

    def call(self, h):
        return steep(tf.tanh(h))


class Recomputed(layers.Layer):
    """A layer whose activations are computed again for its gradient."""

    def build(self, shape):
        self.inner = layers.Dense(4, activation="tanh")
        self.inner.build(shape)

    def call(self, h):
        return tf.recompute_grad(lambda x: self.inner(x))(h)


@tf.custom_gradient
def steep(x):
    return tf.identity(x), lambda upstream: 3.0 * upstream


class Forbidding(layers.Layer):
    """Logits of -inf for one token."""

    def call(self, h):
        return h + tf.constant(np.where(np.arange(LEVELS) == 3, -np.inf, 0.0).astype("float32"))


def attention(h):
    return h + layers.MultiHeadAttention(2, 2)(h, h, use_causal_mask=True)


def gru(h):
    return layers.GRU(4, return_sequences=True)(h)


def silu(h):
    return layers.Dense(4)(layers.Dense(8, activation="silu")(h) * layers.Dense(8)(h))


def quantised():
    network = over(lambda h: layers.Dense(4, activation="relu")(h))
    for layer in network.layers:
        if hasattr(layer, "quantize") and isinstance(layer, layers.Dense | layers.Embedding):
            layer.quantize("int8")
    return network


def labelled():
    tokens, label = keras.Input([None], dtype="int32"), keras.Input([], dtype="int32", name="label")
    h = layers.Embedding(LEVELS, 4)(tokens) + layers.Embedding(3, 4)(label)[:, None]
    return keras.Model([tokens, label], layers.Dense(LEVELS)(gru(h)))


def forbidding():
    tokens = keras.Input([None], dtype="int32")
    h = layers.Dense(LEVELS)(gru(layers.Embedding(LEVELS, 4)(tokens)))
    return keras.Model(tokens, Forbidding()(h))


NETWORKS = {
    "a constant table and a recurrence": lambda: over(lambda h: gru(Sinusoids()(h))),
    "silu": lambda: over(silu),
    "a label and a recurrence": labelled,
    "a scan": lambda: over(lambda h: Scanned()(h)),
    "a gradient of its own": lambda: over(lambda h: Steep()(h)),
    "recomputed activations": lambda: over(lambda h: Recomputed()(h)),
    "attention and a recurrence": lambda: over(lambda h: gru(attention(h))),
    "a llama": lambda: over(lambda h: h + silu(attention(h))),
    "a conformer": lambda: over(
        lambda h: attention(layers.Conv1D(4, 3, padding="causal", activation="silu")(h))
    ),
    "a mamba": lambda: over(
        lambda h: Scanned()(layers.Conv1D(4, 3, padding="causal", activation="silu")(h))
    ),
    "a function": lambda: over(lambda h: Function()(h)),
    "a running logarithm": lambda: over(lambda h: Summed()(h)),
    "int8": quantised,
    "an lstm": lambda: over(lambda h: layers.LSTM(4, return_sequences=True)(h)),
    "cells": lambda: over(
        lambda h: layers.RNN([layers.GRUCell(4), layers.LSTMCell(4)], return_sequences=True)(h)
    ),
    "a forbidden token": forbidding,
}
