"""Cached samplers: a PixelCNN pixel by pixel, the multiscale model in O(log N) passes; guidance.

A PixelCNN draws pixel (y, x) from the random words [batch, y, x], like all samplers in
`onepass.samplers`, which therefore draw the same images. The multiscale model draws the n-th pixel
in sampling order (the base row by row, then every doubling by group and row) from the words of
(seed, image, n), so smaller images of a seed are sub-samples of larger ones. With guidance, a batch
is doubled by a copy under the null condition; both halves read the same pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.foundation.errors import require
from onepass.likelihoods import noise
from onepass.networks.symbols import raster_positions
from pixelcnn.config import GROUPS, sizes_between
from pixelcnn.networks.conditioning import Condition, Conditioner
from pixelcnn.networks.layers import cut, merge, paste
from pixelcnn.networks.multiscale import Factor, Multiscale, condition_at
from pixelcnn.networks.outputs import Hidden
from pixelcnn.networks.pixelcnn import PixelCNN, Scan, run_scan


def pair_for_guidance(
    conditioner: Conditioner, batch: dict, guidance: float | tf.Tensor | None, *arguments: Any
) -> tuple:
    """Return the encoded condition and the arguments, with the batch doubled for guidance.

    The second half of the condition is the null condition. If `guidance` is None, nothing is
    doubled. The arguments are tensors [batch, ...], tuples of tensors, None, or scalars, which are
    unchanged.
    """
    condition = conditioner(batch)
    if guidance is None:
        return condition, *arguments
    return conditioner.with_null(condition), *tf.nest.map_structure(_twice, arguments)


def drop_guidance_pair(guidance: float | tf.Tensor | None, sampled: Any) -> Any:
    """Return sampled tensors without the half of the batch that `pair_for_guidance` added."""
    if guidance is None:
        return sampled
    return tf.nest.map_structure(lambda x: tf.split(x, 2)[0] if x.shape.rank else x, sampled)


def _twice(x: tf.Tensor | None) -> tf.Tensor | None:
    return x if x is None or not x.shape.rank else tf.concat([x, x], 0)


class Prefix(NamedTuple):
    """The first `count`, int32 [], pixels of levels [batch, height, width, channels], to keep."""

    levels: tf.Tensor
    count: tf.Tensor

    @property
    def known(self) -> tf.Tensor:
        """The number of pixels to keep in each batch row, int32 [batch]."""
        return tf.fill([tf.shape(self.levels)[0]], self.count)

    def over(self, drawn: tf.Tensor, position: int) -> tf.Tensor:
        """Return drawn images with the pixels to keep restored; `position` must be 0."""
        return tf.where(raster_positions(drawn) + position < self.count, self.levels, drawn)


def image_words(
    network: PixelCNN, seed: int | tf.Tensor, rows: tf.Tensor, height: int, width: int
) -> tf.Tensor:
    """Return `pixel_words` of height x width images, uint32 [rows, height, width, noise words]."""
    words = pixel_words(network, seed, rows, height * width)
    return tf.reshape(words, [-1, height, width, network.noise_words])


def pixel_words(network: Any, seed: int | tf.Tensor, rows: tf.Tensor, pixels: int) -> tf.Tensor:
    """Return the random words of every pixel of every image, uint32 [rows, pixels, noise words].

    `seed` may be a key, uint32 [2]; `rows`, int32 [rows], are indices of images in its sequence.
    """
    return noise.words(seed, rows, 0, pixels, network.noise_words)


def sample(
    network: PixelCNN,
    words: tf.Tensor,
    condition: Condition,
    given: Prefix | None = None,
    temperature: float | tf.Tensor = 1.0,
    prediction: tf.Tensor | None = None,
    guidance: float | tf.Tensor | None = None,
) -> tf.Tensor:
    """Sample images int32 [batch, height, width, channels].

    Args:
      words: random words, uint32 [batch, height, width, noise words], with static height and width.
      prediction: float32 [batch, height, width, channels] to add to the linear prediction, or None.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]
    draw = _Draw(network, words, given, temperature, guidance)
    scan = Scan(
        network, width, network.add_coordinates(condition, words), draw.pixel, prediction=prediction
    )
    return run_scan(scan, batch, height)


class _Draw(NamedTuple):
    network: PixelCNN
    words: tf.Tensor
    given: Prefix | None
    temperature: float | tf.Tensor
    guidance: float | tf.Tensor | None

    def pixel(self, y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
        words = self.words[:, y, x]
        sampled = self.network.output.sample(hidden, words, self.temperature, self.guidance)
        if self.given is None:
            return sampled
        before = y * self.words.shape[2] + x < self.given.count
        return tf.where(before, self.given.levels[:, y, x], sampled)


class SamplingInputs(NamedTuple):
    """The noise, condition and temperatures for sampling."""

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
    require(len(each) in (1, scales), "temperature", f"one number or {scales}", len(each))
    for temperature in each:
        require(
            0 <= temperature < float("inf"), "temperature", "at least 0 and finite", temperature
        )
    return tf.constant(each * (scales // len(each)), tf.float32)
