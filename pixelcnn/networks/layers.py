"""Linear layers that compute in the precision of their input."""

from collections.abc import Sequence

import tensorflow as tf

from onepass.likelihoods.initial import Initial


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
