"""Configurations of image models, and presets."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from onepass.foundation.errors import UserError, at_least, require
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset, read_presets
from pixelcnn.data.image_rules import ImageRules
from pixelcnn.networks.config import (
    ConditioningConfig,
    MultiscaleConfig,
    OutputConfig,
    PixelCNNConfig,
    check_size,
    part_names,
    sizes_between,
)

SamplerName = Literal["cached", "fixed-point", "naive"]


@dataclasses.dataclass(frozen=True)
class DataConfig(ImageRules):
    """Settings of the images, their augmentation and their batches."""

    flip: bool = False
    """Mirror each image horizontally with probability 1/2."""
    shift: int = 0
    """Maximum random shift of an image in pixels, on both axes; edge pixels are repeated."""
    batch_size: int = 16
    """Number of images per batch."""

    def __post_init__(self) -> None:
        """Raise a ValueError that names the first invalid field."""
        super().__post_init__()
        at_least(self, 1, "batch_size")
        at_least(self, 0, "shift")
        require(not self.crop or not self.shift, "shift", "0 with `data.crop`", self.shift)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run that both kinds of image models share."""

    output: OutputConfig = dataclasses.field(default_factory=OutputConfig)
    """Output distribution of a pixel."""
    conditioning: ConditioningConfig = dataclasses.field(default_factory=ConditioningConfig)
    """Condition of the images and its encoder."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    """Images and batches."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """Settings of the optimiser."""
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    """Length of training and evaluation intervals; may change when a run is resumed."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the convolutions during training; everything else is float32."""
    seed: int = 0
    """Random seed of the initial weights, the order of the images, augmentation and dropout."""

    def __post_init__(self) -> None:
        """Raise a ValueError if the settings are inconsistent."""
        channels, levels = self.output.channels, self.output.levels
        rule = f"`data.channels`, {self.data.channels}"
        require(channels == self.data.channels, "output.channels", rule, channels)
        rule = f"{2**self.data.bits}, by `data.bits`"
        require(levels == 2**self.data.bits, "output.levels", rule, levels)
        if self.conditioning.kind == "video" and self.data.flip:
            raise UserError("`data.flip` must be off for a video: actions have a direction.")
        eight = self.data.bits == 8 or self.conditioning.kind != "video"
        require(eight, "data.bits", "8 for a video", self.data.bits)
        linear = self.data.bits == 8 or self.output.has_density
        require(linear, "data.bits", "8 for a softmax", self.data.bits)
        grey = self.data.bits == 8 or self.data.channels == 1
        require(grey, "data.bits", "8 in colour", self.data.bits)


@dataclasses.dataclass(frozen=True)
class PixelCNNTrainConfig(TrainConfig):
    """Settings of a training run of a PixelCNN."""

    kind: ClassVar[Literal["pixelcnn"]] = "pixelcnn"
    network: PixelCNNConfig = dataclasses.field(default_factory=PixelCNNConfig)
    """Architecture of the PixelCNN."""

    def __post_init__(self) -> None:
        """Raise a ValueError if the settings are inconsistent, or `data.crop` is not 0."""
        super().__post_init__()
        require(not self.data.crop, "data.crop", "0 for a PixelCNN", self.data.crop)


@dataclasses.dataclass(frozen=True)
class MultiscaleTrainConfig(TrainConfig):
    """Settings of a training run of a multiscale PixelCNN, or of some of its parts."""

    kind: ClassVar[Literal["multiscale"]] = "multiscale"
    network: MultiscaleConfig = dataclasses.field(default_factory=MultiscaleConfig)
    """Architecture of base and factors."""
    parts: tuple[str, ...] = ()
    """Train only these parts: a size, such as 16 (the base, or the three factors of that size), or
    a single factor, such as 16.2. Empty: all parts."""

    def __post_init__(self) -> None:
        """Raise a ValueError if the settings are inconsistent or a part is unknown."""
        super().__post_init__()
        check_size(self.data.size, self.network.base_size)
        names, coordinates = self.part_names, self.network.factor.coordinates
        kind = self.conditioning.kind
        rule = "none without `network.factor.coordinates`"
        require(coordinates or kind == "none", "conditioning.kind", rule, kind)
        if self.data.crop:
            self._check_photographs(str(self.network.base_size), names)

    def _check_photographs(self, base: str, names: tuple[str, ...]) -> None:
        crop, bits = self.data.crop, self.data.bits
        rule = "0 with `network.factor.coordinates`"
        require(not self.network.factor.coordinates, "data.crop", rule, crop)
        fits = not crop % self.multiple and crop <= self.data.size
        rule = f"a multiple of {self.multiple}, at most `data.size`"
        require(fits, "data.crop", rule, crop)
        require(base not in names, "parts", f"without {base}, the base, with `data.crop`", base)
        require(bits == 8, "data.bits", "8 with `data.crop`", bits)
        reduce = self.data.reduce
        require(reduce == "area", "data.reduce", "area with `data.crop`", reduce)

    @property
    def multiple(self) -> int:
        """Number that must divide a photograph's sides, so that scales consist of whole patches."""
        return self.data.size // self.network.base_size * self.network.factor.patch

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts to train, base first."""
        known = part_names(sizes_between(self.network.base_size, self.data.size))
        for wanted in self.parts:
            require(
                any(_is_of(name, wanted) for name in known),
                "parts",
                f"of {', '.join(known)}",
                wanted,
            )
        if not self.parts:
            return known
        return tuple(name for name in known if any(_is_of(name, wanted) for wanted in self.parts))


def _is_of(name: str, wanted: str) -> bool:
    return wanted in (name, name.split(".")[0])


AnyTrainConfig = PixelCNNTrainConfig | MultiscaleTrainConfig
KINDS: dict[str, type] = {of.kind: of for of in (PixelCNNTrainConfig, MultiscaleTrainConfig)}


PRESETS: dict[str, Preset[AnyTrainConfig]] = read_presets(
    Path(__file__).with_name("presets.toml"), *KINDS.values()
)
