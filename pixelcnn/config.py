"""Configurations of image models, and presets."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from onepass.foundation.errors import UserError, at_least, require
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset
from pixelcnn.data.image_rules import ImageRules
from pixelcnn.networks.config import (
    ConditioningConfig,
    FactorConfig,
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


CLASSES = ConditioningConfig(kind="class")
TEXT = ConditioningConfig(kind="text")
WORDS = ConditioningConfig(
    kind="text", text_unit="word", text_channels=64, text_map_channels=16, dropout=0.1
)
MIXTURE_OF_5 = OutputConfig(components=5)

SMALL_PIXELCNN = PixelCNNConfig(layers=8, units=64, output_units=128)
DILATED_PIXELCNN = dataclasses.replace(SMALL_PIXELCNN, dilations=(1, 2, 4, 8), dropout=0.1)
DILATED_WIDE_PIXELCNN = PixelCNNConfig(
    layers=12, units=112, output_units=128, dilations=(1, 2, 4, 8)
)
SMALL_MULTISCALE = MultiscaleConfig(
    base_size=8,
    base=SMALL_PIXELCNN,
    factor=FactorConfig(kind="A", blocks=6, units=64, output_units=128),
)
PATCHED_MULTISCALE = dataclasses.replace(
    SMALL_MULTISCALE, factor=dataclasses.replace(SMALL_MULTISCALE.factor, kind="B")
)
DROPPING_MULTISCALE = dataclasses.replace(
    SMALL_MULTISCALE, factor=dataclasses.replace(SMALL_MULTISCALE.factor, dropout=0.1)
)
# For a data set of only 1,649 images, which would otherwise be memorised.
DROPPING_EVERYWHERE = dataclasses.replace(
    DROPPING_MULTISCALE, base=dataclasses.replace(SMALL_PIXELCNN, dropout=0.1)
)
# The base, a seventh of the work, determines the content of an image.
CAPTIONED_MULTISCALE = dataclasses.replace(
    DROPPING_MULTISCALE, base=PixelCNNConfig(layers=10, units=96, output_units=128, dropout=0.2)
)
# The weights do not depend on size or location; a training step sees 64x64 pixels of each scale.
UPSAMPLING = MultiscaleConfig(
    base_size=64,
    factor=FactorConfig(kind="A", blocks=5, units=64, output_units=96, coordinates=False),
    crop=64,
)
PAPER_BASE = PixelCNNConfig(layers=12, units=128, output_units=256)
PAPER_MULTISCALE = MultiscaleConfig(
    base_size=4,
    base=PAPER_BASE,
    factor=FactorConfig(
        kind="B", blocks=12, units=128, output_units=256, shallow_layers=4, shallow_units=128
    ),
)
IMAGENET_MULTISCALE = MultiscaleConfig(
    base_size=8,
    base=PixelCNNConfig(layers=12, units=256, output_units=256),
    factor=FactorConfig(
        kind="B", blocks=12, units=256, output_units=256, shallow_layers=4, shallow_units=256
    ),
)


def _adam(warmup_steps: int = 100, average_decay: float = 0.99) -> OptimizerConfig:
    return OptimizerConfig(
        learning_rate=2e-3,
        warmup_steps=warmup_steps,
        decay="cosine",
        average_decay=average_decay,
        clip_norm=1.0,
    )


def _small(
    kind: Callable[..., AnyTrainConfig],
    network: PixelCNNConfig | MultiscaleConfig,
    size: int,
    steps: int,
    conditioning: ConditioningConfig = CLASSES,
    batch: int = 16,
    average_decay: float = 0.99,
    **data: Any,
) -> AnyTrainConfig:
    return kind(
        output=MIXTURE_OF_5,
        conditioning=conditioning,
        data=DataConfig(size=size, batch_size=batch, **data),
        optimizer=_adam(average_decay=average_decay),
        loop=LoopConfig(num_steps=steps, evaluate_every_steps=min(250, steps // 3)),
        compute_dtype="bfloat16",
        network=network,
    )


def _paper(
    kind: Callable[..., AnyTrainConfig],
    network: PixelCNNConfig | MultiscaleConfig,
    size: int,
    conditioning: ConditioningConfig = CLASSES,
    batch: int = 128,
) -> AnyTrainConfig:
    return kind(
        conditioning=conditioning,
        data=DataConfig(size=size, batch_size=batch),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=1, decay="cosine"),
        loop=LoopConfig(num_steps=200_000, evaluate_every_steps=5000),
        network=network,
    )


NO_CONDITION = ConditioningConfig()
VIDEO = ConditioningConfig(kind="video", jitter=1.5)
SMOKE_FACTOR = FactorConfig(kind="A", blocks=1, units=16, output_units=16)
SMOKE_PIXELCNN = PixelCNNConfig(layers=2, units=16, output_units=16)

PRESETS: dict[str, Preset[AnyTrainConfig]] = {
    "pixelcnn-smoke": Preset(
        "A tiny PixelCNN, 8x8 grey pixels, 20 steps: does everything run? Seconds.",
        PixelCNNTrainConfig(
            output=OutputConfig(components=2, channels=1),
            data=DataConfig(size=8, channels=1, batch_size=8),
            loop=LoopConfig(num_steps=20, evaluate_every_steps=20),
            network=SMOKE_PIXELCNN,
        ),
    ),
    "multiscale-smoke": Preset(
        "A tiny multiscale PixelCNN, 8x8 grey pixels, 20 steps: does everything run? Seconds.",
        MultiscaleTrainConfig(
            output=OutputConfig(components=2, channels=1),
            data=DataConfig(size=8, channels=1, batch_size=8),
            loop=LoopConfig(num_steps=20, evaluate_every_steps=20),
            network=MultiscaleConfig(base_size=4, base=SMOKE_PIXELCNN, factor=SMOKE_FACTOR),
        ),
    ),
    "pixelcnn-cpu-32": Preset(
        "Class-conditional PixelCNN of 32x32 colour images that a CPU can train, its layers "
        "dilated, with dropout and images moved by a pixel: 2.39 bits/dim on the sign digits.",
        _small(
            PixelCNNTrainConfig,
            DILATED_PIXELCNN,
            32,
            20_000,
            batch=8,
            average_decay=0.998,
            shift=1,
        ),
    ),
    "pixelcnn-reach-32": Preset(
        "Twelve dilated layers: a pixel sees 48 rows up, 33 in pixelcnn-cpu-32; about as many "
        "weights as multiscale-cpu-32. Not fully trained here.",
        _small(PixelCNNTrainConfig, DILATED_WIDE_PIXELCNN, 32, 2500),
    ),
    "multiscale-cpu-32": Preset(
        "The corresponding multiscale model, type A, with dropout and images moved by a pixel: "
        "2.58 bits/dim.",
        _small(MultiscaleTrainConfig, DROPPING_EVERYWHERE, 32, 5500, average_decay=0.998, shift=1),
    ),
    "multiscale-patches-32": Preset(
        "As multiscale-cpu-32, type B: a shallow PixelCNN within 4x4 patches; twice the work; "
        "2.87 bits/dim.",
        _small(MultiscaleTrainConfig, PATCHED_MULTISCALE, 32, 1250),
    ),
    "pixelcnn-cpu-64": Preset(
        "Class-conditional PixelCNN of 64x64 colour images that a CPU can train: 2.93 "
        "bits/dim on TrashNet.",
        _small(PixelCNNTrainConfig, SMALL_PIXELCNN, 64, 3200, flip=True, batch=4),
    ),
    "multiscale-cpu-64": Preset(
        "The corresponding multiscale model, type A, for the same time: 2.86 bits/dim.",
        _small(MultiscaleTrainConfig, SMALL_MULTISCALE, 64, 4600, flip=True, batch=4),
    ),
    "multiscale-patches-64": Preset(
        "As multiscale-cpu-64, type B: a shallow PixelCNN within 4x4 patches; twice the work. "
        "Not fully trained here.",
        _small(MultiscaleTrainConfig, PATCHED_MULTISCALE, 64, 2000, flip=True, batch=4),
    ),
    "multiscale-text-32": Preset(
        "32x32 images from captions (200 characters), type A, for a CPU: 2.67 bits/dim on the "
        "sign digits.",
        _small(MultiscaleTrainConfig, SMALL_MULTISCALE, 32, 3000, TEXT),
    ),
    "multiscale-words-32": Preset(
        "32x32 images from captions read by their words, type A, for a CPU: drawings of few kinds "
        "with thousands of captions, such as emoji (2.26 bits/dim, 8,600 steps). Can be guided.",
        dataclasses.replace(
            _small(MultiscaleTrainConfig, CAPTIONED_MULTISCALE, 32, 30_000, WORDS),
            optimizer=dataclasses.replace(
                _adam(500), decay="cooldown", cooldown_steps=6000, average_decay=0.999
            ),
            loop=LoopConfig(num_steps=30_000, evaluate_every_steps=1000),
        ),
    ),
    "multiscale-video-64": Preset(
        "The next 64x64 frame from two before it, action and state, type A, for a CPU: 2.95 "
        "bits/dim.",
        _small(MultiscaleTrainConfig, DROPPING_MULTISCALE, 64, 3000, VIDEO, batch=4),
    ),
    "multiscale-photos-512": Preset(
        "512x512 photographs in 82 passes (64 of the 8x8 base), trained on crops of 64x64, for a "
        "CPU. Not fully trained here.",
        _small(
            MultiscaleTrainConfig,
            dataclasses.replace(SMALL_MULTISCALE, crop=64),
            512,
            3000,
            NO_CONDITION,
            flip=True,
            batch=4,
        ),
    ),
    "upsample-512": Preset(
        "Only factors, 64 to 128 to 256 to 512, of photographs of any shape: enlarges one in 9 "
        "passes (`onepass sample RUN --start PHOTO_64.png`). `--network.factor.kind B`: patches.",
        dataclasses.replace(
            _small(
                functools.partial(MultiscaleTrainConfig, parts=("128", "256", "512")),
                UPSAMPLING,
                512,
                12_000,
                NO_CONDITION,
                flip=True,
                batch=4,
                average_decay=0.998,
                crop=256,
            ),
            loop=LoopConfig(num_steps=12_000, evaluate_every_steps=500),
        ),
    ),
    "pixelcnn-paper-32": Preset(
        "ImageNet 32x32, 12 layers of 256 channels: 3.83 bits/dim in the paper. Never fully "
        "trained here.",
        _paper(PixelCNNTrainConfig, PixelCNNConfig(12, 256, 256), 32, NO_CONDITION),
    ),
    "multiscale-paper-imagenet-64": Preset(
        "ImageNet 64x64 as in Reed et al. 2017, 256 channels, base 8x8: 3.70 bits/dim in the "
        "paper. Never fully trained here.",
        _paper(MultiscaleTrainConfig, IMAGENET_MULTISCALE, 64, NO_CONDITION),
    ),
    "multiscale-paper-text-256": Preset(
        "Captions to 256x256 as in Reed et al. 2017, 128 channels, base 4x4, crops of 64x64. "
        "Never fully trained here.",
        _paper(MultiscaleTrainConfig, dataclasses.replace(PAPER_MULTISCALE, crop=64), 256, TEXT),
    ),
    "multiscale-paper-video-64": Preset(
        "The next 64x64 frame of robot video as in Reed et al. 2017, type A, batch 64. Never "
        "fully trained here.",
        _paper(
            MultiscaleTrainConfig,
            dataclasses.replace(
                IMAGENET_MULTISCALE,
                factor=dataclasses.replace(IMAGENET_MULTISCALE.factor, kind="A"),
            ),
            64,
            VIDEO,
            64,
        ),
    ),
}
