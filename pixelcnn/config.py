"""Configurations of images, networks and training, and presets.

Every field is also a command-line option. This module does not import TensorFlow, so that `--help`
is fast.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from onepass.foundation.rules import (
    Checked,
    Count,
    Natural,
    NonNegative,
    Share,
    UserError,
    check_levels,
    choices,
    require,
    stored_config,
)
from onepass.likelihoods.registry import mixtures
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset, read_presets

Reduce = Literal["area", "subsample"]


def dtype_of(bits: int) -> str:
    """Return the dtype of levels with a number of bits: uint8 up to 8 bits, else uint16."""
    return "uint8" if bits <= 8 else "uint16"


@dataclasses.dataclass(frozen=True)
class ImageRules(Checked):
    """Size, channels and depth of images, and the dev share if the source has no split."""

    size: Count = 32
    """Side of an image in pixels; larger images are cropped to the centred square and reduced."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for red, green and blue."""
    reduce: Reduce = "area"
    """Reduction of larger images: averages over areas, or every k-th pixel."""
    dev_share: Share = 0.05
    """Share of the images assigned to dev, by a hash of the name, if the source has no split."""
    bits: int = 8
    """Bits per level, 8 to 16. With 8, deeper images are scaled; with more, grey images in 16-bit
    files (PNG, TIFF, npy, npz) are kept unchanged. `onepass train` detects the value unless this or
    `output.levels` is given."""
    crop: Natural = 0
    """Train on random square crops of photographs with this side in pixels, for factors without
    coordinates; photographs keep their shape and are reduced to a longer side of `size`. 0: train
    on whole square images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(8 <= self.bits <= 16, "bits", "between 8 and 16", self.bits)


ConditionKind = Literal["none", "class", "text", "map", "video"]
SOFTMAX = "softmax"  # the likelihood with its own layers
LikelihoodKind = Annotated[str, choices(lambda: (*mixtures(), SOFTMAX))]
FactorKind = Literal["A", "B"]
TextUnit = Literal["character", "word"]
GROUPS = (2, 3, 4)  # pixels of a 2 x 2 tile that are drawn; the first pixel is known


@dataclasses.dataclass(frozen=True)
class ConditioningConfig(Checked):
    """Settings of the condition and of its encoder."""

    kind: ConditionKind = "none"
    """Kind of condition: none, class, text (a caption), map (of labels) or video (the preceding
    frames)."""
    classes: Natural = 0
    """Number of classes, or of labels in a map."""
    dropout: Share = 0.0
    """Share of images whose class or caption is dropped in training, so that the model also learns
    an unconditional distribution, which guidance needs."""
    text_unit: TextUnit = "character"
    """Encoder of captions: by character, or by word regardless of order, which needs fewer images.
    """
    text_channels: Count = 128
    """Channels of a caption's vector and of the encoder's layers."""
    text_map_channels: Natural = 0
    """Channels of a map of 8x8 cells that is computed from a caption's vector, for locations in
    captions; 0: no map."""
    map_channels: Count = 32
    """Output channels of the encoders of maps and frames."""
    context_frames: Count = 2
    """Number of preceding frames that a video model reads."""
    action_channels: Natural = 0
    """Number of values in a frame's action; 0: no actions."""
    state_channels: Natural = 0
    """Number of values in a frame's state; 0: no states."""
    jitter: NonNegative = 0.0
    """Standard deviation of the noise added to normalised actions and states in training, against
    overfitting."""
    picture_channels: int = 3
    """Channels of the preceding frames: 1 for grey, 3 for colour."""
    levels: int = 256
    """Number of levels of the preceding frames."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.dropout or self.kind in ("class", "text")
        require(fits, "dropout", "0 but for kind class or text", self.dropout)
        channels = self.picture_channels
        require(channels in (1, 3), "picture_channels", "1 or 3", channels)
        check_levels(self.levels)

    @property
    def has_null(self) -> bool:
        """Return whether there is a null condition, which guidance needs.

        It replaces dropped conditions or, for classes without dropout, is the mean of all classes.
        """
        return self.kind == "class" or self.dropout > 0


@dataclasses.dataclass(frozen=True)
class OutputConfig(Checked):
    """Settings of a pixel's output distribution."""

    likelihood: LikelihoodKind = "logistic"
    """Mixture of logistics (PixelCNN++) or Gaussians over the colour, or a softmax over the levels
    of each channel given the channels before it (PixelCNN)."""
    levels: int = 256
    """Number of levels per channel."""
    channels: int = 3
    """1 for grey, 3 for red, green and blue, in this order."""
    components: Count = 10
    """Logistics or Gaussians in the mixture."""
    min_log_scale: float = -7.0
    """Lower bound of the natural log of a scale, relative to half the range of the levels."""
    softmax_units: Count = 64
    """Hidden units of each channel's softmax."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.channels in (1, 3), "channels", "1 or 3", self.channels)
        kinds = (*mixtures(), SOFTMAX)
        require(self.likelihood in kinds, "likelihood", " or ".join(kinds), self.likelihood)
        check_levels(self.levels, 65536 if self.has_density else 256)

    @property
    def has_density(self) -> bool:
        """Return whether the output is a density over real numbers; gradients flow through it."""
        return self.likelihood != SOFTMAX


@dataclasses.dataclass(frozen=True)
class PixelCNNConfig(Checked):
    """The architecture of a gated PixelCNN."""

    layers: Count = 8
    """Number of gated layers, each with a vertical and a horizontal part."""
    units: Count = 64
    """Channels of each of the two stacks."""
    output_units: Count = 128
    """Channels of the layer before the output."""
    dropout: Share = 0.0
    """Dropout rate of the gated units."""
    coordinates: bool = True
    """Let the network read the coordinates of each pixel."""
    dilations: tuple[int, ...] = (1,)
    """Dilations of the layers, repeated cyclically; 1 2 4 8 has a larger receptive field than 1 at
    nearly the same cost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = bool(self.dilations) and min(self.dilations) >= 1
        require(fits, "dilations", "one or more numbers of at least 1", self.dilations)

    @property
    def layer_dilations(self) -> tuple[int, ...]:
        """The dilation of each layer."""
        return tuple(itertools.islice(itertools.cycle(self.dilations), self.layers))


