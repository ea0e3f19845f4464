"""The list of models, with fields for OpenAI's and TensorFlow Serving's protocols and the page."""

import asyncio
import contextlib
import logging
from typing import Any, Literal

import orjson
from pydantic import create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.condition_inputs import FRAMES
from onepass.bundles.errors import NotFound, ServingError
from onepass.bundles.image_sampling import CONDITIONS
from onepass.bundles.signature import IMAGE, SOUND
from serving.engine.drawing import condition_input, scales, signature
from serving.engine.served_model import ServedModel
from serving.engine.speech import is_conditional, max_seconds, speakers, supports_text
from serving.http.operations import Endpoints, get, version_at
from serving.http.responses import json_response
from serving.http.tensorflow_rest import statuses

LOG = logging.getLogger(__name__)
FACTS = (
    *("preset", "data_licence", "quality", "size", "channels", "sample_rate_hz", "hop_samples"),
    *("temperature", "order", "elements", "condition_channels", "conditions", "codec"),
    *("distribution", "max_length", "unit_samples"),
)

# A model as OpenAI lists it, with more fields if it is ready; alone, with those of TensorFlow.
KIND: Any = Literal["sound", "picture", "array"] | None
VERSION: Any = create_model("Version", version=int, state=str)
ENTRY: Any = create_model(
    "ModelEntry",
    id=str,
    object=Literal["model"],
    created=int,
    owned_by=str,
    versions=list[VERSION],
    kind=(KIND, None),
)
MODELS = create_model("Models", object=Literal["list"], data=list[ENTRY])
LOAD_ERROR = create_model("LoadError", error_code=str, error_message=str)
STATE = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
STATUS: Any = create_model("VersionStatus", version=str, state=STATE, status=LOAD_ERROR)
MODEL = create_model("ModelStatus", __base__=ENTRY, model_version_status=list[STATUS])


class ModelListing(Endpoints):
    """The endpoints that list models."""

    @get("/v1/models", MODELS)
    async def models(self, request: Request) -> Response:
        """Return all models."""
        entries = []
        for name in sorted(self._registry.names()):
            with contextlib.suppress(NotFound):  # the model was removed meanwhile
                entries.append(await self._entry(name))
        return json_response({"object": "list", "data": entries})

    @get("/v1/models/{name}", MODEL, versions=True)
    async def model(self, request: Request) -> Response:
        """Return one model, with `model_version_status` as in TensorFlow Serving."""
        found = statuses(self._registry, request)
        entry = await self._entry(request.path_params["name"], version_at(request))
        return json_response({**entry, "model_version_status": found})

    async def _entry(self, name: str, version: int | None = None) -> dict[str, Any]:
        known = self._registry.versions(name)
        versions = [{"version": status.version, "state": status.state} for status in known]
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "onepass"}
        facts: dict[str, Any] = {}
        try:
            facts = await asyncio.to_thread(_facts, self._registry.get(name, version))
            orjson.dumps(facts)  # raises for integers of more than 64 bits
        except ServingError:
            pass  # still loading, without facts
        except Exception as error:
            facts = {}
            LOG.error("model.json cannot be listed: %s", error, extra={"fields": {"model": name}})
        return {**entry, "versions": versions, **facts}


def _facts(served: ServedModel) -> dict[str, Any]:
    facts = {"created": served.created, "kind": served.kind, "version": served.version}
    facts |= {name: served.spec[name] for name in FACTS if served.spec.get(name) is not None}
    if "data_licence" in facts:
        facts["licence"] = facts.pop("data_licence")
    if served.kind == IMAGE:
        return facts | {
            "condition": CONDITIONS.get(condition_input(served) or ""),
            "classes": served.spec.get("classes") or [],
            "captions": served.spec.get("captions") or [],
            "guidance": "guidance" in signature(served).inputs,
            "sizes": [side for side, _ in scales(served)],
        }
    facts["condition"] = FRAMES if is_conditional(served) else None
    if served.kind != SOUND:
        return facts
    return facts | {
        "text": is_conditional(served) and supports_text(served),
        "speakers": speakers(served),
        "max_seconds": max_seconds(served),
    }
