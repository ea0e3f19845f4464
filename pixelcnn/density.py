"""The density of an image model, a conditioner with a PixelCNN or a multiscale network, and draws.

The cached samplers draw by a PixelCNN pixel by pixel, and by the multiscale network in O(log N)
passes. A PixelCNN draws pixel (y, x) from the random words [batch, y, x], like all samplers in
`onepass.samplers`, which therefore draw the same images. The multiscale model draws the n-th pixel
in sampling order (the base row by row, then every doubling by group and row) from the words of
(seed, image, n), so smaller images of a seed are sub-samples of larger ones. With guidance, a batch
is doubled by a copy under the null condition; both halves read the same pixels.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import CodeLengths, measure_code_lengths
from onepass.foundation.rules import require
from onepass.foundation.runtime import compute_dtype
from onepass.likelihoods import noise
from onepass.likelihoods.noise import Initial
from onepass.networks.conditions import Specs
from onepass.networks.symbols import raster_positions
from onepass.replicator import Replicator
from pixelcnn.config import GROUPS, AnyTrainConfig, part_names, sizes_between
from pixelcnn.data.captions import encode_caption
from pixelcnn.networks.conditioning import Condition, Conditioner
from pixelcnn.networks.layers import (
    EXACT,
    BatchSlice,
    Hidden,
    Mode,
    PixelOutputs,
    cut,
    merge,
    paste,
)
from pixelcnn.networks.multiscale import Factor, Multiscale, condition_at
from pixelcnn.networks.pixelcnn import PixelCNN, Scan, run_scan


class ImageDensity(tf.Module):
    """The density of images given their conditions; `config` is `ImageDataset.resolved_config`."""

    def __init__(self, config: AnyTrainConfig, initial: Initial | None = None) -> None:
        super().__init__()
        initial = Initial(config.seed) if initial is None else initial
        self.config = config
        self.conditioner = Conditioner(config.conditioning, initial, config.data.size)
        vector, map_ = self.conditioner.vector_channels, self.conditioner.map_channels
        self.pixelcnn: PixelCNN | None = None
        self.multiscale: Multiscale | None = None
        if config.kind == "pixelcnn":
            self.pixelcnn = PixelCNN(config.network, config.output, initial, vector, map_)
        else:
            size, parts = config.data.size, config.part_names
            self.multiscale = Multiscale(
                config.network, size, config.output, initial, vector, map_, parts
            )

    @property
    def num_dims(self) -> int:
        """Number of dimensions of an image, pixels times channels."""
        return self.config.data.size**2 * self.config.data.channels

    @property
    def whole(self) -> bool:
        """Return whether all parts of the model exist, which sampling from scratch needs."""
        model = self.multiscale
        return model is None or len(model.parts) == len(part_names(model.sizes))

    def drawn_numbers(self, levels: tf.Tensor) -> float:
        """Return the number of dimensions per image by which bits are divided.

        It is the number of values (pixels times channels) in an image, or, of images of any shape,
        of those that the parts draw. `levels` have a static shape [batch, height, width, channels].
        """
        model = self.multiscale
        share = model.drawn_share if model is not None and model.any_shape else 1.0
        return share * math.prod(levels.shape[1:])

    def nats(self, batch: dict, mode: Mode = EXACT, seeds: tf.Tensor | None = None) -> dict:
        """Return {part: log-probability}, in nats, float32 [batch] each.

        With `seeds`, int32 [batch, 2], the larger scales are evaluated on random crops.
        """
        levels, condition = batch["levels"], self.conditioner(batch)
        if self.multiscale is not None:
            return self.multiscale.nats(levels, condition, mode, seeds)
        parts = self.conditionals(levels, condition, mode)
        return {part: conditionals.nats() for part, conditionals in parts.items()}

    def drawn_nats(self, batch: dict, seed: tf.Tensor, rows: tf.Tensor) -> dict:
        """Return `nats`, part by part, of images that `ImageSampler` drew at temperature 1.

        A base that is a flow is not inverted: its density is that of the noise that was drawn.
        """
        model = self.multiscale
        if model is None or not model.has_flow:
            return self.nats(batch)
        condition, side = self.conditioner(batch), model.config.base_size
        words = pixel_words(model, seed, rows, side**2)
        words = tf.reshape(words, [-1, side, side, model.noise_words])
        nats = {model.parts[0]: model.base.drawn_nats(words, condition_at(condition, side))}
        parts = self.conditionals(batch["levels"], condition)
        return nats | {part: conditionals.nats() for part, conditionals in parts.items()}

    def conditionals(
        self,
        levels: tf.Tensor,
        condition: Condition,
        mode: Mode = EXACT,
        seeds: tf.Tensor | None = None,
    ) -> dict[str, PixelOutputs]:
        """Return {part: distribution of every pixel} as `nats` does; a PixelCNN has one part."""
        if self.multiscale is not None:
            return self.multiscale.conditionals(levels, condition, mode, seeds)
        if self.pixelcnn is None:
            raise ValueError("`config` must be of a PixelCNN or of a multiscale model.")
        size = str(self.config.data.size)
        return {size: self.pixelcnn.conditionals(levels, condition, mode)}

    def training_mode(self, batch: dict) -> Mode:
        """Return the precision and dropout for a training batch, or for a replica's share of it."""
        seed, share = batch["seed"][0], None
        if "share" in batch:
            seed = batch["seeds"][0, 0]
            share = BatchSlice(batch["share"], batch["seeds"].shape[0])
        return Mode(compute_dtype(self.config.compute_dtype), seed, share)


