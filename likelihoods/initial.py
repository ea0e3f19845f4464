"""Initial weights: drawn from one seed, each variable from its own stream."""

import math

import tensorflow as tf

from likelihoods import noise


class Initial:
    """Makes variables; the n-th kernel drawn depends on the seed, n and its shape alone."""

    def __init__(self, seed: int):
        self._seed, self._drawn = seed, 0

    def kernel(self, shape, name: str, gain: float = 1.0) -> tf.Variable:
        """A normal variable of variance gain^2 / fan-in, the fan-in being all axes but the last."""
        self._drawn += 1
        size = math.prod(shape)
        draws = _normals(noise.as_key(self._seed), self._drawn, size)
        scale = gain / math.sqrt(math.prod(shape[:-1]))
        return tf.Variable(tf.reshape(draws, shape) * scale, name=name)

    def zeros(self, shape, name: str) -> tf.Variable:
        """A variable of zeros."""
        return tf.Variable(tf.zeros(shape), name=name)


class ZeroInitial(Initial):
    """Makes variables of zeros, for weights that are about to be read from a file."""

    def __init__(self):
        super().__init__(0)

    def kernel(self, shape, name: str, gain: float = 1.0) -> tf.Variable:
        """A variable of zeros, as `zeros` makes."""
        return self.zeros(shape, name)


@tf.function(
    autograph=False,
    input_signature=[
        tf.TensorSpec([2], tf.uint32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([], tf.int32),
    ],
)
def _normals(key: tf.Tensor, number: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """float32 [count] standard normals, traced once: the cipher has over a hundred operations."""
    return noise.normal(noise.fold_in(key, number), [0], 0, count)[0, :, 0]
