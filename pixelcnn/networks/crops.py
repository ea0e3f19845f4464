"""Random crops with weights that give an unbiased estimate of the loss on the whole image.

Along each axis the crop is drawn from all windows of its length that overlap the image, and moved
inside the image if necessary, so that pixels at the edges are covered nearly as often as others.
Each pixel is weighted by the inverse of the probability that a crop contains it (Horvitz and
Thompson 1952); the weight is at most (size + crop - 2) / crop along an axis.
"""

import numpy as np
import tensorflow as tf

from pixelcnn.networks.conditioning import Condition

TILE = 2  # side of a tile in pixels; crops start at even rows and columns (`groups`)


def first_tiles(size: int, crop: int) -> np.ndarray:
    """Return the first tile of each possible crop along an axis, int32 [crops]."""
    tiles, length = size // TILE, crop // TILE
    return np.clip(np.arange(1 - length, tiles), 0, tiles - length).astype(np.int32)


def tile_weights(size: int, crop: int) -> np.ndarray:
    """Return the inverse probability that a crop contains each tile of an axis, float32 [tiles]."""
    first, tiles = first_tiles(size, crop), np.arange(size // TILE)[:, np.newaxis]
    # Tiles near the edges are in fewer crops and get larger weights.
    held = (first <= tiles) & (tiles < first + crop // TILE)
    return (1.0 / held.mean(1)).astype(np.float32)


def crop_tiles(
    image: tf.Tensor, condition: Condition, crop: int, seeds: tf.Tensor
) -> tuple[tf.Tensor, Condition, tf.Tensor]:
    """Return random crops of images, with the maps of their conditions, and the crops' weights.

    Images are int32 [batch, crop, crop, channels], the tiles' weights float32 [batch, crop / 2,
    crop / 2].
    """
    size, channels = image.shape[1], image.shape[-1]
    first = first_tiles(size, crop)
    # Image and map are cropped together as floats, which represent levels up to 2^24 exactly.
    both = tf.cast(image, tf.float32)
    if condition.map is not None:
        shape = [*tf.unstack(tf.shape(image)[:3]), condition.map.shape[-1]]
        both = tf.concat([both, tf.broadcast_to(condition.map, shape)], -1)
    corners = tf.gather(first, tf.math.floormod(seeds, len(first)))
    taken = tf.map_fn(
        lambda pair: tf.slice(pair[0], [TILE * pair[1][0], TILE * pair[1][1], 0], [crop, crop, -1]),
        (both, corners),
        fn_output_signature=tf.float32,
    )
    taken = tf.ensure_shape(taken, [image.shape[0], crop, crop, both.shape[-1]])
    tiles = corners[..., tf.newaxis] + tf.range(crop // TILE)
    down, across = tf.unstack(tf.gather(tile_weights(size, crop), tiles), axis=1)
    weights = down[:, :, tf.newaxis] * across[:, tf.newaxis]
    image = tf.cast(taken[..., :channels], tf.int32)
    map_ = None if condition.map is None else taken[..., channels:]
    return image, Condition(condition.vector, map_), weights
