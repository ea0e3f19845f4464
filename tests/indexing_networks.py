"""Causal networks of [batch, time, 4] that choose, place and turn entries of every time step."""

import keras
import numpy as np
import tensorflow as tf
from causal_networks import returned

layers = keras.layers
SPEC = tf.TensorSpec([None, None, 4])


def variable(*shape, seed=1):
    return tf.Variable(tf.random.stateless_normal(shape, [seed, 2]))


def experts():
    """A mixture of experts: the best one of each time step is gathered."""
    route, kernel = variable(4, 3), variable(3, 4, 4, seed=2)

    def network(x):
        shares = tf.nn.softmax(tf.tensordot(x, route, 1))
        best = tf.argmax(shares, -1)[..., None]
        every = tf.einsum("btc,ecd->bted", x, kernel)
        chosen = tf.gather(every, best, batch_dims=2)[..., 0, :]
        return chosen * tf.gather(shares, best, batch_dims=2)

    return network


def top_experts():
    """The two best experts, routed by a convolution."""
    kernel, route = variable(3, 4, 4), variable(2, 4, 3, seed=2)

    def network(x):
        scores = tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), route, 1, "VALID")
        values, places = tf.math.top_k(scores, 2)
        every = tf.einsum("btc,ecd->bted", x, kernel)
        return tf.einsum("btkd,btk->btd", tf.gather(every, places, batch_dims=2), values)

    return network


@returned
def delayed_choice(x):
    """Entries of the time step two before, chosen by the present one."""
    late = tf.pad(x, [[0, 0], [2, 0], [0, 0]])[:, :-2]
    return tf.gather(late, tf.argsort(x)[..., :2], batch_dims=2)


@returned
def merged_choice(x):
    """Batch and time as one axis, as an embedding bag has them."""
    flat = tf.reshape(x, [-1, 4])
    chosen = tf.gather(flat, tf.argmin(flat, -1)[:, None], batch_dims=1)
    return tf.reshape(chosen, [tf.shape(x)[0], tf.shape(x)[1], 1]) - x


@returned
def sorted_entries(x):
    return keras.ops.take_along_axis(x, keras.ops.argsort(-x, -1), -1) + tf.sort(x)


def _numbers(places):
    """The indices of the batch and of time before places [batch, time, ...]."""
    shape = tf.shape(places)
    batch, time = (tf.range(shape[axis]) for axis in range(2))
    ones = [1] * (places.shape.rank - 2)
    batch, time = tf.reshape(batch, [-1, 1, *ones]), tf.reshape(time, [1, -1, *ones])
    return tf.stack([tf.broadcast_to(x, shape) for x in (batch, time)] + [places], -1)


@returned
def numbered_choice(x):
    return tf.gather_nd(x, _numbers(tf.argmax(x, -1, tf.int32)))[..., None] + x


@returned
def batched_choice(x):
    best = tf.argmax(x, -1, output_type=tf.int32)[..., None]
    return tf.gather_nd(x, best, batch_dims=2)[..., None] * x


@returned
def scattered(x):
    """The largest entries at their places, and zeros elsewhere."""
    values, places = tf.math.top_k(x, 2)
    return tf.scatter_nd(_numbers(places), values, tf.shape(x))


@returned
def updated(x):
    index = _numbers(tf.argmax(x, -1, tf.int32))
    late = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
    return tf.tensor_scatter_nd_add(x, index, late[..., 0])


@returned
def updated_channels(x):
    turned = tf.transpose(x, [2, 0, 1])
    turned = tf.tensor_scatter_nd_update(turned, [[0], [2]], turned[1:3] * 2.0)
    scattered = tf.scatter_nd([[1]], turned[:1], tf.shape(turned))
    return tf.transpose(turned + scattered, [1, 2, 0])


@returned
def turned_channels(x):
    chosen = tf.one_hot(tf.argmax(x, -1), 4)
    h = tf.cumsum(x, -1, exclusive=True) + tf.roll(x, 1, -1) * x[..., ::-1]
    h = tf.where(x > 0.0, tf.reverse(h, [-1]), chosen)
    return tf.ensure_shape(h, x.shape)


@returned
def random_features(x):
    """The same random numbers in every call."""
    return x @ tf.random.stateless_normal([4, 3], [1, 2])


@returned
def complex_rotation(x):
    """Rotary positions as published, of complex numbers."""
    time = tf.cast(tf.range(tf.shape(x)[1]), tf.float32)
    angle = time[:, None] * tf.constant([1.0, 0.1])
    turn = tf.complex(tf.cos(angle), tf.sin(angle))
    z = tf.complex(x[..., :2], x[..., 2:]) * turn
    return tf.concat([tf.math.real(z), tf.math.imag(z)], -1)


@returned
def complex_parts(x):
    angle = tf.cast(tf.range(tf.shape(x)[1]), tf.float32)[:, None]
    z = tf.complex(x[..., :2], x[..., 2:]) * tf.exp(tf.complex(0.0 * angle, angle))
    z = tf.signal.ifft(tf.math.conj(z) * tf.signal.fft(z))
    return tf.concat([tf.abs(z), tf.math.angle(z + 3.0)], -1)


