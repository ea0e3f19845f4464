"""Any model by one call: shipped, a run, a model folder, a bundle, or one that a server has."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill import model_store
from onepass.shipped import SHIPPED, folder
from replicator.runs.errors import UserError
from replicator.runs.model_spec import SPEC_FILE, kind_of
from serving.settings import is_url

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive
    from distill.flow_student import FlowStudent
    from distill.model import StudentModel
    from onepass.remote_model import RemoteModel
    from pixelcnn.model import ImageModel
    from serving.bundles.loading import AnyBundle
    from wavenet.model import SpeechModel

    Model = (
        Autoregressive
        | FlowStudent
        | SpeechModel
        | StudentModel
        | ImageModel
        | AnyBundle
        | RemoteModel
    )

PROGRAM_FILE = "saved_model.pb"


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What is known of a model before it is loaded.

    name: that `load` takes. makes: "sound" or "images". kind: what model.json calls it. card: its
    card.md, with training data, licence and measured quality.
    """

    name: str
    makes: str
    kind: str
    card: Path


def list_models() -> list[ModelInfo]:
    """The models that come with the package, in the order of sound, then images."""
    found = []
    for name, makes in SHIPPED.items():
        kind = json.loads((folder(name) / SPEC_FILE).read_text(encoding="utf-8"))["kind"]
        found.append(ModelInfo(name, makes, kind, folder(name) / "card.md"))
    return found


def load(place: str | Path) -> "Model":
    """Load a model, with the methods `generate`, `stream` and `log_prob` where it has them.

    `generate(condition, *, seed, num)` gives float32 [num, samples] or uint8 [num, size, size,
    channels]; `stream` the same sounds chunk by chunk; `log_prob` the exact log-probability, in
    nats, that a model of images or an autoregressive model of sound gives to data. What
    `onepass.save` wrote is an `Autoregressive`, or a `FlowStudent`, again. Bundles and served
    models of users have `sample` and `log_prob`; those of other models only generate.

    Args:
      place: the name of a shipped model, see `list_models`; a run directory or model folder; a
        bundle, NAME/VERSION or NAME; or http://HOST:PORT/NAME (https, grpc) of a served model.

    Raises UserError, in one line, where there is no such model or it cannot be read.
    """
    if is_url(place):
        from onepass.remote_model import RemoteModel

        return RemoteModel(str(place))
    path = Path(place)
    if str(place) in SHIPPED and not path.exists():
        return _trained(SHIPPED[str(place)], path)
    if not path.exists():
        raise UserError(f"There is no model {place}; shipped are {', '.join(SHIPPED)}.")
    if model_store.is_stored(path):
        return model_store.load(path)
    if is_bundle(path):
        from serving.bundles.loading import load as load_bundle

        return load_bundle(path)
    return _trained(makes_of(path), path)


def is_bundle(path: Path) -> bool:
    """Whether a folder, or its sub-folder of a version, holds an exported program."""
    versions = (folder for folder in path.glob("*/") if folder.name.isdecimal())
    return any((place / PROGRAM_FILE).exists() for place in (path, *versions))


def makes_of(path: Path) -> str:
    """What the model of a run directory or model folder makes, "sound" or "images"."""
    from pixelcnn.config import KINDS

    return "images" if kind_of(path) in KINDS else "sound"


def _trained(makes: str, path: Path) -> Any:
    if makes == "images":
        from pixelcnn.model import load as load_images

        return load_images(path)
    from distill.model import load as load_sounds

    return load_sounds(path)
