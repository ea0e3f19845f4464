"""Multiscale networks: a base and factors that enlarge, on whole images and on crops.

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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import must_be
from onepass.foundation.runtime import call_rematerialised
from onepass.likelihoods.codec import value_of
from onepass.likelihoods.noise import Initial
from pixelcnn.config import (
    FactorConfig,
    MultiscaleConfig,
    OutputConfig,
    check_size,
    part_names,
    sizes_between,
)
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.image_flow import ImageFlow
from pixelcnn.networks.layers import (
    EXACT,
    STRIDES,
    Hidden,
    Mode,
    PixelOutputs,
    cast_like,
    convolve,
    cut,
    make_output,
    matmul,
    merge_groups,
    split,
    subsample_blocks,
)
from pixelcnn.networks.pixelcnn import (
    PLACE,
    ConditionTerm,
    PixelCNN,
    gate_halves,
    passing,
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
