"""Drawing images from the multiscale model: the base pixel by pixel, three passes a doubling.

The n-th pixel of an image in the order of drawing (the base row by row, then group after group of
each doubling, each row by row) is drawn from the words that seed, image and n name. A smaller
image of a seed is drawn first, so it is the sub-sample of the larger one, and an image is the
same in any batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from likelihoods import noise
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import GROUPS, sizes_between
from pixelcnn.networks.factor import Factor
from pixelcnn.networks.groups import merge
from pixelcnn.networks.multiscale import Multiscale, condition_at
from pixelcnn.networks.patches import cut, paste
from pixelcnn.networks.pixelcnn import with_coordinates
from pixelcnn.sampling.pixelcnn_sampler import sample


class Draw(NamedTuple):
    """What images are drawn from.

    words: uint32 [batch, pixels, noise words], see `multiscale_words`. condition: vector [batch,
    channels], map [batch, size, size, channels] of the largest image. temperatures: float32
    [scales], one a scale from the base up, 1 for the model's own distribution.
    """

    words: tf.Tensor
    condition: Condition
    temperatures: tf.Tensor


def draw(
    model: Multiscale, wish: Draw, size: int, start=None, base_sampler=sample
) -> list[tf.Tensor]:
    """The images at every scale, int32 [batch, side, side, channels], smallest first.

    Args:
      model: what draws. wish: from what.
      size: side of the largest image.
      start: an image int32 [batch, side, side, channels] to begin with in place of the base;
        the next one is twice its size. Temperatures count from the base all the same.
      base_sampler: `sampler.sample` or another that does the same.
    """
    sizes = model.sizes[: len(sizes_between(model.config.base_size, size))]
    if start is None:
        start = sample_base(model, wish, base_sampler)
    images = [start]
    for i, side in enumerate(sizes):
        if side > start.shape[1]:
            images.append(double(model, wish, images[-1], wish.temperatures[i]))
    return images


def sample_base(model: Multiscale, wish: Draw, base_sampler=sample):
    """The smallest images, int32 [batch, base_size, base_size, channels]."""
    side, network = model.config.base_size, model.base
    words = tf.reshape(wish.words[:, : side**2], [-1, side, side, wish.words.shape[-1]])
    condition = condition_at(wish.condition, side)
    return base_sampler(network, words, condition, None, wish.temperatures[0])


def double(model: Multiscale, wish: Draw, image, temperature):
    """Images of twice the side, int32, whose group 1 is `image`: three network passes."""
    side = 2 * image.shape[1]
    condition = with_coordinates(condition_at(wish.condition, side), side, side)
    groups = [image]
    for group in GROUPS:
        factor = model.factors[f"{side}.{group}"]
        groups.append(sample_group(factor, groups, condition, wish, side, temperature))
    return merge(groups)


def sample_group(
    factor: Factor, groups: list, condition: Condition, wish: Draw, side: int, temperature
):
    """One group of the images of a side, int32, given the groups before it: one network pass.

    A factor of type B adds the M^2 steps of its shallow PixelCNN, all patches at once.
    """
    hidden, words = factor(groups, condition), group_words(wish.words, side, factor.group)
    if factor.output is not None:
        return factor.output.sample(hidden, words, temperature)
    shallow = factor.shallow
    known = factor.within(hidden)
    patches = sample(
        shallow,
        cut(words, factor.config.patch),
        Condition(None, known.units),
        None,
        temperature,
        known.prediction,
    )
    return paste(patches, tf.shape(groups[0]))


def multiscale_words(model: Multiscale, seed, rows, size: int):
    """uint32 [rows, size^2, noise words], the random words of every pixel of every image.

    Args:
      seed, rows: as for `noise.bits`: image `rows[n]` of a seed is the same in any batch.
    """
    return noise.words(seed, rows, 0, size**2, model.noise_words)


def group_words(words, side: int, group: int):
    """uint32 [batch, side / 2, side / 2, ...], those of a group of the images of a side."""
    half = side // 2
    first = (group - 1) * half**2
    return tf.reshape(words[:, first : first + half**2], [-1, half, half, words.shape[-1]])


def temperatures_of(given: float | Sequence[float], scales: int) -> tf.Tensor:
    """float32 [scales], one temperature for all or one each, base first; ValueError if neither."""
    each = [float(t) for t in given] if isinstance(given, Sequence) else [float(given)]
    if len(each) not in (1, scales):
        raise ValueError(f"`temperature` must be one number or {scales}, got {len(each)}.")
    for temperature in each:
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"`temperature` must be 0 or more and finite, got {temperature}.")
    return tf.constant(each * (scales // len(each)), tf.float32)
