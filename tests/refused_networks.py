"""Networks of users that are not causal, or have no step, and what is said of each."""

import keras
import tensorflow as tf
from causal_networks import returned, skewed_attention, wave_network

layers = keras.layers


def functional(*stack):
    front = layers.Conv1D(4, 2, padding="causal", name="front")
    return wave_network(front, *stack, layers.Dense(2))


def attention():
    return skewed_attention(1, 4)


@returned
def length_scaled(x):
    with tf.name_scope("scaled"):
        return x / tf.cast(tf.shape(x)[1], tf.float32)


@returned
def time_softmax(x):
    with tf.name_scope("spread"):
        return tf.nn.softmax(x[..., 0])[..., None]


@returned
def reversed_time(x):
    with tf.name_scope("backwards"):
        return tf.reverse(x, [1])


@returned
def shifted_left(x):
    with tf.name_scope("next"):
        return tf.pad(x[:, 2:], [[0, 0], [0, 2], [0, 0]])


@returned
def rolled(x):
    with tf.name_scope("roll"):
        return tf.roll(x, 1, 1)


@returned
def unrolled(x):
    total, rows = 0.0, []
    for t in range(x.shape[1]):
        total = 0.5 * total + x[:, t]
        rows.append(total)
    return tf.stack(rows, 1)


@returned
def first_repeated(x):
    with tf.name_scope("edge"):
        return x - tf.concat([x[:, :1], x[:, :-1]], 1)


@returned
def last_subtracted(x):
    with tf.name_scope("last"):
        return x - x[:, -1:]


@returned
def noisy(x):
    with tf.name_scope("noise"):
        return x + tf.random.normal(tf.shape(x))


def repeated():
    return functional(layers.UpSampling1D(2, name="up"))


def convolved(name, width=3, **options):
    return lambda: functional(layers.Conv1D(4, width, name=name, **options))


# What is refused, with the text that the message must have.
REFUSED = {
    "dilated_future": (
        convolved("blur", padding="same", dilation_rate=2),
        "blur pads on both sides: output t depends on input t [+] 2",
    ),
    "shortened": (
        convolved("short", padding="valid"),
        "short drops the first 2 of its rows: the output must be as long as the input",
    ),
    "strided": (
        convolved("stride", 2, strides=2, padding="causal"),
        "stride changes the rate of time",
    ),
    "repeated": (repeated, "up gives the output a rate or order other than"),
    "attention": (attention, "attend: no step for"),
    "length_scaled": (length_scaled, "scaled depends on the length"),
    "time_softmax": (time_softmax, "spread mixes all time steps"),
    "reversed_time": (reversed_time, "backwards"),
    "shifted_left": (shifted_left, "next .*output t depends on input t [+] 2"),
    "rolled": (rolled, "roll"),
    "unrolled": (unrolled, "has different operations for a longer input"),
    "first_repeated": (first_repeated, "edge reads fixed time steps"),
    "last_subtracted": (last_subtracted, "last reads fixed time steps"),
    "noisy": (noisy, "noise/random_normal draws random numbers of its own"),
}
