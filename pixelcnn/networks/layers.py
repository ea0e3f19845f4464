"""Products with weights, in the precision of what they are applied to."""

import tensorflow as tf


def convolved(x, kernel, strides=1):
    """The convolution without padding of x [batch, height, width, channels], in x's dtype."""
    return tf.nn.conv2d(x, cast_like(kernel, x), strides, "VALID")


def matmul(x, kernel):
    """x [..., inputs] times a kernel [inputs, outputs], in x's dtype."""
    # Flat: the batched product of oneDNN corrupts the heap for some [batch, 1, width, few].
    rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), cast_like(kernel, x))
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [kernel.shape[-1]]], 0))


def cast_like(variable, x):
    """The variable in x's dtype."""
    return tf.cast(variable, x.dtype)
