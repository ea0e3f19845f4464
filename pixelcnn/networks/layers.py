"""Linear layers, and the precision and dropout of a network's forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from onepass.likelihoods.initial import Initial


class BatchSlice(NamedTuple):
    """The slice of a batch on a replica: index `number`, int32 [], of `shares` equal slices."""

    number: tf.Tensor
    shares: int


class Mode(NamedTuple):
    """Precision and dropout of a forward pass.

    Attributes:
      share: this replica's slice of the batch, which selects a slice of the dropout mask; None: the
        whole batch.
    """

    dtype: tf.DType = tf.float32
    seed: tf.Tensor | None = None
    share: BatchSlice | None = None
    linear: tf.DType | None = None

    def for_prediction(self, x: tf.Tensor) -> tf.Tensor:
        """Cast the input of a linear prediction to the type `linear`."""
        return x if self.linear is None else tf.cast(x, self.linear)

    def dropout(self, units: tf.Tensor, rate: float, place: int) -> tf.Tensor:
        """Return the units after dropout; unchanged if there is no seed or the rate is 0.

        `place` is an index that differs between layers, so that their masks differ. Masks are drawn
        by TensorFlow's generator, since they need not be the same on every device.
        """
        if self.seed is None or not rate:
            return units
        seed = self.seed + tf.constant([0, place], tf.int32)
        if self.share is None:
            return tf.nn.experimental.stateless_dropout(units, rate, seed)
        # Draw the mask of the whole batch and slice it.
        shape, rows = tf.shape(units), tf.shape(units)[0]
        everyone = tf.ones(tf.concat([[rows * self.share.shares], shape[1:]], 0), units.dtype)
        kept = tf.nn.experimental.stateless_dropout(everyone, rate, seed)
        own = kept[self.share.number * rows :][:rows]
        return units * tf.ensure_shape(own, units.shape)


EXACT = Mode()  # float32 without dropout, for evaluation and sampling


def convolve(
    x: tf.Tensor,
    kernel: tf.Variable,
    strides: int | Sequence[int] = 1,
    dilations: tuple[int, int] = (1, 1),
) -> tf.Tensor:
    """Convolve x [batch, height, width, channels] without padding, in x's dtype.

    The kernel is [rows, columns, inputs, outputs]; strides and dilations are (rows, columns).
    """
    if dilations == (1, 1):
        return tf.nn.conv2d(x, cast_like(kernel, x), strides, "VALID")
    # Dilated convolutions by conv2d have no gradient on some devices.
    return tf.nn.convolution(x, cast_like(kernel, x), 1, "VALID", dilations=dilations)


def matmul(x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
    """Multiply x [..., inputs] by a kernel [inputs, outputs], in x's dtype."""
    # Flattened, since oneDNN's batched product corrupts the heap for some [batch, 1, width, few].
    rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), cast_like(kernel, x))
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [kernel.shape[-1]]], 0))


def cast_like(variable: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """Return the variable in x's dtype."""
    return tf.cast(variable, x.dtype)


class Convolution(tf.Module):
    """A square convolution with a bias and zero padding."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        initial: Initial,
        stride: int = 1,
        gain: float = 1.0,
        name: str = "convolution",
    ) -> None:
        super().__init__(name=name)
        width, inputs, outputs = shape
        self.stride = stride
        self.kernel = initial.kernel([width, width, inputs, outputs], "kernel", gain)
        self.bias = initial.zeros([outputs], "bias")

    def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
        """Return the convolved pixels, [batch, height / stride, width / stride, outputs]."""
        return tf.nn.conv2d(pixels, self.kernel, self.stride, "SAME") + self.bias
