"""Store and load users' own models, each an `Autoregressive` or a `FlowStudent`."""

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foundation.errors import UserError
from foundation.tensorflow_state import check_compiler

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


# For each kind, a function that imports the module with its `save` and `load`, which needs
# TensorFlow.
STORES = {"autoregressive": _autoregressive, "flow-student": _flow_student}


def save(
    model: "Autoregressive | FlowStudent",
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
) -> Path:
    """Write a model as programs that run without the code that defined its network.

    Args:
      model: the model, which is stored with its current weights.
      folder: created if missing; an existing model is replaced.
      sample_rate_hz: sample rate of an audio model, whose samples are then written and served as
        audio; None: the rate that the model was loaded with, if any.

    Returns:
      The folder, for `onepass.load`, `onepass sample`, `onepass evaluate` and `onepass export`.

    Raises:
      UserError: a part of the model cannot be stored; the message names it.
      ValueError: models of this kind cannot be stored, or the sample rate is below 1 or is given
        for a model of images.
    """
    return _store(getattr(model, "kind", None), type(model).__name__).save(
        model, folder, sample_rate_hz=sample_rate_hz
    )


def load_stored(folder: Path) -> Any:
    """Load a model that `save` wrote.

    Its program runs with the rights of this process; `onepass.load` scans it first.

    Raises:
      UserError: the folder has no stored model, or the model cannot be read.
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
    check_compiler()
    return STORES[kind]()
