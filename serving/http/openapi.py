"""The OpenAPI document of all HTTP routes, generated from the models of their bodies."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from serving.engine.auth import read_token
from serving.http.operations import JSON, Endpoints, Operation, get
from serving.http.responses import Error, OpenaiError, is_openai_path, json_response
from serving.settings import Settings

REFERENCE = "#/components/schemas/{name}"
Schema = dict[str, Any]
PATH = {
    "name": Annotated[str, Meta(min_length=1, pattern="^[^/:]+$")],
    "version": Annotated[int, Meta(ge=0, le=10**18 - 1)],
}


class OpenApi(Endpoints):
    """The endpoint for the document of all other operations."""

    def __init__(self, settings: Settings, operations: Sequence[Operation]):
        needs_token = read_token(settings) is not None
        self._document = document([*operations, *self.operations()], needs_token)

    @get("/openapi.json")
    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return json_response(self._document)


def document(operations: Sequence[Operation], needs_token: bool) -> dict[str, Any]:
    """Return the document; it includes the token where one is required."""
    components: dict[str, Schema] = {}
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _described(operation, components)
        paths.setdefault(operation.path, {})[operation.verb.lower()] = described
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "onepass", "version": "1", "description": __doc__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        paths["/healthz"]["get"]["security"] = []
    return found


def _described(operation: Operation, components: dict[str, Schema]) -> dict[str, Any]:
    """Describe an operation, with the parameters in its path and the errors of any operation."""

    def schema(kind: Any) -> Schema:
        (found,), new = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        components.update(new)
        return found

    def content(kinds: Any) -> dict[str, Any]:
        by_type = kinds if isinstance(kinds, dict) else {JSON: kinds}
        return {media_type: {"schema": schema(kind)} for media_type, kind in by_type.items()}

    path = {name: kind for name, kind in PATH.items() if f"{{{name}}}" in operation.path}
    parameters = [
        {"name": name, "in": location, "required": location == "path", "schema": schema(kind)}
        for location in ("path", "query", "header")
        for name, kind in (path if location == "path" else getattr(operation, location)).items()
    ]
    error = OpenaiError if is_openai_path(operation.path) else Error
    described = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "OK", "content": content(operation.answer)},
            "default": {"description": "An error.", "content": content(error)},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": content(operation.body)}
    return described
