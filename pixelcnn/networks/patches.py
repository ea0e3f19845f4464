"""Square patches of an image, one after another along the batch."""

import tensorflow as tf


def cut(image, side: int):
    """The patches [batch * patches, side, side, channels] of [batch, height, width, channels].

    Height and width are multiples of `side`.
    """
    shape, channels = tf.shape(image), image.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(image, [shape[0], rows, side, columns, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), [-1, side, side, channels])


def paste(patches, shape):
    """The image of a shape [4] that `cut` cut; undoes it."""
    side, channels = patches.shape[1], patches.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(patches, [shape[0], rows, columns, side, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), shape)