class CompiledNats:
    """A compiled function from batches to nats by part, of a density unless another is given."""

    def __init__(self, density: ImageDensity, nats: Callable[[dict], dict] | None = None) -> None:
        self._density = density
        function = density.nats if nats is None else nats
        self._nats = tf.function(function, autograph=False, reduce_retracing=True)

    def code_lengths(self, batches: Iterable[dict]) -> CodeLengths:
        """Return the code lengths of images, of which a part draws `drawn_numbers`."""

        def sizes(batch: dict) -> np.ndarray:
            levels = batch["levels"]
            return np.full(len(levels), self._density.drawn_numbers(levels))

        return measure_code_lengths(batches, self._nats, sizes)


class ImageLoss:
    """The training loss of a density, for a batch or a replica's share of it."""

    def __init__(self, density: ImageDensity) -> None:
        self.density = density

    def __call__(self, batch: dict) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the negative log-likelihood in nats per dimension, and metric "bits_per_dim"."""
        density = self.density
        parts = density.nats(batch, density.training_mode(batch), batch["seed"])
        nats = tf.add_n(list(parts.values()))
        value = -tf.reduce_mean(nats) / density.drawn_numbers(batch["levels"])
        return value, {"bits_per_dim": value / math.log(2.0)}

    def global_inputs(self, batch: dict, replicator: Replicator) -> dict:
        """Return the inputs of dropout that depend on the whole batch, for `GlobalBatchLoss`.

        These are its seeds, int32 [replicas, rows, 2], and the index of the replica's share.
        """
        return {"seeds": replicator.all_gather(batch["seed"]), "share": replicator.replica_id}


def condition_specs(config: AnyTrainConfig) -> Specs:
    """Return the conditioner's inputs for a batch of one, as specs; `config` must be resolved."""
    side, conditioning = config.data.size, config.conditioning
    steps = conditioning.context_frames
    frames = [1, steps, side, side, config.data.channels]
    video = {"past": tf.TensorSpec(frames, tf.int32)}
    channels = {"action": conditioning.action_channels, "state": conditioning.state_channels}
    for name, count in channels.items():
        if count:
            video[name] = tf.TensorSpec([1, steps, count], tf.float32)
    kinds: dict[str, Specs] = {
        "class": {"label": tf.TensorSpec([1], tf.int32)},
        "text": {"caption": tf.TensorSpec([1, len(encode_caption(""))], tf.int32)},
        "map": {"map": tf.TensorSpec([1, side, side], tf.int32)},
        "video": video,
    }
    return kinds.get(conditioning.kind, {})


def pair_for_guidance(
    conditioner: Conditioner, batch: dict, guidance: float | tf.Tensor | None, *arguments: Any
) -> tuple:
    """Return the encoded condition and the arguments, with the batch doubled for guidance, if any.

    The second half of the condition is the null condition. The arguments are tensors [batch, ...],
    tuples of tensors, None, or scalars, which are unchanged.
    """
    condition = conditioner(batch)
    if guidance is None:
        return condition, *arguments

    def twice(x: tf.Tensor | None) -> tf.Tensor | None:
        return x if x is None or not x.shape.rank else tf.concat([x, x], 0)

    return conditioner.with_null(condition), *tf.nest.map_structure(twice, arguments)


def drop_guidance_pair(guidance: float | tf.Tensor | None, sampled: Any) -> Any:
    """Return sampled tensors without the half of the batch that `pair_for_guidance` added."""
    if guidance is None:
        return sampled
    return tf.nest.map_structure(lambda x: tf.split(x, 2)[0] if x.shape.rank else x, sampled)


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

    The random `words` are uint32 [batch, height, width, noise words], with static height and width;
    the `prediction`, float32 [batch, height, width, channels], is added to the linear one.
    """
    batch, (height, width) = tf.shape(words)[0], words.shape[1:3]

    def pixel(y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
        sampled = network.output.sample(hidden, words[:, y, x], temperature, guidance)
        if given is None:
            return sampled
        return tf.where(y * width + x < given.count, given.levels[:, y, x], sampled)

    placed = network.add_coordinates(condition, words)
    return run_scan(Scan(network, width, placed, pixel, prediction=prediction), batch, height)


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
        hidden, words = factor(groups, condition), group_words(inputs.words, side, group)
        groups.append(sample_hidden(factor, hidden, words, temperature, inputs.guidance))
    return merge(groups)


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
    known, inner = factor.patch_hidden(hidden), cut(words, factor.config.patch)
    condition, more = Condition(None, known.units), known.prediction
    patches = sample(factor.shallow, inner, condition, None, temperature, more, guidance)
    return paste(patches, tf.concat([tf.shape(words)[:3], [patches.shape[-1]]], 0))


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
