"""Groups and patches: the division of an image in the multiscale model.

Each of four groups contains one pixel of every 2 x 2 tile.

    1 2      group 1 is the image sub-sampled to half the size;
    3 4      the other three groups are drawn given group 1, one after another.

Reed et al. 2017, "Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664),
section 3.
"""

import tensorflow as tf

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
        return _columns(*groups)
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
