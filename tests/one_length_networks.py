"""Causal networks that were built for one length, as people build them."""

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
LENGTH, LEVELS, WIDTH = 20, 8, 6


class TokensAndPlaces(layers.Layer):
    def __init__(self, rows, **options):
        super().__init__(**options)
        self.tokens = layers.Embedding(LEVELS, WIDTH)
        self.places = layers.Embedding(rows, WIDTH, name="places")

    def call(self, tokens):
        return self.tokens(tokens) + self.places(ops.arange(ops.shape(tokens)[-1]))


class Block(layers.Layer):
    """A transformer's block with a mask of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(2, 3)
        self.wide, self.narrow = layers.Dense(8, activation="relu"), layers.Dense(WIDTH)
        self.norms = [layers.LayerNormalization() for _ in range(2)]

    def call(self, x):
        places = tf.range(ops.shape(x)[1])
        mask = tf.tile((places[:, None] >= places)[None], [tf.shape(x)[0], 1, 1])
        h = self.norms[0](x + self.attention(x, x, attention_mask=mask))
        return self.norms[1](h + self.narrow(self.wide(h)))


class Mixed(layers.Layer):
    """Mixes the times by a triangular matrix of one size."""

    def build(self, shape):
        self.rows = self.add_weight(shape=[shape[1], shape[1]], name="rows")
        self.mask = np.tril(np.ones([shape[1], shape[1]], np.float32))

    def call(self, x):
        return x + tf.einsum("ts,bsc->btc", self.rows * self.mask, x)


def tokens_of(length=LENGTH):
    return keras.Input([length], dtype="int32")


def gpt():
    tokens = tokens_of()
    h = Block()(TokensAndPlaces(LENGTH)(tokens))
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def wavenet():
    waves = keras.Input([LENGTH, 1])
    h, skips = layers.Conv1D(WIDTH, 2, padding="causal")(waves), []
    for dilation in (1, 4):
        gates = [
            layers.Conv1D(WIDTH, 2, padding="causal", dilation_rate=dilation, activation=name)(h)
            for name in ("tanh", "sigmoid")
        ]
        gated = layers.Multiply()(gates)
        skips.append(layers.Conv1D(WIDTH, 1)(gated))
        h = layers.Add()([h, layers.Conv1D(WIDTH, 1)(gated)])
    return keras.Model(waves, layers.Conv1D(LEVELS, 1)(layers.ReLU()(layers.Add()(skips))))


def sequential():
    recurrent = layers.GRU(WIDTH, return_sequences=True)
    return keras.Sequential([keras.Input([LENGTH, 1]), recurrent, layers.Dense(LEVELS)])


def nested():
    rows = keras.Input([LENGTH, WIDTH])
    inner = keras.Model(rows, layers.Conv1D(WIDTH, 3, padding="causal", activation="tanh")(rows))
    stack = [keras.Input([LENGTH, WIDTH]), inner, layers.Dense(WIDTH, activation="tanh"), inner]
    tokens = tokens_of()
    h = keras.Sequential(stack)(layers.Embedding(LEVELS, WIDTH)(tokens))
    return keras.Model(tokens, layers.Dense(LEVELS)(inner(h)))


def conditioned():
    waves, pitch = keras.Input([LENGTH, 1]), keras.Input([LENGTH, 2])
    h = layers.Conv1D(WIDTH, 3, padding="causal")(layers.Concatenate()([waves, pitch]))
    return keras.Model([waves, pitch], layers.Dense(LEVELS)(ops.tanh(h)))


def reshaped():
    tokens = tokens_of()
    h = layers.Reshape([LENGTH, 2, WIDTH // 2])(layers.Embedding(LEVELS, WIDTH)(tokens))
    h = ops.reshape(ops.tanh(h), [-1, LENGTH, WIDTH])
    h = layers.Conv1D(WIDTH, 2, padding="causal")(h)
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def masked():
    """Attends with a constant mask, and adds constant rows of positions."""
    tokens = tokens_of()
    rows = np.sin(np.arange(LENGTH * WIDTH).reshape([LENGTH, WIDTH])).astype(np.float32)
    mask = np.tril(np.ones([1, LENGTH, LENGTH], bool))
    h = layers.Embedding(LEVELS, WIDTH)(tokens) + rows
    h = h + layers.MultiHeadAttention(2, 3)(h, h, attention_mask=mask)
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def mixed():
    tokens = tokens_of()
    h = Mixed(name="mixer")(layers.Embedding(LEVELS, WIDTH)(tokens))
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def dense_over_time():
    """A triangular kernel over the times, which is not trained."""
    waves = keras.Input([LENGTH, 1])
    lower = np.triu(np.ones([LENGTH, LENGTH], np.float32))
    over = layers.Dense(LENGTH, trainable=False, name="over")
    h = layers.Permute([2, 1])(over(layers.Permute([2, 1])(waves)))
    over.kernel.assign(over.kernel * lower)
    return keras.Model(waves, layers.Dense(LEVELS)(ops.tanh(h)))


def relative():
    """Divides its places by their number."""
    tokens = tokens_of()

    class Places(layers.Layer):
        def call(self, x):
            count = tf.shape(x)[1]
            return x + tf.cast(tf.range(count) / count, tf.float32)[:, None]

    h = ops.tanh(Places(name="places")(layers.Embedding(LEVELS, WIDTH)(tokens)))
    return keras.Model(tokens, layers.Dense(LEVELS)(h))


def repeated():
    """Repeats the number of a speaker, a vector of as many channels as there are times."""
    waves, speaker = keras.Input([LENGTH, 1]), keras.Input([3])
    rows = layers.RepeatVector(LENGTH)(layers.Dense(LENGTH)(speaker))
    h = layers.Conv1D(LENGTH, 2, padding="causal")(waves) + rows
    h = layers.Reshape([LENGTH, LENGTH])(ops.tanh(h))
    return keras.Model([waves, speaker], layers.Dense(LEVELS)(h))


def upsampled():
    """Repeats every row of frames, whose number it was built for."""
    waves, frames = keras.Input([LENGTH, 1]), keras.Input([LENGTH // 4, 2])
    h = layers.UpSampling1D(4)(frames)
    h = layers.Conv1D(WIDTH, 2, padding="causal")(layers.Concatenate(name="both")([waves, h]))
    return keras.Model([waves, frames], layers.Dense(LEVELS)(ops.tanh(h)))


class Subclassed(keras.Model):
    """Says nothing of its input before its first call, and takes one length."""

    def __init__(self):
        super().__init__()
        self.parts = [layers.Embedding(LEVELS, WIDTH), Mixed(), layers.Dense(LEVELS)]

    def call(self, tokens):
        for part in self.parts:
            tokens = part(tokens)
        return tokens


def subclassed():
    network = Subclassed()
    network(tf.zeros([1, LENGTH], tf.int32))
    return network


def signed():
    inner = mixed()
    return tf.function(inner, input_signature=[tf.TensorSpec([None, LENGTH], tf.int32)])


# Those that take any length, or fewer elements and as many.
REBUILT = {
    each.__name__: each
    for each in (gpt, wavenet, sequential, nested, conditioned, reshaped, masked, repeated)
}
LIMITED = {"gpt": "places", "masked": "add"}  # with the layer whose table ends
# Those that take their own length alone, and the layer that says so.
PADDED = {
    "mixed": (mixed, "mixer"),
    "dense_over_time": (dense_over_time, "over"),
    "relative": (relative, ""),
    "upsampled": (upsampled, "both"),
    "signed": (signed, ""),
}


def pixel_cnn(side=10):
    """Two masked convolutions, as Keras has them in its example, on images of one size."""

    class Masked(layers.Layer):
        def __init__(self, last, **options):
            super().__init__()
            self.convolution, self.last = layers.Conv2D(padding="same", **options), last

        def build(self, shape):
            self.convolution.build(shape)
            rows, columns, *_ = self.convolution.kernel.shape
            mask = np.zeros(self.convolution.kernel.shape, np.float32)
            mask[: rows // 2] = 1.0
            mask[rows // 2, : columns // 2 + self.last] = 1.0
            self.mask = mask

        def call(self, x):
            self.convolution.kernel.assign(self.convolution.kernel * self.mask)
            return self.convolution(x)

    images = keras.Input([side, side, 1])
    h = Masked(0, filters=WIDTH, kernel_size=5, activation="relu")(images)
    h = Masked(1, filters=WIDTH, kernel_size=3, activation="relu")(h)
    return keras.Model(images, layers.Conv2D(LEVELS, 1)(h))
