"""The list of models, with fields for OpenAI's and TensorFlow Serving's protocols and the page."""

import asyncio
import contextlib
import logging
from typing import Any, Literal

import orjson
from pydantic import create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import NotFound, ServingError
from serving.engine.descriptions import facts_of
from serving.http.operations import Endpoints, get, version_at
from serving.http.responses import json_response
from serving.http.tensorflow_rest import statuses

LOG = logging.getLogger(__name__)
# A model as OpenAI lists it, with more fields if it is ready; alone, with those of TensorFlow.
KIND: Any = Literal["sound", "picture", "array"] | None
VERSION: Any = create_model("Version", version=int, state=str)
ALWAYS: Any = {"id": str, "object": Literal["model"], "created": int, "owned_by": str}
ENTRY: Any = create_model("ModelEntry", versions=list[VERSION], kind=(KIND, None), **ALWAYS)
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
            facts = await asyncio.to_thread(facts_of, self._registry.get(name, version))
            orjson.dumps(facts)  # raises for integers of more than 64 bits
        except ServingError:
            pass  # still loading, without facts
        except Exception as error:
            facts = {}
            LOG.error("model.json cannot be listed: %s", error, extra={"fields": {"model": name}})
        return {**entry, "versions": versions, **facts}
