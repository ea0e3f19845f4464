"""Networks of users that are not causal, or have no step, and what is said of each."""

import keras
import tensorflow as tf
from causal_networks import skewed_attention

layers = keras.layers


def functional(*stack):
    """A functional model of a convolution, the layers, and a dense one."""
    inputs = keras.Input([None, 1])
    h = layers.Conv1D(4, 2, padding="causal", name="front")(inputs)
    for layer in stack:
        h = layer(h)
    return keras.Model(inputs, layers.Dense(2)(h))


def future():
    return functional(layers.Conv1D(4, 3, padding="same", name="blur"))


def dilated_future():
    return functional(layers.Conv1D(4, 3, padding="same", dilation_rate=2, name="blur"))


def shortened():
    return functional(layers.Conv1D(4, 3, padding="valid", name="short"))


def strided():
    return functional(layers.Conv1D(4, 2, strides=2, padding="causal", name="stride"))


def repeated():
    return functional(layers.UpSampling1D(2, name="up"))


def pooled():
    return functional(layers.AveragePooling1D(2, strides=1, padding="same", name="pool"))


def bidirectional():
    return functional(layers.Bidirectional(layers.GRU(2, return_sequences=True), name="both"))


def attention():
    return skewed_attention(1, 4)


def squeezed():
    inputs = keras.Input([None, 4])
    mean = layers.GlobalAveragePooling1D(keepdims=True, name="mean")(inputs)
    return keras.Model(inputs, layers.Multiply()([inputs, mean]))


def group_normalised():
    return functional(layers.GroupNormalization(1, name="group"))


class Dropping(keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.out = layers.Dropout(0.5, name="drop"), layers.Dense(2)

    def call(self, inputs):
        return self.out(self.drop(inputs, training=True))


class Training(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalise, self.out = layers.BatchNormalization(name="norm"), layers.Dense(2)

    def call(self, inputs):
        return self.out(self.normalise(inputs, training=True))


class Positions(tf.Module):
    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.zeros([200, 1]))

    def __call__(self, x):
        with tf.name_scope("positions"):
            return x + self.table[: x.shape[1]]


def length_scaled():
    def network(x):
        with tf.name_scope("scaled"):
            return x / tf.cast(tf.shape(x)[1], tf.float32)

    return network


def time_softmax():
    def network(x):
        with tf.name_scope("spread"):
            return tf.nn.softmax(x[..., 0])[..., None]

    return network


def reversed_time():
    def network(x):
        with tf.name_scope("backwards"):
            return tf.reverse(x, [1])

    return network


def shifted_left():
    def network(x):
        with tf.name_scope("next"):
            return tf.pad(x[:, 2:], [[0, 0], [0, 2], [0, 0]])

    return network


def rolled():
    def network(x):
        with tf.name_scope("roll"):
            return tf.roll(x, 1, 1)

    return network


def unrolled():
    def network(x):
        total, rows = 0.0, []
        for t in range(x.shape[1]):
            total = 0.5 * total + x[:, t]
            rows.append(total)
        return tf.stack(rows, 1)

    return network


def first_repeated():
    def network(x):
        with tf.name_scope("edge"):
            return x - tf.concat([x[:, :1], x[:, :-1]], 1)

    return network


def last_subtracted():
    def network(x):
        with tf.name_scope("last"):
            return x - x[:, -1:]

    return network


def noisy():
    def network(x):
        with tf.name_scope("noise"):
            return x + tf.random.normal(tf.shape(x))

    return network


# What is refused, with the text that the message must have.
REFUSED = {
    future: "blur pads on both sides: output t depends on input t [+] 1",
    dilated_future: "blur pads on both sides: output t depends on input t [+] 2",
    shortened: "short drops the first 2 of its rows: the output must be as long as the input",
    strided: "stride changes the rate of time",
    repeated: "up gives the output a rate or order other than",
    pooled: "pool",
    bidirectional: "both|backward",
    attention: "attend: no step for",
    squeezed: "mean reads all of the sequence at once",
    group_normalised: "group reads all of the sequence at once",
    Dropping: "drop draws random numbers of its own",
    Training: "norm",
    length_scaled: "scaled depends on the length",
    time_softmax: "spread mixes all time steps",
    reversed_time: "backwards",
    shifted_left: "next .*output t depends on input t [+] 2",
    rolled: "roll",
    unrolled: "has different operations for a longer input",
    first_repeated: "edge reads fixed time steps",
    last_subtracted: "last reads fixed time steps",
    noisy: "noise/random_normal draws random numbers of its own",
}
