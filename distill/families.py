"""The registry of all model families; a new family is added by registering one object."""

from pathlib import Path
from typing import Any

from distill.command import STUDENT
from distill.images.command import IMAGE_STUDENT
from onepass.foundation.model_spec import kind_of
from onepass.replicator.training.family import ModelFamily, Parts
from onepass.shipped import model_folder
from pixelcnn.command import IMAGES
from wavenet.command import WAVENET

FAMILIES: list[ModelFamily] = [WAVENET, IMAGES, STUDENT, IMAGE_STUDENT]


def register(family: ModelFamily) -> None:
    """Add a family, so that all commands know its models.

    Raises:
      ValueError: a registered family has a preset or a model kind of the same name.
    """
    for other in FAMILIES:
        taken = {*other.kinds, *other.presets} & {*family.kinds, *family.presets}
        if taken:
            raise ValueError(f"`family` must have names of its own, got {min(taken)}.")
    FAMILIES.append(family)


def of_presets(verb: str) -> dict[str, ModelFamily]:
    """Return the family of each preset of a verb such as `train`, by preset name."""
    found = [family for family in FAMILIES if family.verb == verb]
    return {preset: family for family in found for preset in family.presets}


def of_kind(kind: Any) -> ModelFamily | None:
    """Return the first family that has models of this kind, or None."""
    return next((family for family in FAMILIES if kind in family.kinds), None)


def parts_of(kind: Any) -> Parts:
    """Return the functions of the family that has models of this kind.

    Raises:
      ValueError: no registered family has models of this kind.
    """
    family = of_kind(kind)
    if family is None:
        raise ValueError(f"`kind` must be that of a registered family, got {kind!r}.")
    return family.parts


def of_model(path: Path) -> ModelFamily | None:
    """Return the family of a run, a model folder or a shipped model; None if unknown."""
    return of_kind(kind_of(model_folder(path)))
