"""Sampler of the multiscale model: the base pixel by pixel, then three passes per doubling.

The n-th pixel in sampling order (the base row by row, then every doubling by group and row) is
drawn from the random words of (seed, image, n). Therefore smaller images of a seed are sub-samples
of larger ones, and an image does not depend on its batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.foundation.errors import UserError
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import GROUPS, sizes_between
from pixelcnn.networks.factor import Factor
from pixelcnn.networks.groups import cut, merge, paste
from pixelcnn.networks.multiscale import Multiscale, condition_at
from pixelcnn.networks.outputs import Hidden
from pixelcnn.sampling.pixelcnn_sampler import pixel_words, sample


class SamplingInputs(NamedTuple):
    """The noise, condition and temperatures for sampling.

    Attributes:
      words: random words, uint32 [batch, pixels, noise words], from `multiscale_words`.
      condition: vector [batch, channels], map [batch, size, size, channels] of the largest image.
      temperatures: float32 [scales], base first; 1 samples the model.
      guidance: guidance weight, for a batch whose second half repeats the first half under the null
        condition; None: no guidance.
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
    """Sample images at every scale, int32 [batch, side, side, channels], or enlarge `start`."""
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
    """Sample the smallest images, int32 [batch, base_size, base_size, channels].

    Images of a flow are not guided; both halves of a doubled batch then get the same base.
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
    """Double the side of images int32 [batch, side, side, channels] by three network passes."""
    side = 2 * image.shape[1]
    condition = model.add_coordinates(inputs.condition, side)
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
    """Sample a group, int32, of side `side`, given earlier ones: one pass, M^2 steps for type B."""
    hidden, words = factor(groups, condition), group_words(inputs.words, side, factor.group)
    return sample_hidden(factor, hidden, words, temperature, inputs.guidance)


def sample_hidden(
    factor: Factor,
    hidden: Hidden,
    words: tf.Tensor,
    temperature: float | tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> tf.Tensor:
    """Sample a group's pixels, int32 [batch, height, width, channels].

    `words` are uint32 [batch, height, width, noise words], of whole patches for type B.
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
    """Return `pixel_words` of images with side `size`, uint32 [rows, size^2, noise words]."""
    return pixel_words(model, seed, rows, size**2)


def group_words(words: tf.Tensor, side: int, group: int) -> tf.Tensor:
    """Return a group's random words, uint32 [batch, side / 2, side / 2, noise words]."""
    half = side // 2
    # Words are ordered by group; group 1 is the smaller image.
    first = (group - 1) * half**2
    return tf.reshape(words[:, first : first + half**2], [-1, half, half, words.shape[-1]])


def temperatures_of(given: float | Sequence[float], scales: int) -> tf.Tensor:
    """Return one temperature per scale, base first, float32 [scales]."""
    each = [float(t) for t in given] if isinstance(given, Sequence) else [float(given)]
    if len(each) not in (1, scales):
        raise UserError(f"`temperature` must be one number or {scales}, got {len(each)}.")
    for temperature in each:
        if not 0 <= temperature < float("inf"):
            raise UserError(f"`temperature` must be 0 or more and finite, got {temperature}.")
    return tf.constant(each * (scales // len(each)), tf.float32)
