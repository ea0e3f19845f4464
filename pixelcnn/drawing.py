"""Drawing pictures from the multiscale model: the base pixel by pixel, three passes a doubling.

Pixel (y, x) of group g of the picture of side s is drawn from words that seed, picture, s, g, y and
x name, so a larger picture of a seed has the smaller one of that seed for its sub-sample, and a
picture is the same in any batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from likelihoods import noise
from pixelcnn.conditioning import Condition
from pixelcnn.factor import Factor
from pixelcnn.groups import merge
from pixelcnn.multiscale import GROUPS, Multiscale, condition_at, sizes_between
from pixelcnn.network import with_coordinates
from pixelcnn.patches import cut, paste
from pixelcnn.sampler import sample


class Draw(NamedTuple):
    """What pictures are drawn from.

    seed: as for `noise.bits`. rows: int32 [batch], which pictures of that seed. condition: vector
    [batch, channels], map [batch, size, size, channels] of the largest picture. temperatures:
    float32 [scales], one a scale from the base up, 1 for the model's own distribution.
    """

    seed: tf.Tensor
    rows: tf.Tensor
    condition: Condition
    temperatures: tf.Tensor


def draw(
    model: Multiscale, wish: Draw, size: int, start=None, base_sampler=sample
) -> list[tf.Tensor]:
    """The pictures at every scale, int32 [batch, side, side, channels], smallest first.

    Args:
      model: what draws. wish: from what.
      size: side of the largest picture.
      start: a picture int32 [batch, side, side, channels] to begin with in place of the base;
        the next one is twice its size. Temperatures count from the base all the same.
      base_sampler: `sampler.sample` or another that does the same.
    """
    sizes = model.sizes[: len(sizes_between(model.config.base_size, size))]
    if start is None:
        start = draw_base(model, wish, base_sampler)
    pictures = [start]
    for i, side in enumerate(sizes):
        if side > start.shape[1]:
            pictures.append(double(model, wish, pictures[-1], wish.temperatures[i]))
    return pictures


def draw_base(model: Multiscale, wish: Draw, base_sampler=sample):
    """The smallest pictures, int32 [batch, base_size, base_size, channels]."""
    side, network = model.config.base_size, model.base
    words = group_words(network.output.noise_words, wish, side, 1, side)
    condition = condition_at(wish.condition, side)
    return base_sampler(network, words, condition, None, wish.temperatures[0])


def double(model: Multiscale, wish: Draw, picture, temperature):
    """Pictures of twice the side, int32, whose group 1 is `picture`: three network passes."""
    side = 2 * picture.shape[1]
    condition = with_coordinates(condition_at(wish.condition, side), side, side)
    groups = [picture]
    for group in GROUPS:
        factor = model.factors[f"{side}.{group}"]
        groups.append(draw_group(factor, groups, condition, wish, side, temperature))
    return merge(groups)


def draw_group(
    factor: Factor, groups: list, condition: Condition, wish: Draw, side: int, temperature
):
    """One group of the pictures of a side, int32, given the groups before it: one network pass.

    A factor of type B adds the M^2 steps of its shallow PixelCNN, all patches at once.
    """
    hidden = factor(groups, condition)
    if factor.output is not None:
        words = group_words(factor.output.noise_words, wish, side, factor.group, side // 2)
        return factor.output.sample(hidden, words, temperature)
    shallow = factor.shallow
    words = group_words(shallow.output.noise_words, wish, side, factor.group, side // 2)
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


def group_words(count: int, wish: Draw, side: int, group: int, group_side: int):
    """uint32 [batch, group_side, group_side, count], words of a group of the pictures of a side."""
    seed = noise.fold_in(wish.seed, 8 * side + group)
    words = noise.words(seed, wish.rows, 0, group_side**2, count)
    return tf.reshape(words, [-1, group_side, group_side, count])


def temperatures_of(given: float | Sequence[float], scales: int) -> tf.Tensor:
    """float32 [scales], one temperature for all or one each, base first; ValueError if neither."""
    each = [float(given)] if isinstance(given, int | float) else [float(t) for t in given]
    if len(each) not in (1, scales):
        raise ValueError(f"`temperature` must be one number or {scales}, got {len(each)}.")
    if not all(0 <= t < float("inf") for t in each):
        raise ValueError(f"`temperature` must be 0 or more, got {min(each)}.")
    return tf.constant(each * (scales // len(each)), tf.float32)
