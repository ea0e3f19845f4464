"""The family of students of images: the options of `onepass distill`, and their `ModelFamily`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from distill.images.config import PRESETS, FlowConfig, GuidedConfig, ImageDistillConfig
from onepass.foundation import model_folders
from onepass.foundation.rules import UserError
from onepass.replicator.training.config import TrainingOptions
from pixelcnn.family import IMAGES, training_data

if TYPE_CHECKING:
    from distill.images.training import ImageStudentRecipe


@dataclasses.dataclass(frozen=True)
class DistillImagesArguments(TrainingOptions):
    """Distil an image model into one that takes fewer passes; a stopped run is resumed."""

    teacher: Path
    """Run directory or model folder of an image model, or a shipped model such as shipped-digits;
    it is never changed."""
    config: Annotated[ImageDistillConfig, tyro.conf.arg(name="")]
    data: str | None = None
    """Images, in any form that `train` takes; None: the images that the teacher was trained on.
    Required for a shipped teacher."""


@dataclasses.dataclass(frozen=True)
class GuidedArguments(DistillImagesArguments):
    """Distil guidance into a model of the same architecture; a stopped run is resumed."""

    config: Annotated[GuidedConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class FlowArguments(DistillImagesArguments):
    """Distil a PixelCNN, or a multiscale model's base, into flows; a stopped run is resumed."""

    config: Annotated[FlowConfig, tyro.conf.arg(name="")]


ARGUMENTS: dict[str, type[DistillImagesArguments]] = {
    GuidedConfig.kind: GuidedArguments,
    FlowConfig.kind: FlowArguments,
}


def arguments_of(preset: str) -> type[DistillImagesArguments]:
    """Return the dataclass of a preset's command-line options."""
    return ARGUMENTS[PRESETS[preset].config.kind]


def _recipe(preset: str, given: DistillImagesArguments) -> "ImageStudentRecipe":
    from distill.images.training import ImageStudentRecipe
    from pixelcnn.model import load

    if given.data is None and str(given.teacher) in model_folders.FOLDERS:
        raise UserError(f"{given.teacher} comes without its images; name some with --data.")
    data = given.data or training_data(given.teacher)
    return ImageStudentRecipe(preset, given.config, data, load(given.teacher), given.teacher)


IMAGE_STUDENT = dataclasses.replace(
    IMAGES,  # the students are image models
    verb="distill",
    presets=PRESETS,
    options=arguments_of,
    score=lambda config: (
        f"best dev {'KL ' if config.targets.has_divergence else ''}{{:.4f}} bits/dim"
    ),
    recipe=_recipe,
    detected=lambda config, words: [],
)
