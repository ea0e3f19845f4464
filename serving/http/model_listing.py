"""The list of models, with fields for OpenAI's and TensorFlow Serving's protocols and the page."""

import asyncio
import contextlib
import logging
from typing import Any, Literal, NotRequired

import orjson
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from onepass.bundles.condition_inputs import FRAMES
from onepass.bundles.errors import NotFound, ServingError
from onepass.bundles.image_sampling import CONDITIONS
from onepass.bundles.signature import ARRAY, IMAGE, SOUND
from serving.engine.drawing import condition_input, scales, signature
from serving.engine.served_model import ServedModel
from serving.engine.speech import is_conditional, max_seconds, speakers, supports_text
from serving.http.operations import Endpoints, get, version_at
from serving.http.responses import json_response
from serving.http.tensorflow_rest import VersionStatus, statuses

LOG = logging.getLogger(__name__)
OWNER = "onepass"
FACTS: tuple[str, ...] = ("preset", "data_licence", "quality", "size", "channels")
FACTS += ("sample_rate_hz", "hop_samples", "temperature")
# Facts about users' models.
FACTS += ("order", "elements", "condition_channels", "conditions", "codec", "distribution")
FACTS += ("max_length", "unit_samples")
RENAMED = {"data_licence": "licence"}


class Version(TypedDict):
    """A version of a model, and its state."""

    version: int
    state: str


class ModelEntry(TypedDict):
    """A model as OpenAI lists it, with more fields if it is ready."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    versions: list[Version]
    kind: NotRequired[Literal["sound", "picture", "array"]]


class ModelStatus(ModelEntry):
    """A model as in the list, with TensorFlow Serving's field as well."""

    model_version_status: list[VersionStatus]


class Models(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelEntry]


class ModelListing(Endpoints):
    """The endpoints that list models."""

    @get("/v1/models", Models)
    async def models(self, request: Request) -> Response:
        """Return all models."""
        entries = []
        for name in sorted(self._registry.names()):
            with contextlib.suppress(NotFound):  # the model was removed meanwhile
                entries.append(await self._entry(name))
        return json_response(Models(object="list", data=entries))

    @get("/v1/models/{name}", ModelStatus, versions=True)
    async def model(self, request: Request) -> Response:
        """Return one model, with `model_version_status` as in TensorFlow Serving."""
        found = statuses(self._registry, request)
        entry = await self._entry(request.path_params["name"], version_at(request))
        return json_response({**entry, "model_version_status": found})

    async def _entry(self, name: str, version: int | None = None) -> ModelEntry:
        versions: list[Version] = [
            {"version": status.version, "state": status.state}
            for status in self._registry.versions(name)
        ]
        entry = ModelEntry(id=name, object="model", created=0, owned_by=OWNER, versions=versions)
        try:
            facts = await asyncio.to_thread(_facts, self._registry.get(name, version))
            orjson.dumps(facts)  # raises for integers of more than 64 bits
            entry |= facts
        except ServingError:
            pass  # still loading, without facts
        except Exception as error:
            LOG.error("model.json cannot be listed: %s", error, extra={"fields": {"model": name}})
        return entry


def _facts(served: ServedModel) -> Any:
    known = {RENAMED.get(n, n): served.spec[n] for n in FACTS if served.spec.get(n) is not None}
    facts = {"created": served.created, "kind": served.kind, "version": served.version, **known}
    return facts | FACTS_OF[served.kind](served)


def _of_array(served: ServedModel) -> dict[str, Any]:
    return {"condition": FRAMES if is_conditional(served) else None}


def _of_sound(served: ServedModel) -> dict[str, Any]:
    return _of_array(served) | {
        "text": is_conditional(served) and supports_text(served),
        "speakers": speakers(served),
        "max_seconds": max_seconds(served),
    }


def _of_images(served: ServedModel) -> dict[str, Any]:
    return {
        "condition": CONDITIONS.get(condition_input(served) or ""),
        "classes": served.spec.get("classes") or [],
        "captions": served.spec.get("captions") or [],
        "guidance": "guidance" in signature(served).inputs,
        "sizes": [side for side, _ in scales(served)],
    }


FACTS_OF = {SOUND: _of_sound, IMAGE: _of_images, ARRAY: _of_array}
