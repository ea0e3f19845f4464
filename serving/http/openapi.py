"""The OpenAPI document of all HTTP routes, generated from the models of their bodies."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.engine.auth import read_token
from serving.http.draw import MEDIA_TYPE, DrawRequest
from serving.http.model_listing import Models, ModelStatus
from serving.http.openai_images import GeneratedImages, ImagesRequest
from serving.http.openai_speech import SpeechEvent, SpeechRequest
from serving.http.responses import Error, OpenaiError, is_openai_path, json_response
from serving.http.speak import RECORDING_TYPES, Examples, SpeakQuery, SpeakRequest
from serving.http.tensorflow_rest import PredictRequest
from serving.http.v2 import HEADER, InferRequest, InferResult, Metadata
from serving.settings import Settings

JSON = "application/json"
OCTETS = "application/octet-stream"
SOUNDS = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm")
REFERENCE = "#/components/schemas/{name}"
MODEL, V2 = "/v1/models/{name}", "/v2/models/{name}"
VERSIONED = "/versions/{version}"
Schema = dict[str, Any]
Bytes = Annotated[Any, Meta(extra_json_schema={"type": "string", "format": "binary"})]
PATH = {
    "name": Annotated[str, Meta(min_length=1, pattern="^[^/:]+$")],
    "version": Annotated[int, Meta(ge=0, le=10**18 - 1)],
}


class State(TypedDict):
    """Liveness or readiness of the server."""

    status: str


@dataclasses.dataclass(frozen=True)
class Operation:
    """A request and its response: types by media type, JSON without one."""

    verb: str
    path: str
    summary: str
    answer: Any
    body: Any = None
    header: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)


get = functools.partial(Operation, "get")
post = functools.partial(Operation, "post")


def _versioned(path: str) -> Iterable[Operation]:
    model, v2 = MODEL + path, V2 + path
    infer = dict.fromkeys((JSON, OCTETS), Bytes)
    return (
        get(model, "A model and its versions.", ModelStatus),
        get(f"{model}/metadata", "Its signatures.", dict),
        post(f"{model}:predict", "Run a signature (TensorFlow Serving).", dict, PredictRequest),
        get(v2, "The inputs and outputs of a model.", Metadata),
        get(f"{v2}/ready", "Readiness of a model.", dict),
        post(
            f"{v2}/infer",
            "Run a signature (v2 protocol).",
            {**infer, JSON: InferResult},
            {**infer, JSON: InferRequest},
            header={HEADER: Annotated[int, Meta(ge=0)]},
        ),
    )


OPERATIONS = (
    *_versioned(""),
    *_versioned(VERSIONED),
    get("/v2", "The server (v2 protocol).", dict),
    get("/v2/health/live", "Liveness.", dict),
    get("/v2/health/ready", "Readiness.", dict),
    post("/v2/repository/index", "All versions of all models.", list[dict]),
    get("/v1/models", "All models.", Models),
    post("/v1/images/generations", "Draw images (OpenAI).", GeneratedImages, ImagesRequest),
    post(
        "/v1/audio/speech",
        "Speak a text (OpenAI).",
        {**dict.fromkeys(SOUNDS, Bytes), "text/event-stream": SpeechEvent},
        SpeechRequest,
    ),
    post(
        f"{MODEL}:speak",
        "Speak, streaming the audio.",
        {"audio/wav": Bytes, "audio/L16": Bytes},
        {JSON: SpeakRequest, **dict.fromkeys(RECORDING_TYPES, Bytes)},
        query=get_type_hints(SpeakQuery, include_extras=True),
    ),
    post(f"{MODEL}:draw", "Draw, scale by scale.", {MEDIA_TYPE: str}, DrawRequest),
    get(f"{MODEL}/examples", "Example recordings.", Examples),
    get("/healthz", "Liveness.", State),
    get("/readyz", "Readiness.", State),
    get("/monitoring/prometheus/metrics", "Metrics.", {"text/plain": str}),
    get("/openapi.json", "This document.", dict),
    get("/", "The web page.", {"text/html": str}),
)


class OpenApi:
    """The endpoint for the document."""

    def __init__(self, settings: Settings):
        self._document = document(read_token(settings) is not None)

    def routes(self) -> list[Route]:
        """Return the route that tools expect."""
        return [Route("/openapi.json", self.openapi)]

    async def openapi(self, request: Request) -> Response:
        """Return the document."""
        return json_response(self._document)


def document(needs_token: bool) -> dict[str, Any]:
    """Return the document; it includes the token where one is required."""
    components: dict[str, Schema] = {}
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        described = _described(operation, components)
        paths.setdefault(operation.path, {})[operation.verb] = described
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
