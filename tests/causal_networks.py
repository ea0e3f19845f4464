"""Causal networks as their users write them."""

import functools

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
BANDS, HOP = 5, 4  # of the frames of `vocoder`, and time steps between two


def returned(network):
    """Return a function that returns a network without weights, as others make theirs."""
    return functools.wraps(network)(lambda: network)


def wave_network(*stack, channels=1):
    """Return a functional model of sequences of numbers through layers, one after the other."""
    inputs = h = keras.Input([None, channels])
    for layer in stack:
        h = layer(h)
    return keras.Model(inputs, h)


def token_network(*stack):
    """Return a functional model of tokens through layers, of which the first embeds them."""
    inputs = h = keras.Input([None], dtype="int32")
    for layer in stack:
        h = layer(h)
    return keras.Model(inputs, h)


def steps(derived, state, tensors, sizes):
    """Return the outputs of steps of some sizes, and the state after them.

    Args:
      derived: a network with `step`.
      state: the state before the first step.
      tensors: inputs [batch, time, ...], and conditions that have time.
      sizes: numbers of time steps.
    """
    outputs, start = [], 0
    for size in sizes:
        rows, *timed = (x[:, start : start + size] for x in tensors)
        output, state = derived.step(rows, state, *timed)
        outputs.append(output)
        start += size
    return tf.concat(outputs, 1), state


def variable(shape, seed, scale=0.4):
    return tf.Variable(tf.random.stateless_normal(shape, [seed, 1]) * scale)


def dilated_functional():
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(6, 2, padding="causal")(inputs)
    for dilation in (1, 8):
        h = h + layers.Conv1D(6, 2, dilation_rate=dilation, padding="causal", activation="tanh")(h)
    return keras.Model(inputs, layers.Dense(5)(h))


def sequential():
    return keras.Sequential(
        [
            layers.Conv1D(4, 3, padding="causal", activation="relu"),
            layers.Conv1D(4, 3, padding="causal", dilation_rate=3, activation="swish"),
            layers.Dense(3),
        ]
    )


class Gated(keras.Model):
    """A subclassed WaveNet with skip connections."""

    def __init__(self, num_parameters=3):
        super().__init__()
        self.front = layers.Conv1D(4, 1)
        self.filters = [layers.Conv1D(4, 2, padding="causal", dilation_rate=d) for d in (1, 2)]
        self.gates = [layers.Conv1D(4, 2, padding="causal", dilation_rate=d) for d in (1, 2)]
        self.skips = [layers.Conv1D(num_parameters, 1) for _ in range(2)]
        self.dropout = layers.Dropout(0.5)

    def call(self, inputs, training=False):
        h, total = self.front(inputs), 0.0
        for values, gate, skip in zip(self.filters, self.gates, self.skips, strict=True):
            z = tf.tanh(values(h)) * tf.sigmoid(gate(h))
            h, total = h + self.dropout(z, training=training), total + skip(z)
        return tf.nn.elu(total)


class Padded(tf.Module):
    """A module of plain TensorFlow that shifts and pads by itself."""

    def __init__(self):
        super().__init__()
        self.front = variable([1, 4], 1)
        self.kernels = [variable([3, 4, 8], 2 + i) for i in range(3)]
        self.outs = [variable([4, 4], 9 + i) for i in range(3)]

    def __call__(self, x):
        h = tf.matmul(tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1], self.front)
        for i, (kernel, out) in enumerate(zip(self.kernels, self.outs, strict=True)):
            d = 2**i
            g = tf.pad(h, [[0, 0], [2 * d, 0], [0, 0]], constant_values=0.1)
            g = tf.nn.conv2d(g[:, None], kernel[None], 1, "VALID", dilations=[1, d])[:, 0]
            a, b = tf.split(g, 2, -1)
            h = h + tf.matmul(tf.tanh(a) * tf.sigmoid(b), out)
        return h


class Chomped(tf.Module):
    """A temporal convolutional network that pads both sides and drops the end."""

    def __init__(self):
        super().__init__()
        self.kernels = [variable([3, 1, 4], 1), variable([3, 4, 4], 2)]

    def __call__(self, x):
        for d, kernel in zip((1, 2), self.kernels, strict=True):
            h = tf.pad(x, [[0, 0], [2 * d, 2 * d], [0, 0]])
            h = tf.nn.conv2d(h[:, None], kernel[None], 1, "VALID", dilations=[1, d])[:, 0]
            x = tf.nn.relu(h[:, : -2 * d] + 0.1)
        return x


