"""Configurations of image distillations; every field can be set on the command line."""

import dataclasses
from typing import ClassVar, Literal

from foundation.errors import UserError
from foundation.field_rules import at_least, require
from replicator.training.config import LoopConfig, OptimizerConfig


@dataclasses.dataclass(frozen=True)
class GuidedTargets:
    """The target distribution of a pixel."""

    guidance: float = 1.5
    """Guidance weight: how far the teacher's distributions are moved away from unconditional
    ones."""
    temperature: tuple[float, ...] = (1.0,)
    """Temperature of the guided teacher, 1 for its own; one number, or one per scale, base
    first."""
    kl: float = 1.0
    """Weight of KL(guided teacher || student)."""
    likelihood: float = 0.0
    """Weight of the likelihood of the images themselves."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the field, if a number is out of range."""
        at_least(self, 0, "guidance", "kl", "likelihood")
        require(min(self.temperature) > 0, "temperature", "above 0", self.temperature)
        _check_terms(self, "likelihood")

    @property
    def has_divergence(self) -> bool:
        """True if one of the terms is a divergence, by which checkpoints are then compared."""
        return bool(self.kl)


@dataclasses.dataclass(frozen=True)
class FlowTargets:
    """The terms of a flow's loss and their weights; 0 switches a term off. Each is logged."""

    kl: float = 1.0
    """Weight of KL(student || teacher), in nats per dimension."""
    draws: int = 16
    """Draws per dimension for the cross-entropy."""
    likelihood: float = 0.0
    """Weight of a bound of the likelihood of the images themselves, in nats per dimension."""
    forward: float = 0.0
    """Weight of a bound of KL(teacher || student), in nats per dimension: the likelihood of images
    that the teacher draws."""
    guidance: float = 0.0
    """Guidance of the teacher as it draws images for `forward`; 0: its own distribution."""
    spectrum: float = 0.0
    """Weight of the difference between the power spectra of drawn and real images, each averaged
    over a device's batch."""
    features: float = 0.0
    """Weight of the difference between a small classifier's features of drawn and real images, each
    averaged over a device's batch. The classifier is trained first, and kept in the run."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the field, if a number is out of range."""
        at_least(self, 0, "kl", "likelihood", "forward", "guidance", "spectrum", "features")
        at_least(self, 1, "draws")
        _check_terms(self, "likelihood", "forward", "spectrum", "features")

    @property
    def has_divergence(self) -> bool:
        """True if one of the terms is a divergence, by which checkpoints are then compared."""
        return bool(self.kl or self.forward)


@dataclasses.dataclass(frozen=True)
class ImageDistillConfig:
    """The settings of every distillation of an image model."""

    kind: ClassVar[str]
    targets: GuidedTargets | FlowTargets
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    batch_size: int = 16
    """Images per batch."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of convolutions during training; all else is float32."""
    seed: int = 0
    """Seed of new weights, the order of the images, noise, crops and dropout."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the field, if a number is out of range."""
        at_least(self, 1, "batch_size")

    @property
    def needs_features(self) -> bool:
        """True if the loss compares features of a classifier, which is trained first."""
        return False


@dataclasses.dataclass(frozen=True)
class GuidedConfig(ImageDistillConfig):
    """Guidance distilled into a model of the teacher's own kind and size, which starts as it."""

    kind: ClassVar[str] = "guided"
    targets: GuidedTargets = dataclasses.field(default_factory=GuidedTargets)
    table_side: int = 0
    """Side, in pixels, of the largest groups whose tables are all compared; of larger ones only
    evenly spaced rows and columns are, from a random corner. 0: all are."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the field, if a number is out of range."""
        super().__post_init__()
        at_least(self, 0, "table_side")


@dataclasses.dataclass(frozen=True)
class FlowConfig(ImageDistillConfig):
    """A PixelCNN, or that of a multiscale model's base, distilled into flows of one pass."""

    kind: ClassVar[str] = "flow"
    targets: FlowTargets = dataclasses.field(default_factory=FlowTargets)
    flows: tuple[int, ...] = (4, 4, 8)
    """Layers of each flow, first to last."""
    units: int = 64
    """Channels of each of a flow's two stacks."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the field, if a number is out of range."""
        super().__post_init__()
        require(len(self.flows) > 0, "flows", "at least one", self.flows)
        at_least(self, 1, "units")

    @property
    def needs_features(self) -> bool:
        """True if the loss compares features of a classifier, which is trained first."""
        return self.targets.features > 0


def _check_terms(targets: GuidedTargets | FlowTargets, *others: str) -> None:
    if not any(getattr(targets, name) for name in ("kl", *others)):
        raise UserError("`kl` must be above 0 where no other term is.")
