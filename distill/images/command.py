"""The verb `distill` of the command line for image models."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from distill.images.config import DistillConfig, FlowConfig, GuidedConfig
from distill.images.presets import PRESETS
from foundation.errors import UserError
from pixelcnn import shipped
from pixelcnn.command import training_data
from replicator.training.command import TrainingOptions, parse_training, run_training


@dataclasses.dataclass(frozen=True)
class DistillImagesArguments(TrainingOptions):
    """Distil an image model into one that takes fewer passes; resumes where it stopped."""

    teacher: Path
    """Run directory or model folder of an image model, or a shipped one such as shipped-digits;
    read, never written."""
    config: Annotated[DistillConfig, tyro.conf.arg(name="")]
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
    """Return the options of a preset."""
    return ARGUMENTS[PRESETS[preset].config.kind]


def run_distill(preset: str, arguments: list[str], parse: Callable[..., Any]) -> int:
    """Run `onepass distill PRESET ...` and return the exit status, 128 + a signal that ended it."""
    words = ("distill", preset)
    given = parse_training(arguments_of(preset), words, arguments, parse, PRESETS[preset])
    if given.data is None and str(given.teacher) in shipped.FOLDERS:
        raise UserError(f"{given.teacher} comes without its images; name some with --data.")
    from distill.images.portable import export_run
    from distill.images.training import distill
    from pixelcnn.model import load

    teacher = load(given.teacher)
    what = (
        preset,
        given.config,
        teacher,
        given.teacher,
        given.data or training_data(given.teacher),
    )
    if given.workdir.resolve() == given.teacher.resolve():
        raise UserError(f"The student needs a --workdir of its own, {given.workdir} is not.")
    return run_training(
        given,
        train=lambda replicator: distill(*what, given.workdir, replicator=replicator),
        export=lambda: export_run(*what, given.portable, given.workdir),
        score=f"best dev {'KL ' if given.config.targets.has_divergence else ''}{{:.4f}} bits/dim",
        samples="images",
    )