class Receptive(tf.Module):
    """Pads its receptive field once; every residual is cropped at its start."""

    def __init__(self):
        super().__init__()
        self.kernels = [variable([2, 1, 1], i) for i in range(3)]

    def __call__(self, x):
        h = tf.concat([tf.zeros([tf.shape(x)[0], 7, 1]), x], 1)
        for d, kernel in zip((1, 2, 4), self.kernels, strict=True):
            out = tf.nn.convolution(h, kernel, dilations=[d])
            h = h[:, d:] + tf.tanh(out + 0.3)
        return h


def gru():
    return keras.Sequential([keras.Input([None, 1]), layers.GRU(4, return_sequences=True)])


def lstm_after_convolution():
    stack = layers.Conv1D(3, 2, padding="causal"), layers.LSTM(3, return_sequences=True)
    return wave_network(*stack, layers.Dense(2))


def shifted_gru():
    inputs = keras.Input([None, 1])
    h = layers.ZeroPadding1D((1, 0))(inputs)[:, :-1]
    return keras.Model(inputs, layers.GRU(3, return_sequences=True)(h + 1.0))


def stacked_cells():
    cells = [layers.GRUCell(3), layers.LSTMCell(2)]
    return keras.Sequential(
        [keras.Input([None, 1]), layers.RNN(cells, return_sequences=True), layers.Dense(2)]
    )


def separable():
    wide = layers.ZeroPadding1D((4, 0)), layers.SeparableConv1D(4, 3, dilation_rate=2)
    deep = layers.ZeroPadding1D((2, 0)), layers.DepthwiseConv1D(3, depth_multiplier=2)
    return wave_network(layers.Dense(4), *wide, *deep)


def grouped():
    two = layers.Conv1D(4, 3, groups=2, padding="causal")
    return wave_network(layers.Dense(4), two, layers.Conv1D(4, 2, groups=4, padding="causal"))


def normalised():
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(4, 3, padding="causal", dilation_rate=2)(inputs)
    h = layers.LayerNormalization()(h)
    h = layers.BatchNormalization()(h)
    h = layers.Dense(4, activation="softmax")(h)
    return keras.Model(inputs, layers.UnitNormalization()(h) + layers.PReLU(shared_axes=[1])(h))


def embedding():
    return embedding_of(2)


def embedding_of(levels):
    inputs = keras.Input([None], dtype="int32")
    h = layers.Embedding(levels, 4, embeddings_initializer="normal")(inputs)
    h = layers.Conv1D(4, 3, padding="causal", activation="gelu")(h)
    return keras.Model(inputs, layers.Dense(levels)(h))


def two_inputs():
    inputs, condition = keras.Input([None, 1]), keras.Input([None, 2])
    h = layers.Concatenate()([inputs, layers.Dense(2, activation="relu")(condition)])
    h = layers.Conv1D(4, 4, padding="causal")(h)
    return keras.Model([inputs, condition], layers.Dense(2)(h))


FLOAT64 = tf.TensorSpec([None, None, 1], tf.float64)


class Dilated(tf.Module):
    """A network in float64, so that rounding moves no level."""

    def __init__(self, num_parameters, condition_channels=0, first_seed=0):
        super().__init__()
        shapes = [[2, 1 + condition_channels, 6], [2, 6, 6], [2, 6, num_parameters]]
        self.kernels = [
            tf.Variable(tf.cast(variable(shape, seed, 0.7), tf.float64))
            for seed, shape in enumerate(shapes, first_seed)
        ]

    def __call__(self, x, condition=None):
        h = x if condition is None else tf.concat([x, tf.cast(condition, x.dtype)], -1)
        for i, kernel in enumerate(self.kernels):
            padded = tf.pad(h, [[0, 0], [2**i, 0], [0, 0]])
            h = tf.nn.convolution(padded, kernel, dilations=[2**i])
            h = tf.tanh(h) if i < 2 else h
        return h


def convolved(channels, outputs, attention=False):
    keras.utils.set_random_seed(2)
    inputs = keras.Input([None, channels])
    h = layers.Conv1D(6, 2, padding="causal", activation="tanh")(inputs)
    if attention:
        h = h + layers.MultiHeadAttention(2, 3)(h, h, use_causal_mask=True)
    return keras.Model(inputs, layers.Dense(outputs)(h))


