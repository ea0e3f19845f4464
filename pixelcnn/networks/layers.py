"""Layers of image networks, and the groups of channels and pixels.

Each of four groups contains one pixel of every 2 x 2 tile.

    1 2      group 1 is the image sub-sampled to half the size;
    3 4      the other three groups are drawn given group 1, one after another.

Reed et al. 2017, "Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664),
section 3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from onepass.likelihoods.noise import Initial

OFFSETS = ((0, 0), (0, 1), (1, 0), (1, 1))  # row and column of groups 1, 2, 3, 4 in a tile
STRIDES = ((1, 1), (1, 2), (2, 2))  # size of a tile in the merged image read by groups 2, 3, 4


def split(image: tf.Tensor) -> list:
    """Split an image into groups 1 to 4, [batch, height / 2, width / 2, channels] each."""
    return [image[:, row::2, column::2] for row, column in OFFSETS]


def merge(groups: list) -> tf.Tensor:
    """Merge four groups into an image [batch, 2 height, 2 width, channels]; inverse of `split`."""
    upper, lower = _columns(groups[0], groups[1]), _columns(groups[2], groups[3])
    return _interleave_images(upper, lower, 1)


def merge_groups(groups: list) -> tf.Tensor:
    """Merge the first one, two or three groups into the image that the next factor reads.

    One group is unchanged. Two groups are interleaved, [height, 2 width]. Three groups are merged
    with zeros in place of group 4, [2 height, 2 width].
    """
    if len(groups) == 1:
        return groups[0]
    if len(groups) == 2:
        left, right = groups
        return _columns(left, right)
    return merge([*groups, tf.zeros_like(groups[0])])


def subsample_blocks(image: tf.Tensor, size: int) -> tf.Tensor:
    """Return the upper left pixel of every block as an image, [batch, size, size, channels]."""
    height, width = image.shape[1], image.shape[2]
    if height != width or height % size:
        raise ValueError(f"`size` must divide the image, {height} x {width}, got {size}.")
    step = height // size
    return image if step == 1 else image[:, ::step, ::step]


def cut(image: tf.Tensor, side: int) -> tf.Tensor:
    """Cut images [batch, height, width, channels] into patches [batch * patches, side, side, n]."""
    shape, channels = tf.shape(image), image.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(image, [shape[0], rows, side, columns, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), [-1, side, side, channels])


def paste(patches: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Join patches into an image with the shape `shape`, int [4]; inverse of `cut`."""
    side, channels = patches.shape[1], patches.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(patches, [shape[0], rows, columns, side, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), shape)


def _columns(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return _interleave_images(left, right, 2)


def _interleave_images(first: tf.Tensor, second: tf.Tensor, axis: int) -> tf.Tensor:
    shape = tf.shape(first)
    # Compute the shape, since sizes may be dynamic, but keep the static ones.
    doubled = tf.tensor_scatter_nd_update(shape, [[axis]], [2 * shape[axis]])
    static = first.shape.as_list()
    if static[axis] is not None:
        static[axis] *= 2
    return tf.ensure_shape(tf.reshape(tf.stack([first, second], axis + 1), doubled), static)


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
