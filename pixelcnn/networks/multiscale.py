"""The parallel multiscale PixelCNN, which samples an image in O(log N) network passes.

Reed et al. 2017, "Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664):

    p(x_1:S) = p(x_base) prod_scales p(x^2 | x^1) p(x^3 | x^1, x^2) p(x^4 | x^1, x^2, x^3)

where x^1 is the image sub-sampled to half the size, and x^2 to x^4 are the other pixels of each 2 x
2 tile. The base is modelled by a PixelCNN, or by a flow that draws it in one pass; every factor is
a separate network.
"""

from typing import Any

import tensorflow as tf

from onepass.likelihoods.initial import Initial
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import (
    MultiscaleConfig,
    OutputConfig,
    check_size,
    part_names,
    sizes_between,
)
from pixelcnn.networks.crops import crop_tiles
from pixelcnn.networks.factor import Factor
from pixelcnn.networks.groups import split, subsample_blocks
from pixelcnn.networks.image_flow import ImageFlow
from pixelcnn.networks.mode import EXACT, Mode
from pixelcnn.networks.outputs import PixelOutputs
from pixelcnn.networks.pixelcnn import PLACE, PixelCNN, with_coordinates


class Multiscale(tf.Module):
    """A density over images int32 [batch, size, size, channels].

    Without coordinates (`FactorConfig.coordinates`) images may have any shape, and sizes refer to
    the longer side.

    Args:
      size: side of the largest image in pixels, the base size times a power of two.
      parts: names of the parts to create, such as "8" for the base and "16.2" for a factor; None:
        all parts.
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
        name: str = "multiscale",
    ) -> None:
        super().__init__(name=name)
        check_size(size, config.base_size)
        self.config, self.output_config = config, output
        self.sizes = sizes_between(config.base_size, size)
        known = part_names(self.sizes)
        for part in parts or ():
            if part not in known:
                raise ValueError(f"`parts` must be of {', '.join(known)}, got {part}.")
        self.parts = known if parts is None else tuple(part for part in known if part in parts)
        self.base: Any = None  # a PixelCNN or an ImageFlow, if the base is one of the parts
        if known[0] in self.parts and config.base_flows:
            self.base = ImageFlow(
                config.base, config.base_flows, output, initial, vector_channels, map_channels
            )
        elif known[0] in self.parts:
            self.base = PixelCNN(
                config.base, output, initial, vector_channels, map_channels, name="base"
            )
        map_channels += PLACE * config.factor.coordinates
        self.factors = {
            part: Factor(
                int(part[-1]), config.factor, output, initial, vector_channels, map_channels
            )
            for part in self.parts
            if part != known[0]
        }

    @property
    def noise_words(self) -> int:
        """Number of random words per pixel."""
        networks = [self.base, *self.factors.values()]
        return max(network.noise_words for network in networks if network is not None)

    def log_prob(self, levels: tf.Tensor, condition: Condition) -> tf.Tensor:
        """Return images' log-probability or, with a flow, a lower bound, float32 [batch], nats."""
        return tf.add_n(list(self.nats(levels, condition).values()))

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

        Args:
          levels: int32 [batch, size, size, channels]; any height and width if `any_shape`.
          seeds: int32 [batch, 2]; if given, scales larger than `config.crop` are evaluated on
            random crops, with weights that make the sum an estimate for the whole image.
        """
        parts = {}
        if self.base is not None and not self.has_flow:
            small, at_base = self.at_base(levels, condition)
            parts[self.parts[0]] = self.base.conditionals(small, at_base, mode)
        for part, factor in self.factors.items():
            size = size_of(part)
            placed = self.add_coordinates(condition, size)
            image, weights, crop = self.at_size(levels, size), None, self.config.crop
            if seeds is not None and crop and image.shape[1] > crop:
                image, placed, weights = crop_tiles(image, placed, crop, seeds)
            groups, before = split(image), factor.group - 1
            own = factor.conditionals(groups[before], groups[:before], placed, mode)
            parts[part] = own if weights is None else own.apply_weights(weights)
        return parts

    def at_size(self, levels: tf.Tensor, size: int) -> tf.Tensor:
        """Sub-sample images to one of the model's sizes."""
        if not self.any_shape:
            return subsample_blocks(levels, size)
        step = self.sizes[-1] // size
        return levels[:, ::step, ::step]

    def add_coordinates(self, condition: Condition, size: int) -> Condition:
        """Return the condition at one of the model's sizes, with coordinates unless `any_shape`."""
        condition = condition_at(condition, size)
        return condition if self.any_shape else with_coordinates(condition, size, size)

    @property
    def any_shape(self) -> bool:
        """Return whether the factors are convolutional and can enlarge images of any shape."""
        return not self.config.factor.coordinates

    @property
    def drawn_share(self) -> float:
        """Share of the pixels of the largest image that the parts draw."""
        base = str(self.sizes[0])
        drawn = sum(size_of(part) ** 2 / (1 if part == base else 4) for part in self.parts)
        return drawn / self.sizes[-1] ** 2

    @property
    def has_flow(self) -> bool:
        """Return whether the base is a flow, which samples in one pass; its `nats` are a bound."""
        return bool(self.config.base_flows)

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
