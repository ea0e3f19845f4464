"""The options of the verb `distill` for image models, and the family of their students."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from distill.images.config import FlowConfig, GuidedConfig, ImageDistillConfig
from distill.images.presets import PRESETS
from foundation.errors import UserError
from pixelcnn import shipped
from pixelcnn.command import IMAGES, training_data
from replicator.training.command import TrainingOptions

if TYPE_CHECKING:
    from distill.images.training import ImageStudentRecipe


@dataclasses.dataclass(frozen=True)
class DistillImagesArguments(TrainingOptions):
    """Distil an image model into one that takes fewer passes; resumes where it stopped."""

    teacher: Path
    """Run directory or model folder of an image model, or a shipped one such as shipped-digits;
    read, never written."""
    config: Annotated[ImageDistillConfig, tyro.conf.arg(name="")]
    data: str | None = None
    """Images, in any form that `train` takes; None: those of the teacher's training."""


@dataclasses.dataclass(frozen=True)
class GuidedArguments(DistillImagesArguments):
    """Distil the guidance of a model of classes into a model like it; resumes where it stopped."""

    config: Annotated[GuidedConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class FlowArguments(DistillImagesArguments):
    """Distil a PixelCNN, or the base of a multiscale model, into flows of one pass; resumes."""

    config: Annotated[FlowConfig, tyro.conf.arg(name="")]


ARGUMENTS: dict[str, type[DistillImagesArguments]] = {
    GuidedConfig.kind: GuidedArguments,
    FlowConfig.kind: FlowArguments,
}


def arguments_of(preset: str) -> type[DistillImagesArguments]:
    """Return the class of a preset's options."""
    return ARGUMENTS[PRESETS[preset].config.kind]


def _recipe(preset: str, given: DistillImagesArguments) -> "ImageStudentRecipe":
    from distill.images.training import ImageStudentRecipe
    from pixelcnn.model import load

    if given.data is None and str(given.teacher) in shipped.FOLDERS:
        raise UserError(f"{given.teacher} comes without its images; name some with --data.")
    data = given.data or training_data(given.teacher)
    return ImageStudentRecipe(preset, given.config, data, load(given.teacher), given.teacher)


IMAGE_STUDENT = dataclasses.replace(
    IMAGES,  # which its models are
    verb="distill",
    presets=PRESETS,
    options=arguments_of,
    score=lambda config: (
        f"best dev {'KL ' if config.targets.has_divergence else ''}{{:.4f}} bits/dim"
    ),
    load_parts=lambda: dataclasses.replace(IMAGES.parts, recipe=_recipe),
    detected=lambda config, words: [],
)
