"""Causal networks with attention, positions, running sums, as their users write them."""

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
TOKENS, WIDTH, HEADS = 13, 12, 3
LONGEST = 300


class Positions(layers.Layer):
    """Embeddings of tokens and of learned positions."""

    def __init__(self, length=LONGEST):
        super().__init__()
        self.tokens = layers.Embedding(TOKENS, WIDTH, embeddings_initializer="normal")
        self.positions = layers.Embedding(length, WIDTH, embeddings_initializer="normal")

    def call(self, tokens):
        return self.tokens(tokens) + self.positions(ops.arange(ops.shape(tokens)[1]))


def model(block, positions=True, count=1):
    """A Keras model of embeddings, blocks with residuals and normalisation, and an output."""
    inputs = keras.Input([None], dtype="int32")
    h = Positions()(inputs) if positions else layers.Embedding(TOKENS, WIDTH)(inputs)
    for _ in range(count):
        h = h + block(layers.LayerNormalization()(h))
    return keras.Model(inputs, layers.Dense(TOKENS)(h))


def mini_gpt():
    def block(h):
        a = layers.MultiHeadAttention(HEADS, 4)(h, h, use_causal_mask=True)
        return layers.Dense(WIDTH)(layers.Dense(24, activation="gelu")(h + a))

    return model(block, count=2)


def grouped_queries():
    attend = layers.GroupQueryAttention(4, 6, 2)
    return model(lambda h: attend(h, h, use_causal_mask=True))


class Masked(layers.Layer):
    def __init__(self, mask):
        super().__init__()
        self.attend, self.mask = layers.MultiHeadAttention(HEADS, 4), mask

    def call(self, h):
        return self.attend(h, h, attention_mask=self.mask(ops.shape(h)[1]))


def mask_by_cumsum(time):
    row = ops.cumsum(ops.ones([time, time], "int32"), 0)
    return (row >= ops.cumsum(ops.ones([time, time], "int32"), 1))[None]


def sliding_window(time, window=20):
    distance = ops.arange(time)[:, None] - ops.arange(time)[None]
    return ((distance >= 0) & (distance < window))[None]


MASKS = {
    "explicit_mask": lambda time: ops.arange(time)[None, :, None] >= ops.arange(time)[None, None],
    "triangular_mask": lambda time: ops.tril(ops.ones([1, time, time], "bool")),
    "mask_by_cumsum": mask_by_cumsum,
    "sliding_window": sliding_window,
}


