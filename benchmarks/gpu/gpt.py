"""A GPT in Keras, with tied embeddings, of any size; weights start as zeros, which draw nothing."""

import keras


class Tokens(keras.layers.Layer):
    """The sum of a token's vector and its position's.

    Args:
      vocabulary: number of tokens.
      width: channels.
      length: number of positions.
    """

    def __init__(self, vocabulary: int, width: int, length: int, **options):
        super().__init__(**options)
        self.table = self.add_weight(shape=(vocabulary, width), initializer="zeros", name="table")
        self.places = self.add_weight(shape=(length, width), initializer="zeros", name="places")

    def call(self, tokens):
        """Return float32 [batch, time, width] of tokens int32 [batch, time]."""
        places = keras.ops.arange(keras.ops.shape(tokens)[1])
        return keras.ops.take(self.table, tokens, 0) + keras.ops.take(self.places, places, 0)


class Logits(keras.layers.Layer):
    """The product with the transposed table of tokens, [batch, time, vocabulary]."""

    def __init__(self, tokens: Tokens, **options):
        super().__init__(**options)
        self.tokens = tokens

    def call(self, hidden):
        """Return the logits of every token."""
        return keras.ops.matmul(hidden, keras.ops.transpose(self.tokens.table))


def gpt(layers: int, width: int, heads: int, vocabulary: int, length: int) -> keras.Model:
    """Return a network as GPT-2's, from int32 [batch, time] to logits [batch, time, vocabulary]."""
    dense = keras.layers.Dense
    inputs = keras.Input([None], dtype="int32")
    tokens = Tokens(vocabulary, width, length)
    hidden = tokens(inputs)
    for _ in range(layers):
        read = keras.layers.LayerNormalization(epsilon=1e-5)(hidden)
        attention = keras.layers.MultiHeadAttention(
            heads, width // heads, kernel_initializer="zeros"
        )
        hidden = hidden + attention(read, read, use_causal_mask=True)
        read = keras.layers.LayerNormalization(epsilon=1e-5)(hidden)
        inner = dense(4 * width, kernel_initializer="zeros")(read)
        # GPT-2's approximation by tanh; the exact one, by erf, has no portable form.
        inner = keras.ops.gelu(inner, approximate=True)
        hidden = hidden + dense(width, kernel_initializer="zeros")(inner)
    hidden = keras.layers.LayerNormalization(epsilon=1e-5)(hidden)
    return keras.Model(inputs, Logits(tokens)(hidden))
