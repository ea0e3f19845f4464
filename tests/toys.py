"""A model of four weights, to see what training does with it."""

import numpy as np
import tensorflow as tf


class Line(tf.Module):
    """y = slope x + offset."""

    def __init__(self):
        super().__init__()
        self.slope = tf.Variable([0.5, -1.0, 2.0])
        self.offset = tf.Variable(0.25)

    def loss(self, batch):
        predicted = tf.linalg.matvec(batch["x"], self.slope) + self.offset
        value = tf.reduce_mean(tf.square(predicted - batch["y"]))
        return value, {"root": tf.sqrt(value)}


def line_batch(number):
    """Batch `number` of points near the line y = x1 + 2 x2 + 3 x3."""
    draws = np.random.default_rng(number)
    x = draws.normal(size=(8, 3)).astype(np.float32)
    y = (x @ [1.0, 2.0, 3.0] + 0.1 * draws.normal(size=8)).astype(np.float32)
    return {"x": tf.constant(x), "y": tf.constant(y)}
