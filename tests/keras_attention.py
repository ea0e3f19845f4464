"""Language models of Keras layers with attention, as their users write them."""

import keras

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
    """Attention of Keras with a mask that the network makes itself."""

    def __init__(self, mask):
        super().__init__()
        self.attend, self.mask = layers.MultiHeadAttention(HEADS, 4), mask

    def call(self, h):
        return self.attend(h, h, attention_mask=self.mask(ops.shape(h)[1]))


def explicit_mask():
    def mask(time):
        return ops.arange(time)[None, :, None] >= ops.arange(time)[None, None, :]

    return model(Masked(mask))


def triangular_mask():
    return model(Masked(lambda time: ops.tril(ops.ones([1, time, time], "bool"))))


def mask_by_cumsum():
    def mask(time):
        row = ops.cumsum(ops.ones([time, time], "int32"), 0)
        return (row >= ops.cumsum(ops.ones([time, time], "int32"), 1))[None]

    return model(Masked(mask))


def sliding_window(window=20):
    def mask(time):
        distance = ops.arange(time)[:, None] - ops.arange(time)[None]
        return ((distance >= 0) & (distance < window))[None]

    return model(Masked(mask), count=2)


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