def codebooks(codes):
    """A network over three codes at a time, or a start that is none of them."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input([None, 3], dtype="int32")
    h = layers.Reshape([-1, 3 * 4])(layers.Embedding(codes + 1, 4)(inputs))
    h = layers.Conv1D(6, 3, padding="causal", activation="tanh")(h)
    return keras.Model(inputs, layers.Dense(3 * codes)(h))


def conditioned(*kinds, levels=8, as_dict=False):
    """A Keras model of tokens and conditions, which it tells apart by their shapes."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input([None], dtype="int32", name="tokens")
    inputs = {"tokens": tokens}
    h = layers.Embedding(levels, 8)(tokens)
    if "speaker" in kinds:
        inputs["speaker"] = keras.Input([], dtype="int32", name="speaker")
        h = h + layers.Embedding(4, 8)(inputs["speaker"])[:, None]
    if "vector" in kinds:
        inputs["vector"] = keras.Input([3], name="vector")
        h = h + layers.Reshape([1, 8])(layers.Dense(8)(inputs["vector"]))
    if "mel" in kinds:
        inputs["mel"] = keras.Input([None, 2], name="mel")
        h = h + layers.Dense(8)(inputs["mel"])
    h = layers.Conv1D(8, 2, padding="causal", activation="tanh")(h)
    if "memory" in kinds:
        inputs["memory"] = keras.Input([None, 3], name="memory")
        encoded = layers.Dense(8, activation="softplus")(inputs["memory"])
        h = h + layers.MultiHeadAttention(1, 4)(h, encoded)
    logits = layers.Dense(levels, kernel_initializer=keras.initializers.RandomNormal(stddev=2.0))
    return keras.Model(inputs if as_dict else list(inputs.values()), logits(h))


def vocoder(encoder=None, after=None, width=8):
    """Return a Keras model of waves and mel frames, whose upsampling looks ahead."""
    keras.utils.set_random_seed(1)
    waves, mel = keras.Input([None, 1]), keras.Input([None, BANDS], name="mel")
    frames = mel if encoder is None else encoder(mel)
    up = layers.Conv1DTranspose(6, 2 * HOP, strides=HOP, padding="same", name="up")(frames)
    up = layers.Conv1D(6, 3, padding="same", activation="relu", name="smooth")(up)
    h = layers.Dense(width)(waves) + layers.Dense(width, name="first")(up)
    h = layers.Conv1D(width, 2, padding="causal", activation="tanh", name="past")(h)
    h = h + layers.Dense(width, name="second")(up)
    return keras.Model([waves, mel], layers.Dense(2)(h if after is None else after(h)))


def u_net(levels=2, blur=""):
    """Strided causal convolutions, and repeats; a row of a lower rate reads its first time."""
    inputs = keras.Input([None, 1])
    h, skips = layers.Conv1D(4, 2, padding="causal")(inputs), []
    for level in range(levels):
        skips.append(h)
        h = layers.Conv1D(4, 3, strides=2, padding="causal", activation="tanh")(h)
        if blur == f"low{level}":
            h = layers.Conv1D(4, 3, padding="same", name="blur")(h)
    for skip in reversed(skips):
        h = layers.Conv1D(4, 2, padding="causal")(layers.UpSampling1D(2)(h) + skip)
    return keras.Model(inputs, layers.Dense(2)(h))


class Conditioned(tf.Module):
    """A condition that passes a convolution of its own."""

    def __init__(self):
        super().__init__()
        self.kernels = [variable([2, 1, 4], 1), variable([3, 2, 4], 2)]

    def __call__(self, x, condition):
        a = tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), self.kernels[0], 1, "VALID")
        b = tf.nn.conv1d(tf.pad(condition, [[0, 0], [2, 0], [0, 0]]), self.kernels[1], 1, "VALID")
        return tf.nn.tanh(a) * tf.nn.sigmoid(b)


def scanned():
    decay = variable([2], 3)

    def network(x):
        rows = tf.transpose(tf.concat([x, x * x], -1), [1, 0, 2])
        h = tf.scan(
            lambda h, row: tf.sigmoid(decay) * h + row, rows, initializer=tf.zeros_like(rows[0])
        )
        return tf.transpose(h, [1, 0, 2])

    return network


