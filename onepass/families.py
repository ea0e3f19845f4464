"""The table of all families of models, by the kinds of their models.

A family is one file, and one row here or one call of `register`. It is imported when a model of its
kind is met, so that a model loads nothing of the others.
"""

import contextlib
import pkgutil
from pathlib import Path
from typing import Any

from onepass.foundation.locations import kind_of, model_folder
from onepass.replicator.training.family import ModelFamily, Parts

# Each family, as MODULE:NAME or itself, and its kinds of models in config.json and model.json.
FAMILIES: list[tuple[str | ModelFamily, tuple[str, ...]]] = [
    ("onepass.own_family:AUTOREGRESSIVE", ("autoregressive",)),
    ("onepass.own_family:FLOW_STUDENT", ("flow-student",)),
    ("wavenet.family:WAVENET", ("wavenet",)),
    ("distill.family:STUDENT", ("parallel-wavenet",)),
    ("pixelcnn.family:IMAGES", ("pixelcnn", "multiscale")),
    ("distill.images.family:IMAGE_STUDENT", ()),  # trains models of the kinds of IMAGES
]
STUDENT = "parallel-wavenet"  # the kind whose loader says what is wrong with an unknown model


def register(family: ModelFamily, *kinds: str) -> None:
    """Add a family, so that all commands know its models.

    Args:
      family: the family.
      *kinds: names of the kinds of its models in config.json and model.json.

    Raises:
      ValueError: a registered family has a preset or a model kind of the same name.
    """
    presets = {name for other in every_family() for name in other.presets}
    taken = {*known_kinds(), *presets} & {*kinds, *family.presets}
    if taken:
        raise ValueError(f"`family` must have names of its own, got {min(taken)}.")
    FAMILIES.append((family, kinds))


def every_family() -> list[ModelFamily]:
    """Return all families, each of which is imported."""
    return [_imported(family) for family, _ in FAMILIES]


def known_kinds() -> list[str]:
    """Return the kinds of models of all families."""
    return [kind for _, kinds in FAMILIES for kind in kinds]


def of_presets(verb: str) -> dict[str, ModelFamily]:
    """Return the family of each preset of a verb such as `train`, by preset name."""
    found = [family for family in every_family() if family.verb == verb]
    return {preset: family for family in found for preset in family.presets}


def of_kind(kind: Any) -> ModelFamily | None:
    """Return the family that has models of this kind, or None."""
    return next((_imported(family) for family, kinds in FAMILIES if kind in kinds), None)


def registered(kind: Any) -> ModelFamily:
    """Return the family that has models of this kind."""
    family = of_kind(kind)
    if family is None:
        raise ValueError(f"`kind` must be that of a registered family, got {kind!r}.")
    return family


def installed(kind: Any) -> ModelFamily | None:
    """Return what `registered` does, or None where the family's code is not installed.

    A bundle runs without the code that trained its model.
    """
    with contextlib.suppress(ImportError):
        return registered(kind)
    return None


def parts_of(kind: Any) -> Parts:
    """Return the functions of the family that `registered` returns."""
    return registered(kind).parts


def of_model(path: Path | str) -> ModelFamily | None:
    """Return the family of a run, a model folder or a shipped model; None if unknown."""
    return of_kind(kind_of(model_folder(path)))


def _imported(family: str | ModelFamily) -> ModelFamily:
    found: ModelFamily = pkgutil.resolve_name(family) if isinstance(family, str) else family
    return found