@dataclasses.dataclass(frozen=True)
class FactorConfig(Checked):
    """The architecture of the factors of a multiscale model."""

    kind: FactorKind = "A"
    """A: the pixels of a group are drawn at once; B: a shallow PixelCNN draws M x M patches."""
    blocks: Count = 6
    """Number of gated residual blocks of the ResNet."""
    units: Count = 96
    """Channels of the ResNet."""
    output_units: Count = 128
    """Channels of the layer before the output."""
    patch: int = 4
    """Side M of a patch, in pixels of the group (type B)."""
    shallow_layers: Count = 3
    """Number of layers of the shallow PixelCNN (type B)."""
    shallow_units: Count = 48
    """Channels of each stack of the shallow PixelCNN (type B)."""
    dropout: Share = 0.0
    """Dropout rate of the gated units."""
    coordinates: bool = True
    """Let the factors read the coordinates of each pixel. Without coordinates they are
    convolutional: they enlarge images of any shape, and can be trained without a base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.patch in (2, 4, 8), "patch", "2, 4 or 8", self.patch)

    @property
    def shallow(self) -> PixelCNNConfig:
        """The configuration of the PixelCNN within a patch."""
        return PixelCNNConfig(
            self.shallow_layers, self.shallow_units, self.output_units, self.dropout
        )


@dataclasses.dataclass(frozen=True)
class MultiscaleConfig(Checked):
    """The architecture of a multiscale PixelCNN."""

    base_size: int = 8
    """Side of the smallest image in pixels; a PixelCNN draws it pixel by pixel, or a flow at once.
    """
    base: PixelCNNConfig = dataclasses.field(default_factory=PixelCNNConfig)
    """Architecture of the PixelCNN for the smallest image."""
    factor: FactorConfig = dataclasses.field(default_factory=FactorConfig)
    """Architecture of the factors."""
    crop: int = 0
    """Train scales larger than this on random crops with this side in pixels; 0: whole images."""
    base_flows: tuple[int, ...] = ()
    """Number of layers of each flow, if flows draw the smallest image in one pass; their channels
    are those of `base`. Empty: a PixelCNN draws it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (2, 4, 8, 16, 32, 64)
        require(self.base_size in sizes, "base_size", "2, 4, 8, 16, 32 or 64", self.base_size)
        layers = self.base_flows
        require(min(layers, default=1) >= 1, "base_flows", "at least 1 layer each", layers)
        fits = self.factor.kind != "B" or self.factor.patch <= self.base_size
        rule = f"at most `base_size`, {self.base_size}"
        require(fits, "factor.patch", rule, self.factor.patch)
        name = "base_size" if self.factor.coordinates else "factor.patch"
        least = 2 * (self.base_size if self.factor.coordinates else self.factor.patch)
        fits = self.crop == 0 or (self.crop >= least and not self.crop & (self.crop - 1))
        require(fits, "crop", f"0 or a power of two, at least twice `{name}`", self.crop)


