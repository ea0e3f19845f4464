"""Densities of images, and draws: a conditioner with a PixelCNN, or with a multiscale network.

The cached samplers draw by a PixelCNN pixel by pixel, and by the multiscale network in O(log N)
passes. A PixelCNN draws pixel (y, x) from the random words [batch, y, x], like all samplers in
`onepass.samplers`, which therefore draw the same images. The multiscale model draws the n-th pixel
in sampling order (the base row by row, then every doubling by group and row) from the words of
(seed, image, n), so smaller images of a seed are sub-samples of larger ones. With guidance, a batch
is doubled by a copy under the null condition; both halves read the same pixels.

# Multiscale networks

Along each axis the crop is drawn from all windows of its length that overlap the image, and moved
inside the image if necessary, so that pixels at the edges are covered nearly as often as others.
Each pixel is weighted by the inverse of the probability that a crop contains it (Horvitz and
Thompson 1952); the weight is at most (size + crop - 2) / crop along an axis.

Reed et al. 2017, "Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664):

    p(x_1:S) = p(x_base) prod_scales p(x^2 | x^1) p(x^3 | x^1, x^2) p(x^4 | x^1, x^2, x^3)

where x^1 is the image sub-sampled to half the size, and x^2 to x^4 are the other pixels of each 2 x
2 tile. The base is a PixelCNN, or a flow that draws it in one pass. Every factor is a separate
ResNet (section 3 and figure 3), which reads the merged image of the known groups; its output is

- type A: the distribution of every pixel of the group, in one pass; or
- type B: the features that a shallow PixelCNN reads, which is shared by all M x M patches of the
  group and draws the pixels within all patches at once, in M^2 cheap steps.

The stride of the first convolution is the size of a tile in the merged image, so later layers have
the group's height and width. The paper's network runs on the merged image, with up to four times as
many pixels, and discards the output at known pixels.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import CodeLengths, measure_code_lengths
from onepass.foundation.rules import must_be, require
from onepass.foundation.runtime import call_rematerialised, compute_dtype
from onepass.likelihoods import noise
from onepass.likelihoods.codec import value_of
from onepass.likelihoods.noise import Initial
from onepass.networks.conditions import Specs
from onepass.networks.symbols import raster_positions
from onepass.replicator import Replicator
from pixelcnn.config import (
    GROUPS,
    AnyTrainConfig,
    FactorConfig,
    MultiscaleConfig,
    OutputConfig,
    check_size,
    part_names,
    sizes_between,
)
from pixelcnn.data.captions import encode_caption
from pixelcnn.networks.image_flow import ImageFlow
from pixelcnn.networks.layers import (
    EXACT,
    STRIDES,
    BatchSlice,
    Condition,
    Conditioner,
    Hidden,
    Mode,
    PixelOutputs,
    cast_like,
    convolve,
    cut,
    make_output,
    matmul,
    merge,
    merge_groups,
    paste,
    split,
    subsample_blocks,
)
from pixelcnn.networks.pixelcnn import (
    PLACE,
    ConditionTerm,
    PixelCNN,
    Scan,
    gate_halves,
    passing,
    run_scan,
    with_coordinates,
)

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


REACH = 1  # number of tiles on each side that the first convolution reads

# The initial linear prediction: (row, column, weight) of known pixels in a window of 3 x 3 tiles of
# the merged image. A pixel of group 2 or 3 is between two pixels of group 1, and a pixel of group 4
# between two pixels of group 2 and two of group 3.
NEIGHBOURS = {
    2: ((1, 1, 0.5), (1, 2, 0.5)),
    3: ((1, 2, 0.5), (2, 2, 0.5)),
    4: ((2, 3, 0.25), (4, 3, 0.25), (3, 2, 0.25), (3, 4, 0.25)),
}


class Block(tf.Module):
    """A gated residual block: x + W gate(K * x + V c)."""

    def __init__(self, units: int, initial: Initial, vector: int) -> None:
        super().__init__()
        self.kernel = initial.kernel([3, 3, units, 2 * units], "kernel")
        self.condition = ConditionTerm(2 * units, initial, vector, 0)
        self.out = initial.kernel([units, units], "out")

    def __call__(self, x: tf.Tensor, condition: Condition, drop: Callable) -> tf.Tensor:
        """Return the next x [batch, height, width, units]; `drop` applies dropout to the units."""
        return x + matmul(drop(self.gate(x, condition)), self.out)

    def gate(self, x: tf.Tensor, condition: Condition) -> tf.Tensor:
        """Return the gated units [batch, height, width, units]; `condition` has only a vector."""
        padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
        term = self.condition(condition)
        return gate_halves(convolve(padded, self.kernel) + tf.cast(term, x.dtype))


class Factor(tf.Module):
    """The density of group 2 to 4, int32 [batch, height, width, channels], given earlier ones."""

    def __init__(
        self,
        group: int,
        config: FactorConfig,
        output: OutputConfig,
        initial: Initial,
        vector_channels: int,
        map_channels: int,
    ) -> None:
        super().__init__()
        self.group, self.config, self.output_config = group, config, output
        self.draws_at_once = config.kind == "A"  # all pixels of the group in one pass
        self.reach = REACH + config.blocks  # tiles on each side that a pixel depends on
        self.strides = rows, columns = STRIDES[group - 2]  # of the merged image per tile
        window, units = [(2 * REACH + 1) * rows, (2 * REACH + 1) * columns], config.units
        self.front = initial.kernel([*window, output.channels + 1, units], "front")
        self.map_front = self.map_prediction = None
        if map_channels:
            self.map_front = initial.kernel([6, 6, map_channels, units], "map_front")
        neighbours = passing([*window, output.channels + 1, output.channels], NEIGHBOURS[group])
        self.prediction = tf.Variable(neighbours, name="prediction")
        if map_channels:
            self.map_prediction = initial.zeros([map_channels, output.channels], "map_prediction")
        self.blocks = [Block(units, initial, vector_channels) for _ in range(config.blocks)]
        self.out_kernel = initial.kernel([units, config.output_units], "out_kernel")
        self.out_bias = initial.zeros([config.output_units], "out_bias")
        self.output: Any = None
        self.shallow: Any = None
        if config.kind == "A":
            self.output = make_output(output, config.output_units, initial)
        else:
            self.shallow = PixelCNN(config.shallow, output, initial, 0, config.output_units, 0.0)
        self.noise_words: int = (self.output or self.shallow.output).noise_words

    def __call__(
        self, groups: Sequence[tf.Tensor], condition: Condition, mode: Mode = EXACT
    ) -> Hidden:
        """Return the ResNet's hidden state at each pixel of the group, [batch, height, width, ...].

        `groups` are the levels of earlier groups; the condition's map has the size of the whole
        image.
        """
        values = [value_of(group, self.output_config.levels) for group in groups]
        # The channel of ones distinguishes known pixels from padding and from unknown groups.
        image = merge_groups([tf.concat([v, tf.ones_like(v[..., :1])], -1) for v in values])
        rows, columns = self.strides
        window = [[0, 0], [rows, rows], [columns, columns], [0, 0]]
        padded = tf.pad(image, window)
        x = convolve(tf.cast(padded, mode.dtype), self.front, self.strides)
        if self.map_front is not None:
            map_ = tf.cast(tf.pad(condition.map, [[0, 0], [2, 2], [2, 2], [0, 0]]), mode.dtype)
            x += convolve(map_, self.map_front, 2)
        vector = Condition(condition.vector, None)
        for i, block in enumerate(self.blocks):
            drop = functools.partial(mode.dropout, rate=self.config.dropout, place=i)
            x = call_rematerialised(functools.partial(block, drop=drop), x, vector)
        x = tf.nn.relu(matmul(tf.nn.relu(x), self.out_kernel) + cast_like(self.out_bias, x))
        prediction = convolve(mode.for_prediction(padded), self.prediction, self.strides)
        if self.map_prediction is not None:
            own = condition.map[:, (self.group - 1) // 2 :: 2, (self.group - 1) % 2 :: 2]
            prediction += matmul(mode.for_prediction(own), self.map_prediction)
        return Hidden(x, prediction)

    def conditionals(
        self, levels: tf.Tensor, groups: list, condition: Condition, mode: Mode = EXACT
    ) -> PixelOutputs:
        """Return the distribution of every pixel of the group, whose levels are `levels`."""
        hidden = self(groups, condition, mode)
        if self.output is not None:
            return PixelOutputs(self.output, hidden, levels)
        patches = cut(levels, self.config.patch)
        known = self.patch_hidden(hidden)
        units, prediction = self.shallow(patches, Condition(None, known.units), mode)
        hidden = Hidden(units, prediction + known.prediction)
        return PixelOutputs(self.shallow.output, hidden, patches, tf.shape(levels)[0])

    def patch_hidden(self, hidden: Hidden) -> Hidden:
        """Cut a hidden state into patches, [batch * patches, M, M, ...] (type B)."""
        units = cut(tf.cast(hidden.units, tf.float32), self.config.patch)
        return Hidden(units, cut(hidden.prediction, self.config.patch))


class Multiscale(tf.Module):
    """A density over images int32 [batch, size, size, channels].

    `size` is the side of the largest image in pixels, the base size times a power of two. Without
    coordinates (`FactorConfig.coordinates`) images may have any shape, and sizes refer to the
    longer side. `parts` are the names of the parts to create, such as "8" for the base and "16.2"
    for a factor; None: all.
    """

    def __init__(
        self,
        config: MultiscaleConfig,
        size: int,
        output: OutputConfig,
        initial: Initial,
        vector_channels: int = 0,
        map_channels: int = 0,
        parts: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        check_size(size, config.base_size)
        self.config, self.output_config = config, output
        # Convolutional factors enlarge images of any shape; a flow samples in one pass, and its
        # `nats` are a bound.
        self.any_shape, self.has_flow = not config.factor.coordinates, bool(config.base_flows)
        self.sizes = sizes_between(config.base_size, size)
        known = part_names(self.sizes)
        for part in parts or ():
            if part not in known:
                raise ValueError(must_be("parts", f"of {', '.join(known)}", part))
        self.parts = known if parts is None else tuple(part for part in known if part in parts)
        self.base: Any = None  # a PixelCNN or an ImageFlow, if the base is one of the parts
        if known[0] in self.parts and config.base_flows:
            self.base = ImageFlow(
                config.base, config.base_flows, output, initial, vector_channels, map_channels
            )
        elif known[0] in self.parts:
            self.base = PixelCNN(config.base, output, initial, vector_channels, map_channels)
        map_channels += PLACE * config.factor.coordinates
        vector, factors = vector_channels, [part for part in self.parts if part != known[0]]
        self.factors = {
            part: Factor(int(part[-1]), config.factor, output, initial, vector, map_channels)
            for part in factors
        }
        networks = [self.base, *self.factors.values()]
        self.noise_words: int = max(each.noise_words for each in networks if each is not None)

    def nats(
        self,
        levels: tf.Tensor,
        condition: Condition,
        mode: Mode = EXACT,
        seeds: tf.Tensor | None = None,
    ) -> dict:
        """Return {part: log-probability, or lower bound for a flow}, float32 [batch] each, nats."""
        nats = {}
        if self.base is not None and self.has_flow:
            small, at_base = self.at_base(levels, condition)
            nats[self.parts[0]] = self.base.nats(small, at_base, mode, seeds)
        parts = self.conditionals(levels, condition, mode, seeds)
        return nats | {part: conditionals.nats() for part, conditionals in parts.items()}

    def conditionals(
        self,
        levels: tf.Tensor,
        condition: Condition,
        mode: Mode = EXACT,
        seeds: tf.Tensor | None = None,
    ) -> dict[str, PixelOutputs]:
        """Return {part: distribution of every pixel}; a base that is a flow is omitted.

        `levels` are int32 [batch, size, size, channels]; any height and width if `any_shape`. With
        `seeds` int32 [batch, 2], scales larger than `config.crop` are evaluated on random crops,
        with weights that make the sum an estimate for the whole image.
        """
        parts = {}
        if self.base is not None and not self.has_flow:
            small, at_base = self.at_base(levels, condition)
            parts[self.parts[0]] = self.base.conditionals(small, at_base, mode)
        for part, factor in self.factors.items():
            size = size_of(part)
            placed = self.add_coordinates(condition, size)
            step, weights, crop = self.sizes[-1] // size, None, self.config.crop
            image = levels[:, ::step, ::step] if self.any_shape else subsample_blocks(levels, size)
            if seeds is not None and crop and image.shape[1] > crop:
                image, placed, weights = crop_tiles(image, placed, crop, seeds)
            groups, before = split(image), factor.group - 1
            own = factor.conditionals(groups[before], groups[:before], placed, mode)
            parts[part] = own if weights is None else own.apply_weights(weights)
        return parts

    def add_coordinates(self, condition: Condition, size: int) -> Condition:
        """Return the condition at one of the model's sizes, with coordinates unless `any_shape`."""
        condition = condition_at(condition, size)
        return condition if self.any_shape else with_coordinates(condition, size, size)

    @property
    def drawn_share(self) -> float:
        """Share of the pixels of the largest image that the parts draw."""
        base = str(self.sizes[0])
        drawn = sum(size_of(part) ** 2 / (1 if part == base else 4) for part in self.parts)
        return drawn / self.sizes[-1] ** 2

    def at_base(self, levels: tf.Tensor, condition: Condition) -> tuple[tf.Tensor, Condition]:
        """Sub-sample images and their condition to the size of the base."""
        size = self.config.base_size
        return subsample_blocks(levels, size), condition_at(condition, size)


def size_of(part: str) -> int:
    """Return the size of the images that a part draws, in pixels."""
    return int(part.split(".")[0])


def condition_at(condition: Condition, size: int) -> Condition:
    """Return the condition with its map sub-sampled to a size."""
    if condition.map is None:
        return condition
    return Condition(condition.vector, subsample_blocks(condition.map, size))


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
