"""Initial weights from one seed, with a separate random stream per variable."""

import math
from collections.abc import Sequence

import tensorflow as tf

from onepass.likelihoods import noise


class Initial:
    """A factory of variables; the n-th kernel depends only on the seed, n and its shape."""

    def __init__(self, seed: int) -> None:
        self._seed, self._drawn = seed, 0

    def kernel(self, shape: Sequence[int], name: str, gain: float = 1.0) -> tf.Variable:
        """Return normal numbers of variance gain^2 / fan-in, over all axes but the last."""
        self._drawn += 1
        size = math.prod(shape)
        draws = _normals(noise.as_key(self._seed), self._drawn, size)
        scale = gain / math.sqrt(math.prod(shape[:-1]))
        return tf.Variable(tf.reshape(draws, shape) * scale, name=name)

    def zeros(self, shape: Sequence[int], name: str) -> tf.Variable:
        """Return a variable of zeros."""
        return tf.Variable(tf.zeros(shape), name=name)


class ZeroInitial(Initial):
    """A factory of zero variables, for weights that will be read from a file."""

    def __init__(self) -> None:
        super().__init__(0)

    def kernel(self, shape: Sequence[int], name: str, gain: float = 1.0) -> tf.Variable:
        """See `Initial.kernel`; all are zeros."""
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
    """Return standard normals float32 [count]; traced once for all shapes, which saves time."""
    return noise.normal(noise.fold_in(key, number), [0], 0, count)[0, :, 0]