def check_size(size: int, base_size: int) -> None:
    """Raise a ValueError unless `size` is `base_size` times a power of two."""
    times, rest = divmod(size, base_size)
    if rest or times < 1 or times & (times - 1):
        near = [base_size * 2**k for k in range(1, 10)]
        below = max((s for s in near if s <= size), default=near[0])
        raise UserError(
            f"`size` must be {base_size} times a power of two, got {size}; "
            f"{below} and {2 * below} are near."
        )


def sizes_between(base_size: int, size: int) -> tuple[int, ...]:
    """Return the sizes from `base_size` to `size`, each twice the one before."""
    sizes = [base_size]
    while sizes[-1] < size:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def part_names(sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of all parts: "8" for a base of 8 x 8 pixels, then SIZE.GROUP ("16.2")."""
    return (str(sizes[0]), *(f"{size}.{group}" for size in sizes[1:] for group in GROUPS))


SamplerName = Literal["cached", "fixed-point", "naive"]


@dataclasses.dataclass(frozen=True)
class DataConfig(ImageRules):
    """Settings of the images, their augmentation and their batches."""

    flip: bool = False
    """Mirror each image horizontally with probability 1/2."""
    shift: Natural = 0
    """Maximum random shift of an image in pixels, on both axes; edge pixels are repeated."""
    batch_size: Count = 16
    """Number of images per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.crop or not self.shift, "shift", "0 with `data.crop`", self.shift)


@dataclasses.dataclass(frozen=True)
class TrainConfig(Checked):
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
        super().__post_init__()
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
        super().__post_init__()
        check_size(self.data.size, self.network.base_size)
        names, coordinates = self.part_names, self.network.factor.coordinates
        kind = self.conditioning.kind
        rule = "none without `network.factor.coordinates`"
        require(coordinates or kind == "none", "conditioning.kind", rule, kind)
        crop, bits, reduce = self.data.crop, self.data.bits, self.data.reduce
        if not crop:
            return
        rule = "0 with `network.factor.coordinates`"
        require(not coordinates, "data.crop", rule, crop)
        fits = not crop % self.multiple and crop <= self.data.size
        rule = f"a multiple of {self.multiple}, at most `data.size`"
        require(fits, "data.crop", rule, crop)
        base = str(self.network.base_size)
        require(base not in names, "parts", f"without {base}, the base, with `data.crop`", base)
        require(bits == 8, "data.bits", "8 with `data.crop`", bits)
        require(reduce == "area", "data.reduce", "area with `data.crop`", reduce)

    @property
    def multiple(self) -> int:
        """Number that must divide a photograph's sides, so that scales consist of whole patches."""
        return self.data.size // self.network.base_size * self.network.factor.patch

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts to train, base first."""
        known = part_names(sizes_between(self.network.base_size, self.data.size))
        named = {name: {name, name.split(".")[0]} for name in known}  # a part's own, and its size
        for wanted in self.parts:
            require(
                wanted in set().union(*named.values()), "parts", f"of {', '.join(known)}", wanted
            )
        return tuple(name for name in known if not self.parts or named[name] & {*self.parts})


AnyTrainConfig = PixelCNNTrainConfig | MultiscaleTrainConfig
KINDS: dict[str, type] = {of.kind: of for of in (PixelCNNTrainConfig, MultiscaleTrainConfig)}


def config_from(stored: dict) -> AnyTrainConfig:
    """Return the configuration stored in a config.json."""
    kind = stored.get("kind")
    if kind not in KINDS:
        raise UserError(f"It holds a {kind}, not a {' or a '.join(KINDS)}.")
    return stored_config(KINDS[kind], stored)


PRESETS: dict[str, Preset[AnyTrainConfig]] = read_presets(
    Path(__file__).with_name("presets.toml"), *KINDS.values()
)
