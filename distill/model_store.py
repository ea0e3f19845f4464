"""Models of users in files: an `Autoregressive` or a `FlowStudent`, by the kind in the file."""

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foundation.errors import UserError
from foundation.model_spec import kind_of

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive
    from distill.flow_student import FlowStudent

SPEC_FILE = "autoregressive.json"


def _autoregressive() -> ModuleType:
    from autoregressive import storage

    return storage


def _flow_student() -> ModuleType:
    from distill import flow_storage

    return flow_storage


# What returns the module with `save` and `load` of each kind, which imports TensorFlow.
STORES = {"autoregressive": _autoregressive, "flow-student": _flow_student}


def save(
    model: "Autoregressive | FlowStudent",
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
) -> Path:
    """Write a model as programs that need none of the code that defined its network.

    Args:
      model: a model with today's weights.
      folder: made if missing; a model that is there is replaced.
      sample_rate_hz: the sample rate of a model of sound, whose samples are then written and served
        as such; None: the one that the model was stored with before, or none.

    Returns:
      The folder, which `onepass.load`, `onepass sample`, `onepass evaluate` and `onepass export`
      take.

    Raises:
      UserError: a part of the model cannot be stored; the message names it.
      ValueError: the model is of another kind, or the sample rate is below 1 or of images.
    """
    return _store(getattr(model, "kind", None), type(model).__name__).save(
        model, folder, sample_rate_hz=sample_rate_hz
    )


def is_bundle_of_user(path: Path) -> bool:
    """Return whether a folder, NAME or NAME/VERSION, is a bundle of a model of one of the kinds."""
    versions = (folder for folder in path.glob("*/") if folder.name.isdecimal())
    return any(kind_of(folder) in STORES for folder in (path, *versions))


def load(folder: Path) -> Any:
    """Return the model that `save` wrote.

    Its program gets the rights of this process; `onepass.load` scans it before.

    Raises:
      UserError: the folder holds no such model, or it cannot be read.
    """
    try:
        kind = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8")).get("kind")
    except (AttributeError, OSError, ValueError) as error:
        raise UserError(f"{folder} contains no model that `save` wrote: {error}.") from error
    if not isinstance(kind, str) or kind not in STORES:
        raise UserError(f"{folder} holds a model of the kind {kind!r}, which is unknown.")
    return _store(kind, "").load(folder)


def _store(kind: Any, name: str) -> Any:
    if kind not in STORES:
        raise ValueError(f"`model` must be an Autoregressive or a FlowStudent, got {name}.")
    return STORES[kind]()
