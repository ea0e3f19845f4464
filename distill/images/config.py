"""Configurations of image students, and presets."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from onepass.foundation.rules import Checked, Count, Natural, NonNegative, UserError, require
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, read_presets


@dataclasses.dataclass(frozen=True)
class GuidedTargets(Checked):
    """Settings of the guidance loss: the weights of its terms, and the teacher's distribution."""

    guidance: NonNegative = 1.5
    """Guidance weight: how far the teacher's distributions move away from unconditional ones."""
    temperature: tuple[float, ...] = (1.0,)
    """Temperature of the guided teacher; one number, or one per scale starting with the base. 1
    does not change its distribution."""
    kl: NonNegative = 1.0
    """Weight of KL(guided teacher || student)."""
    likelihood: NonNegative = 0.0
    """Weight of the negative log likelihood of the training images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(min(self.temperature) > 0, "temperature", "above 0", self.temperature)
        _check_terms(self, "likelihood")

    @property
    def has_divergence(self) -> bool:
        """True if a term of the loss is a KL, by which checkpoints are then compared."""
        return bool(self.kl)


@dataclasses.dataclass(frozen=True)
class FlowTargets(Checked):
    """The terms of a flow's loss and their weights; 0 disables a term. Each term is logged."""

    kl: NonNegative = 1.0
    """Weight of KL(student || teacher), in nats per dimension."""
    draws: Count = 16
    """Number of draws per dimension for estimating the cross-entropy."""
    likelihood: NonNegative = 0.0
    """Weight of an upper bound on the negative log-likelihood of the training images, in nats per
    dimension."""
    forward: NonNegative = 0.0
    """Weight of an upper bound on KL(teacher || student), in nats per dimension, estimated from
    images that the teacher draws."""
    guidance: NonNegative = 0.0
    """Guidance weight of the teacher when it draws images for `forward`; 0: no guidance."""
    spectrum: NonNegative = 0.0
    """Weight of the difference between the power spectra of drawn and real images, each averaged
    over the batch."""
    features: NonNegative = 0.0
    """Weight of the difference between a small classifier's features of drawn and real images, each
    averaged over the batch. The classifier is trained first and stored in the run directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_terms(self, "likelihood", "forward", "spectrum", "features")

    @property
    def has_divergence(self) -> bool:
        """True if a term of the loss is a KL, by which checkpoints are then compared."""
        return bool(self.kl or self.forward)


@dataclasses.dataclass(frozen=True)
class ImageDistillConfig(Checked):
    """Settings that all distillations of image models share."""

    kind: ClassVar[str]
    targets: GuidedTargets | FlowTargets
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    batch_size: Count = 16
    """Number of images per batch."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the convolutions' arithmetic during training; everything else is float32."""
    seed: int = 0
    """Seed of initial weights, the order of the images, noise, crops and dropout."""

    @property
    def needs_features(self) -> bool:
        """True if the loss compares features of a classifier, which must be trained first."""
        return False


@dataclasses.dataclass(frozen=True)
class GuidedConfig(ImageDistillConfig):
    """Settings for distilling guidance into a model of the same architecture as the teacher.

    The student starts with the teacher's weights.
    """

    kind: ClassVar[str] = "guided"
    targets: GuidedTargets = dataclasses.field(default_factory=GuidedTargets)
    table_side: Natural = 0
    """Compare the distributions of a pixel group whose sides are at least twice this number of
    pixels only at evenly spaced rows and columns, at least this many of each, starting at a random
    corner. 0: compare all."""


@dataclasses.dataclass(frozen=True)
class FlowConfig(ImageDistillConfig):
    """Settings for distilling a PixelCNN, or a multiscale model's base, into one-pass flows."""

    kind: ClassVar[str] = "flow"
    targets: FlowTargets = dataclasses.field(default_factory=FlowTargets)
    flows: tuple[int, ...] = (4, 4, 8)
    """Number of layers of each flow, first to last."""
    units: Count = 64
    """Number of channels of each of a flow's two stacks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.flows) > 0, "flows", "at least one", self.flows)

    @property
    def needs_features(self) -> bool:
        """True if the loss compares features of a classifier, which must be trained first."""
        return self.targets.features > 0


def _check_terms(targets: GuidedTargets | FlowTargets, *others: str) -> None:
    if not any(getattr(targets, name) for name in ("kl", *others)):
        raise UserError("`kl` must be above 0 if no other term is.")


PRESETS = read_presets(Path(__file__).with_name("presets.toml"), GuidedConfig, FlowConfig)
