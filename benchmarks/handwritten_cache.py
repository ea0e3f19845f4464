"""A GPT sampled by a `tf.while_loop` with keys and values kept for every layer, written by hand.

What one writes for one network, for comparison with the step that the library derives from it.
"""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

BEFORE_FIRST_DIVISOR = 2  # the token before the first is the middle one


class HandwrittenCache:
    """Greedy tokens of the network that `benchmarks.gpu.gpt.gpt` returns, compiled by XLA.

    Args:
      network: the network.
    """

    def __init__(self, network: keras.Model):
        kinds: dict[str, list[Any]] = {}
        for layer in network.layers:
            kinds.setdefault(type(layer).__name__, []).append(layer)
        (self._tokens,) = kinds["Tokens"]
        self._norms, self._dense = kinds["LayerNormalization"], kinds["Dense"]
        self._attention = kinds["MultiHeadAttention"]
        self.tokens = tf.function(self._tokens_of, jit_compile=True, autograph=False)

    def _tokens_of(self, batch: int, count: int) -> tf.Tensor:
        """Return int32 [batch, count]."""
        heads, width = self._attention[0].num_heads, self._attention[0].key_dim
        empty = [tf.zeros([batch, heads, count, width]) for _ in self._attention]
        vocabulary = self._tokens.table.shape[0]
        token = tf.fill([batch], vocabulary // BEFORE_FIRST_DIVISOR)
        drawn = tf.TensorArray(tf.int32, count, element_shape=[batch])

        def body(t, token, keys, values, drawn):
            logits, keys, values = self._step(t, token, keys, values, count)
            token = tf.argmax(logits, -1, output_type=tf.int32)
            return t + 1, token, keys, values, drawn.write(t, token)

        loop = (tf.constant(0), token, empty, empty, drawn)
        return tf.transpose(tf.while_loop(lambda t, *_: t < count, body, loop)[-1].stack())

    def _step(self, t, token, keys, values, count):
        hidden = tf.gather(self._tokens.table, token) + self._tokens.places[t]
        keys, values = list(keys), list(values)
        norms = iter(self._norms)
        is_past = tf.range(count) <= t
        for i, attention in enumerate(self._attention):
            read = _normalised(next(norms), hidden)
            query, key, value = (
                tf.einsum("bd,dhe->bhe", read, dense.kernel) + dense.bias
                for dense in (attention._query_dense, attention._key_dense, attention._value_dense)
            )
            place = [0, 0, t, 0]
            keys[i] = _updated(keys[i], key[:, :, None], place)
            values[i] = _updated(values[i], value[:, :, None], place)
            scores = tf.einsum("bhe,bhte->bht", query, keys[i]) * attention.key_dim**-0.5
            odds = tf.nn.softmax(tf.where(is_past, scores, float("-inf")))
            mixed = tf.einsum("bht,bhte->bhe", odds, values[i])
            out = attention._output_dense
            hidden += tf.einsum("bhe,hed->bd", mixed, out.kernel) + out.bias
            first, second = self._dense[2 * i : 2 * i + 2]
            read = _normalised(next(norms), hidden)
            inner = tf.nn.gelu(tf.matmul(read, first.kernel) + first.bias, approximate=True)
            hidden += tf.matmul(inner, second.kernel) + second.bias
        read = _normalised(next(norms), hidden)
        return tf.matmul(read, self._tokens.table, transpose_b=True), keys, values


def _normalised(layer: Any, hidden: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(hidden, -1, keepdims=True)
    scale = layer.gamma * tf.math.rsqrt(variance + layer.epsilon)
    return (hidden - mean) * scale + layer.beta


def _updated(cache: tf.Tensor, now: tf.Tensor, place: list[Any]) -> tf.Tensor:
    return xla.dynamic_update_slice(cache, now, tf.stack(place))
