"""Models of fifty networks as their users write them, for the test of everything done with one."""

import attention_networks
import causal_networks
import keras
import keras_attention
import numpy as np
import one_length_networks
import tensorflow as tf
import tensorflow_probability as tfp

from onepass.likelihoods import Bernoulli, Categorical, Integers, Linear, LogisticMixture
from onepass.model import Autoregressive

layers, ops = keras.layers, keras.ops
TOKENS, WIDTH = 12, 8
SPEC = tf.TensorSpec([None, None], tf.int32)


def of_network(block):
    """A language model of one residual block."""
    tokens = keras.Input([None], dtype="int32")
    h = layers.Embedding(TOKENS, WIDTH, embeddings_initializer="normal")(tokens)
    return of_tokens(keras.Model(tokens, layers.Dense(TOKENS)(block(h))), TOKENS)


def of_tokens(network, count):
    return Autoregressive(network, Categorical(count), codec=Integers(count), inputs=SPEC)


def of_waves(network, levels):
    """A model of sounds whose network has one output for each level."""
    return Autoregressive(network, Categorical(levels), codec=Linear(levels))


def attend(h):
    return h + layers.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True)


def recur(h):
    return layers.GRU(WIDTH, return_sequences=True)(h)


class RotaryBlock(layers.Layer):
    """Llama's block: root mean squares, rotary positions, a gated feed-forward network."""

    def __init__(self, is_complex=False):
        super().__init__()
        self.is_complex = is_complex
        self.norms = [layers.RMSNormalization() for _ in range(2)]
        self.query, self.key, self.value, self.join = (layers.Dense(WIDTH) for _ in range(4))
        self.gate, self.up = layers.Dense(16, activation="silu"), layers.Dense(16)
        self.down = layers.Dense(WIDTH)

    def turn(self, h):
        time = tf.range(tf.shape(h)[1], dtype=tf.float32)
        angles = time[:, None] * tf.constant([1.0, 0.1, 0.01, 0.001])
        even, odd = h[..., ::2], h[..., 1::2]
        if self.is_complex:
            turned = tf.complex(even, odd) * tf.exp(tf.complex(0.0, angles))
            pairs = tf.stack([tf.math.real(turned), tf.math.imag(turned)], -1)
        else:
            sine, cosine = tf.sin(angles), tf.cos(angles)
            pairs = tf.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
        return tf.reshape(pairs, tf.shape(h))

    def call(self, h):
        a = self.norms[0](h)
        scores = tf.matmul(self.turn(self.query(a)), self.turn(self.key(a)), transpose_b=True)
        time = tf.shape(h)[1]
        mask = tf.linalg.band_part(tf.ones([time, time], tf.bool), -1, 0)
        weights = tf.nn.softmax(tf.where(mask, scores / WIDTH**0.5, -1e9))
        h = h + self.join(tf.matmul(weights, self.value(a)))
        a = self.norms[1](h)
        return h + self.down(self.gate(a) * self.up(a))


class Experts(layers.Layer):
    """A mixture of four experts of which each time step takes the best, or the two best."""

    def __init__(self, count=1):
        super().__init__()
        self.count = count

    def build(self, shape):
        self.route = self.add_weight(shape=(shape[-1], 4), name="route")
        self.kernel = self.add_weight(shape=(4, shape[-1], shape[-1]), name="kernel")

    def call(self, h):
        odds = tf.nn.softmax(tf.tensordot(h, self.route, 1))
        every = tf.einsum("btc,ecd->bted", h, self.kernel)
        if self.count == 1:
            best = tf.argmax(odds, -1)[..., None]
            return (
                tf.gather(every, best, batch_dims=2)
                * tf.gather(odds, best, batch_dims=2)[..., None]
            )[..., 0, :]
        values, best = tf.math.top_k(odds, self.count)
        chosen = tf.one_hot(best, 4) * (values / tf.reduce_sum(values, -1, True))[..., None]
        return tf.einsum("btke,bted->btd", chosen, every)


class LongConvolution(layers.Layer):
    """A state space layer as S4D is trained: a convolution as long as the input, by FFT."""

    def build(self, shape):
        self.decay = self.add_weight(shape=(shape[-1],), initializer="normal")
        self.gain = self.add_weight(shape=(shape[-1],), initializer="normal")

    def call(self, h):
        time = tf.shape(h)[1]
        steps = tf.range(time, dtype=tf.float32)[None]
        kernel = self.gain[:, None] * tf.exp(-tf.nn.softplus(self.decay)[:, None] * steps)
        size = [2 * time]
        spectrum = tf.signal.rfft(tf.transpose(h, [0, 2, 1]), size) * tf.signal.rfft(kernel, size)
        convolved = tf.signal.irfft(spectrum, size)[..., :time]
        return h + tf.transpose(convolved, [0, 2, 1])