def keras_model(layer, *more):
    inputs = keras.Input([None, 4])
    h = layer(inputs)
    for each in more:
        h = each(h)
    return keras.Model(inputs, h)


def of_every_time():
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([layers.Conv1D(3, 2, activation="tanh"), layers.Flatten()])
    parts = [layers.Reshape([-1, 4, 1]), layers.TimeDistributed(inner)]
    return keras_model(*parts, layers.Dense(5))


def loop_over_rows():
    """A Python loop over time without a state."""
    kernel = variable(4, 4)

    def network(x):
        late = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        rows = zip(tf.unstack(late, axis=1), range(x.shape[1]), strict=True)
        return tf.stack([tf.tanh(row @ kernel) * x[:, t] for row, t in rows], 1)

    return network


def associative_scan():
    """A gated recurrence whose scan halves the sequence, and a scan over channels."""
    import tensorflow_probability as tfp

    def join(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    def network(x):
        states = tfp.math.scan_associative(join, (tf.sigmoid(x), x), axis=1)[1]
        return states + tfp.math.scan_associative(tf.maximum, x, axis=2)

    return network


def _attention(layer):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([None, 4])
    query, value = layers.Dense(4)(inputs), layers.Dense(4)(inputs)
    return keras.Model(inputs, layer([query, value], use_causal_mask=True))


def attention():
    return _attention(layers.Attention(use_scale=True))


def attention_of_sums():
    return _attention(layers.Attention(score_mode="concat"))


def additive_attention():
    return _attention(layers.AdditiveAttention())


NETWORKS = {
    make.__name__: make
    for make in (
        experts, top_experts, delayed_choice, merged_choice, sorted_entries, numbered_choice,
        batched_choice, scattered, updated, updated_channels, turned_channels, random_features,
        complex_rotation, complex_parts, of_every_time, loop_over_rows, associative_scan, attention,
        attention_of_sums, additive_attention,
    )
}  # fmt: skip
# What the step machine leaves to XLA.
LEFT_TO_XLA = {
    "scattered": "ScatterNd",
    "updated": "TensorScatterAdd",
    "updated_channels": "ScatterNd",
    "complex_rotation": "complex64",
    "complex_parts": "complex64",
}


@returned
def convolved_by_fft(x):
    """A long convolution by the Fourier transform, as state-space layers have it."""
    time = tf.shape(x)[1]
    kernel = tf.exp(-0.1 * tf.cast(tf.range(time), tf.float32))
    rows = tf.transpose(x, [0, 2, 1])
    spectrum = tf.signal.rfft(rows, [2 * time]) * tf.signal.rfft(kernel, [2 * time])
    return tf.transpose(tf.signal.irfft(spectrum, [2 * time])[..., :time], [0, 2, 1])


def masked_kernel():
    """A kernel over later time steps too, whose weights for these are zero."""
    mask = np.array([1.0, 1.0, 0.0], np.float32)[:, None, None]
    kernel = variable(3, 4, 4)
    return lambda x: tf.nn.conv1d(x, kernel * mask, 1, "SAME")


@returned
def masked_mean(x):
    time = tf.shape(x)[1]
    mask = tf.linalg.band_part(tf.ones([time, time]), -1, 0)
    mean = tf.reduce_mean(x[:, None] * mask[None, :, :, None], 2)
    return mean * tf.cast(time, tf.float32) / tf.cast(tf.range(1, time + 1), x.dtype)[:, None]


@returned
def delayed_by_index(x):
    return tf.gather(x, tf.maximum(tf.range(tf.shape(x)[1]) - 2, 0), axis=1)


@returned
def closed_gate(x):
    return x + 0.0 * tf.reduce_mean(x, 1, keepdims=True)


@returned
def reversed_twice(x):
    return tf.reverse(tf.cumsum(tf.reverse(x, [1]), 1, reverse=True), [1])


@returned
def softmax_of_past(x):
    """A softmax over time, of which the mask leaves the past."""
    time = tf.shape(x)[1]
    scores = tf.repeat(x[..., 0][:, None], time, 1)
    scores = tf.where(tf.linalg.band_part(tf.ones([time, time]), -1, 0) > 0, scores, -1e9)
    return tf.nn.softmax(tf.transpose(scores, [0, 2, 1]), 1)[:, 0, :, None] + x


@returned
def of_positions_alone(x):
    time = tf.cast(tf.range(tf.shape(x)[1]), tf.float32)
    return tf.zeros_like(x) + tf.sin(time)[:, None]


# Causal networks in which a rule, taken alone, would see all of time or later rows.
WITHOUT_STEP = {
    make.__name__: make
    for make in (
        convolved_by_fft, masked_kernel, masked_mean, delayed_by_index, closed_gate, reversed_twice,
        of_positions_alone, softmax_of_past,
    )
}  # fmt: skip