class DotProduct(layers.Layer):
    def __init__(self):
        super().__init__()
        self.all = layers.Dense(3 * WIDTH)

    def call(self, h):
        shape = ops.shape(h)
        parts = ops.reshape(self.all(h), (shape[0], shape[1], 3, HEADS, WIDTH // HEADS))
        query, key, value = (parts[:, :, i] for i in range(3))
        mask = ops.tril(ops.ones([1, 1, shape[1], shape[1]], "bool"))
        out = ops.dot_product_attention(query, key, value, mask=mask)
        return ops.reshape(out, (shape[0], shape[1], WIDTH))


def dot_product():
    return model(DotProduct())


def recurrent_and_attention():
    def block(h):
        h = layers.GRU(WIDTH, return_sequences=True)(h)
        h = layers.Conv1D(WIDTH, 3, padding="causal", dilation_rate=2)(h)
        return layers.MultiHeadAttention(HEADS, 4)(h, h, use_causal_mask=True)

    return model(block, positions=False, count=2)


def variable(shape, seed, scale=0.4):
    return tf.Variable(tf.random.stateless_normal(shape, [seed, 7]) * scale)


class Attention(tf.Module):
    """Attention of plain TensorFlow, with what differs between networks as methods."""

    heads, width = 2, 8

    def __init__(self):
        super().__init__()
        self.embedding = variable([TOKENS, self.width], 1, 1.0)
        self.query, self.key, self.value, self.join = (
            variable([self.width, self.width], seed) for seed in (2, 3, 4, 5)
        )
        self.out = variable([self.width, TOKENS], 6)

    def __call__(self, tokens):
        h = self.embed(tokens)
        query, key, value = (self.split(h @ each) for each in (self.query, self.key, self.value))
        values = self.attend(self.turned(query), self.turned(key), value)
        joined = tf.reshape(tf.transpose(values, [0, 2, 1, 3]), tf.shape(h))
        return (h + joined @ self.join) @ self.out

    def embed(self, tokens):
        return tf.gather(self.embedding, tokens)

    def split(self, h):
        """[batch, heads, time, channels]"""
        shape = tf.shape(h)
        h = tf.reshape(h, [shape[0], shape[1], self.heads, self.width // self.heads])
        return tf.transpose(h, [0, 2, 1, 3])

    def turned(self, h):
        return h

    def attend(self, query, key, value):
        scores = self.masked(tf.matmul(query, key, transpose_b=True) / 2.0)
        return tf.matmul(self.weights(scores), value)

    def masked(self, scores):
        time = tf.shape(scores)[-1]
        mask = tf.linalg.band_part(tf.ones([time, time]), -1, 0)
        return scores + (1.0 - mask) * -1e9

    def weights(self, scores):
        return tf.nn.softmax(scores)


class Rotary(Attention):
    def turned(self, h):
        half = h.shape[-1] // 2
        frequency = 10000.0 ** (-tf.range(half, dtype=tf.float32) / half)
        angle = tf.cast(tf.range(tf.shape(h)[2]), tf.float32)[:, None] * frequency
        a, b = h[..., :half], h[..., half:]
        cos, sin = tf.cos(angle), tf.sin(angle)
        return tf.concat([a * cos - b * sin, a * sin + b * cos], -1)


class Biased(Attention):
    """ALiBi: a penalty that grows with the distance, with a slope per head."""

    def masked(self, scores):
        positions = tf.range(tf.shape(scores)[-1], dtype=tf.float32)
        factors = tf.constant([0.5, 0.25])[:, None, None]
        return super().masked(scores + factors * (positions[None] - positions[:, None]))


class KeyBiased(Attention):
    """ALiBi as a term of the keys alone."""

    def masked(self, scores):
        positions = tf.range(tf.shape(scores)[-1], dtype=tf.float32)
        return super().masked(scores + tf.constant([0.5, 0.25])[:, None, None] * positions)


class Relative(Attention):
    """A learned bias for every distance up to 15, as T5's."""

    def __init__(self):
        super().__init__()
        self.bias = variable([16, self.heads], 9, 1.0)

    def masked(self, scores):
        positions = tf.range(tf.shape(scores)[-1])
        distance = tf.clip_by_value(positions[:, None] - positions[None], 0, 15)
        return super().masked(scores + tf.transpose(tf.gather(self.bias, distance), [2, 0, 1]))


class Sinusoidal(Attention):
    def embed(self, tokens):
        time = tf.cast(tf.range(tf.shape(tokens)[1]), tf.float32)[:, None]
        rate = 10.0 ** -tf.range(self.width // 2, dtype=tf.float32)
        return super().embed(tokens) + tf.concat([tf.sin(time * rate), tf.cos(time * rate)], -1)


class Learned(Attention):
    """A table of positions that is sliced."""

    def __init__(self):
        super().__init__()
        self.positions = variable([LONGEST, self.width], 8)

    def embed(self, tokens):
        return super().embed(tokens) + self.positions[: tf.shape(tokens)[1]]


class WhereMasked(Attention):
    def masked(self, scores):
        time = tf.range(tf.shape(scores)[-1])
        return tf.where(time[:, None] >= time, scores, -1e30)


class BandPart(Attention):
    """Masked weights after the exponential, by a band of the weights themselves."""

    def masked(self, scores):
        return scores

    def weights(self, scores):
        scores = tf.linalg.band_part(tf.exp(tf.tanh(scores)), -1, 0)
        return scores / tf.reduce_sum(scores, -1, keepdims=True)


class OwnSoftmax(Attention):
    def weights(self, scores):
        raised = tf.exp(scores - tf.reduce_max(scores, -1, keepdims=True))
        return raised / tf.reduce_sum(raised, -1, keepdims=True)


class TalkingHeads(Attention):
    def __init__(self):
        super().__init__()
        self.mix = variable([self.heads, self.heads], 11)

    def masked(self, scores):
        return super().masked(tf.einsum("bhqk,hg->bgqk", scores, self.mix))


class Turned(Attention):
    """Scores with the keys before the queries."""

    def attend(self, query, key, value):
        time = tf.range(tf.shape(key)[2])
        scores = tf.matmul(key, query, transpose_b=True)
        scores = tf.where(time[:, None] <= time, scores, -1e9)
        return tf.matmul(tf.nn.softmax(scores, axis=-2), value, transpose_a=True)


class MergedHeads(Attention):
    """Batch and heads as one axis."""

    def attend(self, query, key, value):
        shape = tf.shape(query)
        merged = [tf.reshape(x, [-1, shape[2], shape[3]]) for x in (query, key, value)]
        return tf.reshape(super().attend(*merged), shape)


class Windowed(Attention):
    window = 20

    def masked(self, scores):
        time = tf.range(tf.shape(scores)[-1])
        distance = time[:, None] - time
        return tf.where((distance < self.window) & (distance >= 0), scores, -1e9)


class BandWindow(Attention):
    """A window by an added band."""

    def masked(self, scores):
        time = tf.shape(scores)[-1]
        return scores + (tf.linalg.band_part(tf.ones([time, time]), 17, 0) - 1.0) * 1e9


class Retention(Attention):
    """Scores times a decay of the distance, without a softmax."""

    def masked(self, scores):
        time = tf.range(tf.shape(scores)[-1], dtype=tf.float32)
        distance = time[:, None] - time
        return scores * tf.where(distance >= 0, 0.9 ** tf.maximum(distance, 0.0), 0.0)

    def weights(self, scores):
        return scores


class Decayed(Attention):
    """Decays that depend on the input, from differences of their running sum."""

    def __init__(self):
        super().__init__()
        self.decay = variable([self.width // self.heads, 1], 12)

    def attend(self, query, key, value):
        log_decay = tf.cumsum(tf.math.log_sigmoid(value @ self.decay)[..., 0], axis=-1)
        scores = tf.matmul(query, key, transpose_b=True)
        scores *= tf.exp(tf.minimum(log_decay[..., :, None] - log_decay[..., None, :], 0.0))
        return tf.matmul(tf.linalg.band_part(scores, -1, 0), value)


class Linear(Attention):
    """Linear attention: the running sum of products of keys and values."""

    def attend(self, query, key, value):
        query, key = tf.nn.elu(query) + 1.0, tf.nn.elu(key) + 1.0
        state = tf.cumsum(key[..., :, None] * value[..., None, :], axis=2)
        total = tf.cumsum(key, axis=2)
        scale = tf.reduce_sum(query * total, -1, keepdims=True)
        return tf.einsum("bhtk,bhtkv->bhtv", query, state) / scale


class Exclusive(Attention):
    """The mean of all times before, an exclusive running sum over a count."""

    def attend(self, query, key, value):
        total = tf.cumsum(value, axis=2, exclusive=True)
        count = tf.cumsum(tf.ones_like(value[..., :1]), axis=2)
        return query * total / count


class Product(Attention):
    def attend(self, query, key, value):
        gate = tf.math.cumprod(1.0 - 0.1 * tf.sigmoid(key), axis=2)
        return gate * query + tf.math.cumulative_logsumexp(value, axis=2)


class Mixing(Attention):
    """A learned matrix over times, masked: no scores at all."""

    def __init__(self):
        super().__init__()
        self.mix = variable([LONGEST, LONGEST], 13, 0.2)

    def attend(self, query, key, value):
        time = tf.shape(value)[2]
        mix = tf.linalg.band_part(self.mix[:time, :time], -1, 0)
        return tf.matmul(mix, value) + query


class Shifted(Attention):
    """Embeddings that the network itself shifts by one."""

    def embed(self, tokens):
        h = super().embed(tokens)
        return tf.pad(h, [[0, 0], [1, 0], [0, 0]])[:, :-1] + 0.1


class Convolved(Attention):
    """A causal convolution before the queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.kernel = variable([3, self.width, self.width], 14)

    def embed(self, tokens):
        h = tf.pad(super().embed(tokens), [[0, 0], [4, 0], [0, 0]])
        return tf.nn.convolution(h, self.kernel, dilations=[2])


class Padded(Attention):
    """A mask of tokens, none of which is padding, joined with the causal one."""

    def __call__(self, tokens):
        self.present = tf.cast(tokens >= 0, tf.float32)
        return super().__call__(tokens)

    def masked(self, scores):
        time = tf.shape(scores)[-1]
        causal = tf.linalg.band_part(tf.ones([time, time]), -1, 0)
        mask = causal * self.present[:, None, None, :]
        return scores + (1.0 - mask) * -1e9


class Hidden(Padded):
    """Keys of one token are hidden, except from itself."""

    def __call__(self, tokens):
        self.present = tf.cast(tokens != 3, tf.float32)
        return Attention.__call__(self, tokens)

    def masked(self, scores):
        time = tf.shape(scores)[-1]
        return super().masked(scores) + tf.eye(time) * 0.5 * 1e9 * 0.0


class CrossShaped(Attention):
    def attend(self, query, key, value):
        query, key, value = (tf.cast(x, tf.bfloat16) for x in (query, key, value))
        return tf.cast(super().attend(query, key, value), tf.float32)

    def masked(self, scores):
        time = tf.range(tf.shape(scores)[-1])
        return tf.where(time[:, None] >= time, scores, tf.constant(-1e9, scores.dtype))


NETWORKS = {
    make.__name__: make
    for make in (
        mini_gpt, grouped_queries, dot_product, recurrent_and_attention, Attention, Rotary, Biased,
        KeyBiased, Relative, Sinusoidal, Learned, WhereMasked, BandPart, OwnSoftmax, TalkingHeads,
        Turned, MergedHeads, Windowed, BandWindow, Retention, Decayed, Linear, Exclusive, Product,
        Mixing, Shifted, Convolved, Padded, Hidden, CrossShaped,
    )
}  # fmt: skip
NETWORKS |= {name: lambda mask=mask: model(Masked(mask)) for name, mask in MASKS.items()}
SPEC = tf.TensorSpec([None, None], tf.int32)


def tokens(batch, time, seed=0):
    return tf.constant(np.random.default_rng(seed).integers(0, TOKENS, [batch, time]), tf.int32)