class LinearRecurrence(layers.Layer):
    """h_t = a_t h_(t-1) + b_t by an associative scan, as minGRU and Mamba are trained."""

    def __init__(self):
        super().__init__()
        self.decay, self.drive = layers.Dense(WIDTH, "sigmoid"), layers.Dense(WIDTH)

    def call(self, h):
        def join(first, second):
            return first[0] * second[0], first[1] * second[0] + second[1]

        parts = self.decay(h), self.drive(h)
        return tfp.math.scan_associative(join, parts, axis=1)[1]


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


class Running(layers.Layer):
    """A running mean, maximum or logarithm of a sum over the times so far."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, h):
        return h + self.function(h)


def running_mean(h):
    counts = tf.range(1, tf.shape(h)[1] + 1, dtype=tf.float32)
    return tf.cumsum(h, 1) / counts[:, None]


def running_logarithm(h):
    return tf.math.cumulative_logsumexp(h, 1)


class Sinusoids(layers.Layer):
    """A table of positions that is held as a constant tensor, not as a weight."""

    def __init__(self):
        super().__init__()
        rows = np.sin(np.arange(512)[:, None] / 10.0 ** np.arange(WIDTH))
        self.table = ops.convert_to_tensor(rows.astype(np.float32))

    def call(self, h):
        return h + self.table[: ops.shape(h)[1]]


class Convolved(layers.Layer):
    """A conformer's module of convolution: gated, depthwise, normalised."""

    def __init__(self):
        super().__init__()
        self.front, self.back = layers.Dense(2 * WIDTH), layers.Dense(WIDTH)
        self.deep = layers.DepthwiseConv1D(3)
        self.norm = layers.BatchNormalization()

    def call(self, h):
        values, gates = tf.split(self.front(h), 2, -1)
        a = tf.pad(values * tf.sigmoid(gates), [[0, 0], [2, 0], [0, 0]])
        return h + self.back(tf.nn.silu(self.norm(self.deep(a))))