def nested():
    kernel = variable([3, 1, 4], 5)

    @tf.function
    def causal(x):
        return tf.nn.conv1d(tf.pad(x, [[0, 0], [2, 0], [0, 0]]), kernel, 1, "VALID")

    @tf.function(reduce_retracing=True)
    def network(x):
        return tf.nn.elu(causal(x)) + 0.1

    return network


def half_precision():
    half = layers.Conv1D(8, 2, padding="causal", dilation_rate=2, dtype="mixed_bfloat16")
    return wave_network(half, layers.Dense(4, dtype="float32"))


def einsum():
    dense = layers.EinsumDense("btc,cd->btd", output_shape=(None, 6))
    softmax = layers.Reshape([-1, 2, 3]), layers.Softmax(axis=-1), layers.Reshape([-1, 6])
    return wave_network(layers.Conv1D(4, 2, padding="causal"), dense, *softmax)


def spectral():
    """Time and another axis, convolved together."""
    image = layers.Lambda(lambda x: x[..., None]), layers.ZeroPadding2D(((2, 0), (1, 1)))
    convolution = layers.Conv2D(3, 3, activation="relu")
    return wave_network(*image, convolution, layers.Reshape([-1, 18]), channels=6)


def delayed_sum():
    """Two ways of different delay, one of them with a lookahead that its shift takes back."""
    kernel = variable([3, 1, 2], 7)

    def network(x):
        late = tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), kernel, 1, "SAME")[:, :-1]
        return late + tf.pad(x, [[0, 0], [3, 0], [0, 0]])[:, :-3]

    return network


def taps():
    """Convolutions written as slices of one padded tensor, some with their channels turned."""
    kernel = variable([3, 2, 2], 4)

    def network(x):
        h = tf.concat([x, x * x], -1)
        for d in (1, 3):
            padded = tf.concat([tf.fill([tf.shape(h)[0], 2 * d, 2], 0.2), h], 1)
            rows = [padded[:, j * d : j * d + tf.shape(h)[1]] for j in range(3)]
            rows[1] = rows[1][..., ::-1]
            h = tf.tanh(
                tf.add_n([tf.matmul(r, k) for r, k in zip(rows, tf.unstack(kernel), strict=True)])
            )
        return h

    return network


CAUSAL = {
    make.__name__: make
    for make in (
        dilated_functional, sequential, Gated, Padded, Chomped, Receptive, gru,
        lstm_after_convolution, shifted_gru, stacked_cells, separable, grouped, normalised,
        embedding, two_inputs, Conditioned, scanned, nested, half_precision, einsum, spectral,
        delayed_sum, taps,
    )
}  # fmt: skip


class Skewed(layers.Layer):
    """Attention to learned relative positions, whose scores are shifted by reshaping them."""

    def __init__(self):
        super().__init__(name="attend")
        self.distances = self.add_weight(shape=(200, 4), initializer="normal")
        self.query = layers.Dense(4)

    def call(self, h):
        time = tf.shape(h)[1]
        scores = tf.einsum("btc,sc->bts", self.query(h), self.distances[200 - time :])
        scores = tf.reshape(tf.pad(scores, [[0, 0], [0, 0], [1, 0]]), [-1, time + 1, time])[:, 1:]
        past = tf.linalg.band_part(tf.ones([time, time]), -1, 0)
        return tf.nn.softmax(scores + (1.0 - past) * -1e9) @ h


def skewed_attention(width, num_parameters):
    inputs = keras.Input([None, 1])
    h = Skewed()(layers.Dense(width)(inputs))
    return keras.Model(inputs, layers.Dense(num_parameters)(h))


class MaskedImage(tf.Module):
    """A PixelCNN of one masked convolution in float64."""

    def __init__(self, channels, num_parameters):
        super().__init__()
        kernel = np.random.default_rng(0).normal(size=[3, 3, channels, num_parameters])
        self.mask = np.ones([3, 3, 1, 1])
        self.mask[1, 1:], self.mask[2] = 0.0, 0.0
        self.kernel = tf.Variable(kernel, dtype=tf.float64)

    def __call__(self, images):
        kernel = self.kernel * self.mask
        return tf.nn.conv2d(tf.cast(images, tf.float64), kernel, 1, "SAME")
