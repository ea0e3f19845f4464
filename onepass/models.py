"""Load any model with one call, shipped, trained, exported or served; save a user's own."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass import families
from onepass.bundles.manifest import folder_kind, versions_of
from onepass.families import ModelFamily
from onepass.foundation.model_folders import FOLDERS, SHIPPED, folder, is_url, kind_of, read_spec
from onepass.foundation.rules import UserError
from onepass.foundation.runtime import check_compiler, check_eager

if TYPE_CHECKING:
    from distill.flow_student import FlowStudent
    from onepass.bundles.bundle import Bundle
    from onepass.model import Autoregressive
    from onepass.remote_model import RemoteModel
    from onepass.trained import Trained

    Model = Autoregressive | FlowStudent | Trained | Bundle | RemoteModel


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Description of a shipped model, available without loading it.

    Attributes:
      name: the argument of `load`.
      makes: "sound" or "images".
      kind: name of the architecture in model.json, such as "parallel-wavenet".
      card: path of card.md: training data, licence and measured quality.
    """

    name: str
    makes: str
    kind: str
    card: Path


def list_models() -> list[ModelInfo]:
    """Return the models that come with the package.

    Returns:
      One `ModelInfo` per model, sound models first.
    """
    found = []
    for name in SHIPPED:
        kind = str(kind_of(folder(name)))
        makes = families.registered(kind).makes
        found.append(ModelInfo(name, makes, kind, folder(name) / "card.md"))
    return found


def load(location: str | Path) -> "Model":
    """Load a model by name, path or URL.

    Args:
      location: the name of a shipped model, one of `list_models`; a run directory or model folder;
        a folder written by `save`; a bundle, NAME/VERSION or NAME; or the URL of a served model,
        http://HOST:PORT/NAME (also https and grpc).

    Returns:
      A model with `sample`, `stream` and `log_prob` of `onepass.interface.Model`. A model of sound
      draws float32 [num, samples], one of images uint8 [num, size, size, channels]. A folder
      written by `save` is returned as an `Autoregressive` or a `FlowStudent`. Students have no
      `log_prob`, and bundles and served models only those of a user's network.

    Raises:
      UserError: the model does not exist, cannot be read, or contains a program that does more than
        compute; or the folder contains files of two kinds of models.
    """
    if is_url(location):
        from onepass.remote_model import RemoteModel

        return RemoteModel(str(location))
    path = Path(location)
    if not path.exists():
        if str(path) in FOLDERS:
            return load_trained(path)
        raise UserError(f"There is no model {location}; shipped are {', '.join(SHIPPED)}.")
    kind = folder_kind(path)
    if kind == "saved":
        return load_stored(path)
    if kind == "bundle":
        from onepass.bundles.bundle import load as load_bundle

        return load_bundle(path)
    return load_trained(path)


def load_trained(path: Path) -> Any:
    """Load a model of this library by shipped name, or from a run, model folder or bundle."""
    check_eager()
    return (families.of_model(path) or families.registered(families.STUDENT)).load(path)


def family_of(location: str | Path) -> ModelFamily | None:
    """Return the family of a model, or None if there is no model.

    A model of an unknown kind, or an unknown name that begins with "shipped", counts as a student
    of sound; loading it then says what is wrong.
    """
    path, student = Path(location), families.of_kind(families.STUDENT)
    if not path.exists():
        return families.of_model(path) or (student if str(path).startswith("shipped") else None)
    kinds = [kind for folder in (path, *versions_of(path)) if (kind := kind_of(folder))]
    saved = folder_kind(path) == "saved"
    unknown = families.registered("autoregressive") if saved else student if kinds else None
    return next(filter(None, map(families.of_kind, kinds)), unknown)


def save(
    model: "Autoregressive | FlowStudent", folder: str | Path, *, sample_rate_hz: int | None = None
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
    return store.save(model, folder, sample_rate_hz=sample_rate_hz)


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
    family = families.of_kind(kind)
    return family.store() if family is not None and family.store else None