class Mixed(layers.Layer):
    """RWKV's mix of a time step and the one before it, with squared rectifiers."""

    def __init__(self):
        super().__init__()
        self.key, self.value, self.gate = layers.Dense(16), layers.Dense(WIDTH), layers.Dense(WIDTH)

    def build(self, shape):
        self.share = self.add_weight(shape=(shape[-1],), initializer="normal")

    def call(self, h):
        before = tf.pad(h, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        mixed = h + (before - h) * self.share
        return h + tf.sigmoid(self.gate(mixed)) * self.value(tf.nn.relu(self.key(mixed)) ** 2)


class Traced(layers.Layer):
    """A recurrence inside a `tf.function`."""

    def build(self, shape):
        self.inner = layers.GRU(WIDTH, return_sequences=True)
        self.inner.build(shape)

    @tf.function(autograph=False)
    def run(self, h):
        return self.inner(h)

    def call(self, h):
        return self.run(h)


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


def of_forbidden():
    """A GRU whose fourth token is forbidden by a logit of minus infinity."""
    mask = np.where(np.arange(TOKENS) == 3, -np.inf, 0.0).astype(np.float32)
    tokens = keras.Input([None], dtype="int32")
    h = recur(layers.Embedding(TOKENS, WIDTH)(tokens))
    return of_tokens(keras.Model(tokens, layers.Dense(TOKENS)(h) + mask), TOKENS)


def of_policy(policy, layer):
    """A model of sounds under a policy of mixed precision."""
    waves = keras.Input([None, 1])
    h = layers.Conv1D(WIDTH, 2, padding="causal", dtype=policy)(waves)
    h = layer(policy)(h)
    return of_waves(keras.Model(waves, layers.Dense(8, dtype="float32")(h)), 8)


class PolicyAttention(layers.Layer):
    """Attention of a layer with a policy."""

    def __init__(self, policy):
        super().__init__(dtype=policy)
        self.attend = layers.MultiHeadAttention(2, 4, dtype=policy)

    def call(self, h):
        return h + self.attend(h, h, use_causal_mask=True)


def of_u_net():
    """A network of two rates: every second time step is computed at half of the rate."""
    waves = keras.Input([None, 1])
    h = layers.Conv1D(WIDTH, 2, padding="causal", activation="tanh")(waves)
    slow = layers.ZeroPadding1D((2, 0))(h)[:, :-1]
    slow = layers.Conv1D(WIDTH, 2, strides=2, activation="tanh")(slow)
    h = h + layers.UpSampling1D(2)(slow)
    return of_waves(keras.Model(waves, layers.Dense(8)(h)), 8)


def of_quantized():
    model = of_network(lambda h: recur(layers.Dense(WIDTH, activation="relu", name="exact")(h)))
    model.network.get_layer("exact").quantize("int8")
    return of_tokens(model.network, TOKENS)


def of_lora():
    model = of_network(lambda h: recur(layers.Dense(WIDTH, activation="relu", name="adapted")(h)))
    model.network.get_layer("adapted").enable_lora(2)
    return of_tokens(model.network, TOKENS)


def of_receptive():
    return Autoregressive(causal_networks.Receptive(), Bernoulli(), codec=Linear(2))


def of_mixture():
    network = causal_networks.convolved(1, 6, attention=True)
    return Autoregressive(network, LogisticMixture(levels=64, components=2))


WAVES = {
    "dilated_functional": 5, "sequential": 3, "Gated": 3, "Padded": 4, "Chomped": 4, "gru": 4,
    "lstm_after_convolution": 2, "shifted_gru": 3, "stacked_cells": 2, "separable": 8, "grouped": 4,
    "normalised": 4, "scanned": 2, "nested": 4, "half_precision": 4, "einsum": 6, "delayed_sum": 2,
    "taps": 2,
}  # fmt: skip
ATTENTION = (
    *("Rotary", "Biased", "Relative", "Learned", "Windowed", "Retention", "Linear", "Product"),
    *("Convolved", "mini_gpt", "grouped_queries", "sliding_window", "recurrent_and_attention"),
)
MODELS = {
    **{
        name: lambda name=name: of_waves(causal_networks.CAUSAL[name](), WAVES[name])
        for name in WAVES
    },
    **{
        name: lambda name=name: of_tokens(
            getattr(attention_networks, name)(), keras_attention.TOKENS
        )
        for name in ATTENTION
    },
    "Receptive": of_receptive,
    "mixture and attention": of_mixture,
    "one length, tokens": lambda: of_tokens(one_length_networks.gpt(), one_length_networks.LEVELS),
    "one length, waves": lambda: of_waves(
        one_length_networks.wavenet(), one_length_networks.LEVELS
    ),
    "skewed scores": lambda: of_waves(causal_networks.skewed_attention(4, 4), 4),
    "llama": lambda: of_network(RotaryBlock()),
    "complex rotary": lambda: of_network(RotaryBlock(is_complex=True)),
    "best expert": lambda: of_network(lambda h: recur(h + Experts()(h))),
    "two best experts": lambda: of_network(lambda h: attend(h + Experts(2)(h))),
    "long convolution": lambda: of_network(LongConvolution()),
    "associative scan": lambda: of_network(LinearRecurrence()),
    "selective scan": lambda: of_network(SelectiveScan()),
    "conformer": lambda: of_network(lambda h: Convolved()(attend(h))),
    "time mix": lambda: of_network(Mixed()),
    "time distributed": lambda: of_network(
        lambda h: layers.TimeDistributed(layers.Dense(WIDTH, activation="tanh"))(recur(h))
    ),
    "dot attention": lambda: of_network(
        lambda h: h + layers.Attention()([h, h], use_causal_mask=True)
    ),
    "additive attention": lambda: of_network(
        lambda h: h + layers.AdditiveAttention()([h, h], use_causal_mask=True)
    ),
    "running mean": lambda: of_network(Running(running_mean)),
    "running logarithm": lambda: of_network(Running(running_logarithm)),
    "constant table": lambda: of_network(lambda h: recur(Sinusoids()(h))),
    "attention and gru": lambda: of_network(lambda h: recur(attend(h))),
    "traced function": lambda: of_network(lambda h: Traced()(h)),
    "recomputed activations": lambda: of_network(lambda h: Recomputed()(h)),
    "gradient of its own": lambda: of_network(Running(lambda h: steep(tf.tanh(h)))),
    "forbidden token": of_forbidden,
    "bfloat16 gru": lambda: of_policy(
        "mixed_bfloat16", lambda policy: layers.GRU(WIDTH, return_sequences=True, dtype=policy)
    ),
    "bfloat16 attention": lambda: of_policy("mixed_bfloat16", PolicyAttention),
    "float16 attention": lambda: of_policy("mixed_float16", PolicyAttention),
    "two rates": of_u_net,
    "int8": of_quantized,
    "lora": of_lora,
}


def model(name):
    """A model whose weights are the same in every process."""
    keras.utils.set_random_seed(1)
    return MODELS[name]()
