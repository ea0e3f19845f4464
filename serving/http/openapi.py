"""The OpenAPI document of all that is served over HTTP."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine.tokens import read_tokens
from serving.http import openapi_schemas as schemas
from serving.http.binary_tensors import HEADER
from serving.http.error_responses import is_openai_path
from serving.http.json_responses import json_response
from serving.http.openapi_schemas import Schema, fields, listed
from serving.http.speak import NUMBERS, RECORDING_TYPES, WORDS
from serving.settings import Settings

JSON = "application/json"
BYTES: Schema = {"type": "string", "format": "binary"}
NAME = {"type": "string", "minLength": 1, "pattern": "^[^/:]+$"}
VERSION = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
MODEL = "/v1/models/{name}"
V2 = "/v2/models/{name}"
VERSIONED = "/versions/{version}"
Operation = dict[str, Any]


class OpenApi:
    """The endpoint."""

    def __init__(self, settings: Settings):
        self._document = document(bool(read_tokens(settings)))

    def routes(self) -> list[Route]:
        """Where tools look for it."""
        return [Route("/openapi.json", self.openapi)]

    async def openapi(self, request: Request) -> Response:
        """The document."""
        return json_response(self._document)


def document(needs_token: bool) -> dict[str, Any]:
    """The document; a server that needs a token says so."""
    paths: dict[str, Any] = {}
    for parts in (_tensorflow(), _v2(), _openai(), _own(), _around()):
        for (method, path), operation in parts.items():
            paths.setdefault(path, {})[method] = _completed(path, operation)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "onepass", "version": "1", "description": __doc__},
        "paths": paths,
        "components": {"schemas": {"Error": schemas.ERROR, "OpenaiError": schemas.OPENAI_ERROR}},
    }
    if needs_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        paths["/healthz"]["get"]["security"] = []
    return found


def _answer(summary: str, content: dict[str, Schema]) -> Operation:
    return {
        "summary": summary,
        "responses": {"200": {"description": "OK", "content": _content(content)}},
    }


def _content(by_type: dict[str, Schema]) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type, schema in by_type.items()}


def _asked(operation: Operation, content: dict[str, Schema], *parameters: Operation) -> Operation:
    operation["requestBody"] = {"required": True, "content": _content(content)}
    operation["parameters"] = list(parameters)
    return operation


def _parameter(name: str, place: str, schema: Schema) -> Operation:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _completed(path: str, operation: Operation) -> Operation:
    """With the parameters that the path has, and the errors that any operation may end in."""
    error = "OpenaiError" if is_openai_path(path) else "Error"
    content = _content({JSON: {"$ref": f"#/components/schemas/{error}"}})
    parameters = list(operation.get("parameters", ()))
    if "{name}" in path:
        parameters.append(_parameter("name", "path", NAME))
    if "{version}" in path:
        parameters.append(_parameter("version", "path", VERSION))
    responses = {
        **operation["responses"],
        "default": {"description": "An error.", "content": content},
    }
    return {**operation, "parameters": parameters, "responses": responses}


def _tensorflow() -> dict[tuple[str, str], Operation]:
    found = {}
    for place in (MODEL, MODEL + VERSIONED):
        status = {
            **schemas.MODEL,
            "properties": {
                **schemas.MODEL["properties"],
                "model_version_status": listed(schemas.STATUS),
            },
        }
        found["get", place] = _answer("A model and its versions.", {JSON: status})
        found["get", f"{place}/metadata"] = _answer(
            "Its signatures.", {JSON: fields(("model_spec", "metadata"))}
        )
        found["post", f"{place}:predict"] = _asked(
            _answer("Run a signature (TensorFlow Serving).", {JSON: fields()}),
            {JSON: schemas.TENSORFLOW_PREDICT},
        )
    return found


def _v2() -> dict[tuple[str, str], Operation]:
    ready = {JSON: fields()}
    found = {
        ("get", "/v2"): _answer("The server (v2 protocol).", {JSON: fields(("name", "version"))}),
        ("get", "/v2/health/live"): _answer("Whether the server lives.", ready),
        ("get", "/v2/health/ready"): _answer("Whether it takes requests.", ready),
        ("post", "/v2/repository/index"): _answer("Every version.", {JSON: listed(fields())}),
    }
    for place in (V2, V2 + VERSIONED):
        found["get", place] = _answer("What a model takes and gives.", {JSON: schemas.V2_METADATA})
        found["get", f"{place}/ready"] = _answer("Whether a model can be asked.", ready)
        found["post", f"{place}/infer"] = _asked(
            _answer(
                "Run a signature (v2 protocol).",
                {JSON: schemas.V2_RESULT, "application/octet-stream": BYTES},
            ),
            {JSON: schemas.V2_INFER, "application/octet-stream": BYTES},
            _parameter(HEADER, "header", {"type": "integer", "minimum": 0}),
        )
    return found


def _openai() -> dict[tuple[str, str], Operation]:
    models = fields(("object", "data"), object=schemas.word("list"), data=listed(schemas.MODEL))
    sounds = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm")
    return {
        ("get", "/v1/models"): _answer("Every model.", {JSON: models}),
        ("post", "/v1/images/generations"): _asked(
            _answer("Draw images (OpenAI).", {JSON: schemas.GENERATED_IMAGES}),
            {JSON: schemas.IMAGES},
        ),
        ("post", "/v1/audio/speech"): _asked(
            _answer(
                "Speak a text (OpenAI).",
                {**dict.fromkeys(sounds, BYTES), "text/event-stream": schemas.EVENT},
            ),
            {JSON: schemas.SPEECH},
        ),
    }


def _own() -> dict[tuple[str, str], Operation]:
    recordings = dict.fromkeys(RECORDING_TYPES, BYTES)
    query = [
        _parameter(name, "query", schemas.SPEAK["properties"][name]["anyOf"][0])
        for name in (*NUMBERS, *WORDS)
    ]
    return {
        ("post", f"{MODEL}:speak"): _asked(
            _answer("Speak, as it is made.", {"audio/wav": BYTES, "audio/L16": BYTES}),
            {JSON: schemas.SPEAK, **recordings},
            *query,
        ),
        ("post", f"{MODEL}:draw"): _asked(
            _answer("Draw, scale by scale.", {"application/x-ndjson": schemas.TEXT}),
            {JSON: schemas.DRAW},
        ),
        ("get", f"{MODEL}/examples"): _answer("Recordings to re-speak.", {JSON: schemas.EXAMPLES}),
    }


def _around() -> dict[tuple[str, str], Operation]:
    state = {JSON: fields(("status",), status=schemas.TEXT)}
    return {
        ("get", "/healthz"): _answer("Whether the server lives.", state),
        ("get", "/readyz"): _answer("Whether it takes requests.", state),
        ("get", "/monitoring/prometheus/metrics"): _answer(
            "What it has counted.", {"text/plain": schemas.TEXT}
        ),
        ("get", "/openapi.json"): _answer("This document.", {JSON: fields(("openapi", "paths"))}),
        ("get", "/"): _answer("The web page.", {"text/html": schemas.TEXT}),
    }
