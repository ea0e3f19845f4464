"""Sampler of the multiscale model: the base pixel by pixel, then three passes per doubling.

The n-th pixel of an image in the order of sampling (the base row by row, then group after group of
each doubling, each row by row) is sampled from the random words of seed, image and n. A smaller
image of a seed is sampled first, so it is the sub-sample of the larger one, and an image is the
same in any batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from foundation.errors import UserError
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import GROUPS, sizes_between
from pixelcnn.networks.factor import Factor
from pixelcnn.networks.groups import cut, merge, paste
from pixelcnn.networks.multiscale import Multiscale, condition_at
from pixelcnn.networks.outputs import Hidden
from pixelcnn.sampling.pixelcnn_sampler import pixel_words, sample


class SamplingInputs(NamedTuple):
    """The noise, condition and temperatures of a sampling run.

    Attributes:
      words: random words, uint32 [batch, pixels, noise words], from `multiscale_words`.
      condition: vector [batch, channels], map [batch, size, size, channels] of the largest image.
      temperatures: float32 [scales], from the base up, 1 for the model's own distribution.
      guidance: weight away from the null condition, for a batch whose second half are twins under
        that condition; None: no guidance.
    """

    words: tf.Tensor
    condition: Condition
    temperatures: tf.Tensor
    guidance: float | tf.Tensor | None = None


def sample_scales(
    model: Multiscale,
    inputs: SamplingInputs,
    size: int,
    start: tf.Tensor | None = None,
    base_sampler: Callable[..., Any] = sample,
) -> list[tf.Tensor]:
    """Return the images at every scale, int32 [batch, side, side, channels], smallest first.

    Args:
      model: the networks.
      inputs: noise, condition and temperatures.
      size: side of the largest image.
      start: an image int32 [batch, side, side, channels] to begin with instead of the base; the
        next one is twice its size. Temperatures still count from the base.
      base_sampler: `sampler.sample` or an equivalent.
    """
    sizes = model.sizes[: len(sizes_between(model.config.base_size, size))]
    if start is None:
        start = sample_base(model, inputs, base_sampler)
    images = [start]
    for i, side in enumerate(sizes):
        if side > start.shape[1]:
            images.append(upscale(model, inputs, images[-1], inputs.temperatures[i]))
    return images


def sample_base(
    model: Multiscale, inputs: SamplingInputs, base_sampler: Callable[..., Any] = sample
) -> tf.Tensor:
    """Return the smallest images, int32 [batch, base_size, base_size, channels].

    Those of a flow are not guided; the twins then have the same base.
    """
    side, network = model.config.base_size, model.base
    words = tf.reshape(inputs.words[:, : side**2], [-1, side, side, inputs.words.shape[-1]])
    condition = condition_at(inputs.condition, side)
    temperature, guidance = inputs.temperatures[0], inputs.guidance
    if model.has_flow:
        images = network.sample(words, condition, temperature)
        return images if guidance is None else tf.tile(tf.split(images, 2)[0], [2, 1, 1, 1])
    return base_sampler(network, words, condition, None, temperature, guidance=guidance)


def upscale(
    model: Multiscale, inputs: SamplingInputs, image: tf.Tensor, temperature: float | tf.Tensor
) -> tf.Tensor:
    """Return images of twice the side, int32, whose group 1 is `image`: three network passes."""
    side = 2 * image.shape[1]
    condition = model.placed(inputs.condition, side)
    groups = [image]
    for group in GROUPS:
        factor = model.factors[f"{side}.{group}"]
        groups.append(sample_group(factor, groups, condition, inputs, side, temperature))
    return merge(groups)


def sample_group(
    factor: Factor,
    groups: list,
    condition: Condition,
    inputs: SamplingInputs,
    side: int,
    temperature: float | tf.Tensor,
) -> tf.Tensor:
    """Return one group of the images of a side, int32, given the groups before: one network pass.

    A factor of type B adds the M^2 steps of its shallow PixelCNN, all patches at once.
    """
    hidden, words = factor(groups, condition), group_words(inputs.words, side, factor.group)
    return sample_hidden(factor, hidden, words, temperature, inputs.guidance)


def sample_hidden(
    factor: Factor,
    hidden: Hidden,
    words: tf.Tensor,
    temperature: float | tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the pixels of a group, int32 [batch, height, width, channels].

    Args:
      factor: the network of the group.
      hidden: the network's hidden state at each pixel of the group.
      words: uint32 [batch, height, width, noise words]; for type B whole patches.
      temperature: 1 for the model's own distribution.
      guidance: weight away from the null condition, for a batch whose second half are twins under
        that condition; None: no guidance.
    """
    if factor.output is not None:
        return factor.output.sample(hidden, words, temperature, guidance)
    shallow = factor.shallow
    known = factor.patch_hidden(hidden)
    patches = sample(
        shallow,
        cut(words, factor.config.patch),
        Condition(None, known.units),
        None,
        temperature,
        known.prediction,
        guidance,
    )
    return paste(patches, tf.concat([tf.shape(words)[:3], [patches.shape[-1]]], 0))


def multiscale_words(
    model: Multiscale, seed: int | tf.Tensor, rows: tf.Tensor, size: int
) -> tf.Tensor:
    """Return `pixel_words` of images of a side, uint32 [rows, size^2, noise words]."""
    return pixel_words(model, seed, rows, size**2)


def group_words(words: tf.Tensor, side: int, group: int) -> tf.Tensor:
    """Return the words of a group of images of a side, uint32 [batch, side / 2, side / 2, ...]."""
    half = side // 2
    # The words of an image of this side, group after group; group 1 is the smaller image.
    first = (group - 1) * half**2
    return tf.reshape(words[:, first : first + half**2], [-1, half, half, words.shape[-1]])


def temperatures_of(given: float | Sequence[float], scales: int) -> tf.Tensor:
    """Return one temperature per scale, base first, float32 [scales].

    Raises:
      ValueError: `given` is neither one number nor one per scale.
    """
    each = [float(t) for t in given] if isinstance(given, Sequence) else [float(given)]
    if len(each) not in (1, scales):
        raise UserError(f"`temperature` must be one number or {scales}, got {len(each)}.")
    for temperature in each:
        if not 0 <= temperature < float("inf"):
            raise UserError(f"`temperature` must be 0 or more and finite, got {temperature}.")
    return tf.constant(each * (scales // len(each)), tf.float32)
