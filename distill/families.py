"""The registry of all families of models; a new family is one object that registers here."""

from pathlib import Path
from typing import Any

from distill.command import STUDENT
from distill.images.command import IMAGE_STUDENT
from foundation.model_spec import kind_of
from pixelcnn.command import IMAGES
from replicator.training.family import ModelFamily, Parts
from wavenet.command import WAVENET

FAMILIES: list[ModelFamily] = [WAVENET, IMAGES, STUDENT, IMAGE_STUDENT]


def register(family: ModelFamily) -> None:
    """Make a family known to all verbs of the command line.

    Raises:
      ValueError: a registered family has a preset or a kind of model of the same name.
    """
    for other in FAMILIES:
        taken = {*other.kinds, *other.presets} & {*family.kinds, *family.presets}
        if taken:
            raise ValueError(f"`family` must have names of its own, got {min(taken)}.")
    FAMILIES.append(family)


def of_presets(verb: str) -> dict[str, ModelFamily]:
    """Return the family of every preset of a verb, by the preset's name."""
    found = [family for family in FAMILIES if family.verb == verb]
    return {preset: family for family in found for preset in family.presets}


def of_kind(kind: Any) -> ModelFamily | None:
    """Return the first family whose models are of a kind, or None."""
    return next((family for family in FAMILIES if kind in family.kinds), None)


def parts_of(kind: Any) -> Parts:
    """Return the functions of the family whose models are of a kind.

    Raises:
      ValueError: no registered family has models of this kind.
    """
    family = of_kind(kind)
    if family is None:
        raise ValueError(f"`kind` must be that of a registered family, got {kind!r}.")
    return family.parts


def of_model(path: Path) -> ModelFamily | None:
    """Return the family of a run, a model folder or a shipped model; None if there is none."""
    if Path(path).exists():
        return of_kind(kind_of(path))
    return next((family for family in FAMILIES if str(path) in family.shipped), None)
