"""The v2 inference protocol (Open Inference Protocol, KServe), with its binary tensors."""

import math
from typing import NotRequired, TypedDict

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.bundles.dtypes import V2_NAMES
from serving.bundles.signature import PLAIN, TensorInfo
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput, NotReady
from serving.http.binary_tensors import (
    HEADER,
    InferParameters,
    InferRequest,
    read_inputs,
    split,
    written,
)
from serving.http.model_lookup import model_from_path
from serving.http.request_bodies import body_of, read_with
from serving.http.responses import cancel_on_disconnect, json_response
from serving.settings import Settings

PLATFORM = "tensorflow_savedmodel"
EXTENSIONS = ["binary_tensor_data", "model_repository(index)"]
MICROSECONDS = 1_000_000
VERSION = "1"
NO_PARAMETERS = InferParameters()


class Tensor(TypedDict):
    """The description of an input or an output; -1 for a free size."""

    name: str
    datatype: str
    shape: list[int]


class Metadata(TypedDict):
    """The inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class InferResult(TypedDict):
    """The JSON of a response: the outputs, with their data or the number of bytes after it."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[Tensor]


class V2:
    """The endpoints of the v2 protocol."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def routes(self) -> list[Route]:
        """Return the routes, infer first: it is requested most."""
        routes = []
        for base in ("/v2/models/{name:name}", "/v2/models/{name:name}/versions/{version:name}"):
            routes.append(Route(f"{base}/infer", self.infer, methods=["POST"]))
            routes.append(Route(f"{base}/ready", self.model_ready))
            routes.append(Route(base, self.metadata))
        routes.append(Route("/v2", self.server))
        routes.append(Route("/v2/health/live", self.live))
        routes.append(Route("/v2/health/ready", self.ready))
        routes.append(Route("/v2/repository/index", self.index, methods=["POST"]))
        return routes

    async def infer(self, request: Request) -> Response:
        """Run the signature in the parameter `signature_name`, by default `serving_default`."""
        served = model_from_path(self._registry, request)
        body = await body_of(request, self._settings.timeout_seconds)
        length = request.headers.get(HEADER)
        parsed, name, inputs = await read_with(_parse, body, length, served)
        wanted = _wanted(parsed, served, name)
        limit = (parsed.parameters or NO_PARAMETERS).timeout / MICROSECONDS
        seconds = min(self._settings.timeout_seconds, limit or math.inf)
        work = served.predict(inputs, name, timeout_seconds=seconds)
        outputs = await cancel_on_disconnect(request.receive, work)
        return _response(parsed.id, served, {name: outputs[name] for name in wanted}, wanted)

    async def metadata(self, request: Request) -> Response:
        """Return the inputs and outputs of `serving_default`."""
        served = model_from_path(self._registry, request)
        signature = served.signature(PLAIN)
        statuses = self._registry.versions(served.name)
        return json_response(
            Metadata(
                name=served.name,
                versions=[str(s.version) for s in statuses if s.state == "AVAILABLE"],
                platform=PLATFORM,
                inputs=[_tensor(name, info) for name, info in signature.inputs.items()],
                outputs=[_tensor(name, info) for name, info in signature.outputs.items()],
            )
        )

    async def model_ready(self, request: Request) -> Response:
        """Answer 200 if the model is ready, else 503 or 404 with the reason."""
        served = model_from_path(self._registry, request)
        return json_response({"name": served.name, "ready": True})

    async def server(self, request: Request) -> Response:
        """Return name, version and extensions of the server."""
        return json_response({"name": "onepass", "version": VERSION, "extensions": EXTENSIONS})

    async def live(self, request: Request) -> Response:
        """Answer 200."""
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        """Answer 200 if the server accepts requests, else 503."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return json_response({"ready": True})

    async def index(self, request: Request) -> Response:
        """Return all versions of all models."""
        rows = []
        for name in sorted(self._registry.names()):
            for status in self._registry.versions(name):
                state = "READY" if status.state == "AVAILABLE" else "UNAVAILABLE"
                rows.append(
                    {
                        "name": name,
                        "version": str(status.version),
                        "state": state,
                        "reason": status.error,
                    }
                )
        return json_response(rows)


def _parse(
    body: bytes, length: str | None, served: ServedModel
) -> tuple[InferRequest, str, dict[str, np.ndarray]]:
    """Return the JSON of a request, its signature's name, and its inputs."""
    parsed, tail = split(body, length)
    name = (parsed.parameters or NO_PARAMETERS).signature_name or PLAIN
    return parsed, name, read_inputs(parsed.inputs, tail, served.signature(name))


def _wanted(parsed: InferRequest, served: ServedModel, name: str) -> dict[str, bool]:
    """Return the requested outputs, and whether to write each after the JSON."""
    default = (parsed.parameters or NO_PARAMETERS).binary_data_output
    known = served.signatures[name].outputs
    if parsed.outputs is None:
        return dict.fromkeys(known, default)
    wanted = {}
    for output in parsed.outputs:
        if output.name not in known:
            raise InvalidInput(f"`outputs` must name outputs; there are {', '.join(known)}.")
        binary = output.parameters.binary_data if output.parameters else None
        wanted[output.name] = default if binary is None else binary
    return wanted


def _response(
    identity: str | None,
    served: ServedModel,
    outputs: dict[str, np.ndarray],
    binary: dict[str, bool],
) -> Response:
    head = {"model_name": served.name, "model_version": str(served.version)}
    if identity is not None:
        head["id"] = identity
    content, length = written(head, outputs, binary)
    if length is None:
        return Response(content, media_type="application/json")
    headers = {HEADER: str(length), "content-type": "application/octet-stream"}
    return Response(content, headers=headers)


def _tensor(name: str, info: TensorInfo) -> Tensor:
    return {"name": name, "datatype": V2_NAMES[info.dtype], "shape": info.sizes}
