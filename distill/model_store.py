"""Store and load users' own models, each an `Autoregressive` or a `FlowStudent`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.families import of_kind
from onepass.foundation.errors import UserError
from onepass.foundation.locations import read_spec
from onepass.foundation.runtime import check_compiler, check_eager

if TYPE_CHECKING:
    from distill.flow_student import FlowStudent
    from onepass.model import Autoregressive


def save(
    model: "Autoregressive | FlowStudent",
    folder: str | Path,
    *,
    sample_rate_hz: int | None = None,
) -> Path:
    """Write a model as data that runs without the code that defined its network.

    Args:
      model: the model, which is stored with its current weights.
      folder: created if missing; an existing model is replaced at once.
      sample_rate_hz: sample rate of an audio model, whose samples are then written and served as
        audio; None: the rate that the model was loaded with, if any.

    Returns:
      The folder, for `onepass.load`, `onepass sample`, `onepass evaluate` and `onepass export`.

    Raises:
      UserError: a part of the model cannot be stored, and the message names it; what was written
        does not come back as the same model; or the folder cannot be written. A model that is in
        the folder is then unchanged.
      ValueError: models of this kind cannot be stored, or the sample rate is below 1 or is given
        for a model of images.
    """
    check_eager()
    store = _store(getattr(model, "kind", None))
    if store is None:
        name = type(model).__name__
        raise ValueError(f"`model` must be an Autoregressive or a FlowStudent, got {name}.")
    written: Path = store.save(model, folder, sample_rate_hz=sample_rate_hz)
    return written


def load_stored(folder: Path) -> Any:
    """Load a model that `save` wrote; raise UserError unless it is one, and only computes."""
    check_compiler()
    kind = read_spec(folder).get("kind")
    store = _store(kind)
    if store is None:
        raise UserError(f"{folder} holds a model of the kind {kind!r}, which is unknown.")
    return store.load(folder)


def _store(kind: Any) -> Any:
    """Return the module with `save` and `load` for a kind of models; None: they are not stored."""
    family = of_kind(kind)
    return None if family is None else family.parts.store
