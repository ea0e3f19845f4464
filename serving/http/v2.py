"""The v2 inference protocol (Open Inference Protocol, KServe), with its binary tensors.

If the header `Inference-Header-Content-Length: N` is given, the first N bytes of a body are JSON.
The binary tensors follow in the order of the JSON, little-endian, without gaps.
"""

import importlib.metadata
import math
import re
from typing import Annotated, Any, NotRequired

import numpy as np
import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from onepass.bundles.errors import InvalidInput, NotReady
from onepass.bundles.signature import (
    PLAIN,
    V2_NAMES,
    Signature,
    TensorInfo,
    check_dimensions,
    check_outputs,
    from_bytes,
    input_info,
    v2_dtype,
)
from serving.engine.fields import Fields, Name
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.http.operations import Bytes, Endpoints, get, post
from serving.http.request_bodies import flat_tensor, json_model, read_body
from serving.http.responses import JSON, cancel_on_disconnect, json_response

MAX_SIDE = 2**31 - 1
LENGTH = re.compile(r"[0-9]{1,10}")
HEADER = "inference-header-content-length"
OCTETS = "application/octet-stream"
PLATFORM = "tensorflow_savedmodel"
EXTENSIONS = ["binary_tensor_data", "model_repository(index)"]
MICROSECONDS = 1_000_000
SERVER_VERSION = importlib.metadata.version("onepass")


class InferParameters(Fields):
    """Parameters of a request; `timeout` is in microseconds, 0 for the server's limit."""

    signature_name: Name | None = None
    binary_data_output: bool = False
    timeout: Annotated[float, Field(ge=0)] = 0.0


class InputParameters(Fields):
    """Parameters of an input; shared memory is not supported."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    shared_memory_region: None = None


class InputTensor(Fields):
    """An input tensor: its elements are in `data`, or follow the JSON as binary data."""

    name: str
    shape: list[Annotated[int, Field(ge=1, le=MAX_SIDE)]]
    datatype: str
    data: list | None = None
    parameters: InputParameters | None = None


class OutputParameters(Fields):
    """Parameters of an output; classification and shared memory are not supported."""

    binary_data: bool | None = None
    classification: Annotated[int, Field(le=0)] | None = None
    shared_memory_region: None = None


class OutputTensor(Fields):
    """A requested output."""

    name: str
    parameters: OutputParameters | None = None


class InferRequest(Fields):
    """The JSON of an inference request."""

    inputs: Annotated[list[InputTensor], Field(min_length=1)]
    outputs: Annotated[list[OutputTensor], Field(min_length=1)] | None = None
    id: Name | None = None
    parameters: InferParameters | None = None


def split(body: bytes, header_length: str | None) -> tuple[InferRequest, memoryview]:
    """Return a request's JSON, all of it without a `header_length`, and the bytes after it."""
    view = memoryview(body)
    if header_length is None:
        return json_model(body, InferRequest), view[len(body) :]
    if not LENGTH.fullmatch(header_length) or int(header_length) > len(body):
        raise InvalidInput(
            f"`Inference-Header-Content-Length` must be from 0 to {len(body)}, the body's length."
        )
    length = int(header_length)
    return json_model(view[:length], InferRequest), view[length:]


def read_inputs(
    tensors: list[InputTensor], tail: memoryview, signature: Signature
) -> dict[str, np.ndarray]:
    """Return a request's inputs, binary ones as views, with shapes that are checked later."""
    inputs: dict[str, np.ndarray] = {}
    start = 0
    for tensor in tensors:
        name = tensor.name
        if name in inputs:
            raise InvalidInput(f"`{name}` must be given once.")
        input_info(signature.inputs, name)
        dtype = v2_dtype(name, tensor.datatype)
        check_dimensions(name, tensor.shape)
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            inputs[name] = flat_tensor(name, tensor.data, tensor.shape, dtype)
        elif tensor.data is not None:
            raise InvalidInput(f"`{name}` must have `data` or `binary_data_size`, got both.")
        else:
            inputs[name] = from_bytes(name, tail[start : start + size], tensor.shape, dtype)
            start += size
    if start != len(tail):
        raise InvalidInput(f"The body must end with its tensors, got {len(tail) - start} more.")
    return inputs


def write_response(
    header: dict[str, Any], outputs: dict[str, np.ndarray], binary: dict[str, bool]
) -> Response:
    """Return the response, JSON except for the outputs that are `binary`, which follow it."""
    described, tail = [], []
    for name, value in outputs.items():
        value = np.ascontiguousarray(value)
        tensor: dict[str, Any] = {"name": name, "datatype": V2_NAMES[value.dtype]}
        tensor["shape"] = list(value.shape)
        if binary[name]:
            tensor["parameters"] = {"binary_data_size": value.nbytes}
            tail.append(value.tobytes())
        else:
            tensor["data"] = value.reshape(-1)
        described.append(tensor)
    text = orjson.dumps({**header, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tail:
        return Response(text, media_type=JSON)
    headers = {HEADER: str(len(text)), "content-type": OCTETS}
    return Response(b"".join([text, *tail]), headers=headers)


NO_PARAMETERS = InferParameters()


class Tensor(TypedDict):
    """The description of an input or an output; -1 stands for any size."""

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
    """The JSON of a response; each output also has its data, or the size of its binary data."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[Tensor]


class V2(Endpoints):
    """The endpoints of the v2 protocol."""

    @post(
        "/v2/models/{name}/infer",
        {JSON: InferResult, OCTETS: Bytes},
        {JSON: InferRequest, OCTETS: Bytes},
        versions=True,
        header={HEADER: Annotated[int, Field(ge=0)]},
    )
    async def infer(self, request: Request) -> Response:
        """Run the signature in the parameter `signature_name`, by default `serving_default`."""
        served = self._model_at(request)
        length = request.headers.get(HEADER)
        parsed, name, inputs = await read_body(request, _parse, length, served)
        wanted = _wanted_outputs(parsed, served, name)
        limit = (parsed.parameters or NO_PARAMETERS).timeout / MICROSECONDS
        seconds = min(self._settings.timeout_seconds, limit or math.inf)
        work = served.predict(inputs, name, timeout_seconds=seconds)
        outputs = await cancel_on_disconnect(request.receive, work)
        head = {"model_name": served.name, "model_version": str(served.version)}
        head |= {} if parsed.id is None else {"id": parsed.id}
        return write_response(head, {name: outputs[name] for name in wanted}, wanted)

    @get("/v2/models/{name}", Metadata, versions=True)
    async def metadata(self, request: Request) -> Response:
        """Return the inputs and outputs of `serving_default`."""
        return json_response(metadata_of(self._registry, self._model_at(request)))

    @get("/v2/models/{name}/ready", versions=True)
    async def model_ready(self, request: Request) -> Response:
        """Answer 200 if the model is ready, else 503 or 404 with the reason."""
        served = self._model_at(request)
        return json_response({"name": served.name, "ready": True})

    @get("/v2")
    async def server(self, request: Request) -> Response:
        """Return the name, version and extensions of the server."""
        return json_response(
            {"name": "onepass", "version": SERVER_VERSION, "extensions": EXTENSIONS}
        )

    @get("/v2/health/live")
    async def live(self, request: Request) -> Response:
        """Answer 200."""
        return json_response({"live": True})

    @get("/v2/health/ready")
    async def ready(self, request: Request) -> Response:
        """Answer 200 if the server accepts requests, else 503."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return json_response({"ready": True})

    @post("/v2/repository/index", list[dict])
    async def index(self, request: Request) -> Response:
        """Return all versions of all models."""
        rows = []
        for name in sorted(self._registry.names()):
            for status in self._registry.versions(name):
                state = "READY" if status.state == "AVAILABLE" else "UNAVAILABLE"
                row = {"name": name, "version": str(status.version), "state": state}
                rows.append({**row, "reason": status.error})
        return json_response(rows)


def metadata_of(registry: ModelRegistry, served: ServedModel) -> Metadata:
    """Return the inputs and outputs of a model's `serving_default`, and the versions served."""
    signature, statuses = served.signature(PLAIN), registry.versions(served.name)
    return Metadata(
        name=served.name,
        versions=[str(s.version) for s in statuses if s.state == "AVAILABLE"],
        platform=PLATFORM,
        inputs=[_tensor(name, info) for name, info in signature.inputs.items()],
        outputs=[_tensor(name, info) for name, info in signature.outputs.items()],
    )


def _parse(
    body: bytes, length: str | None, served: ServedModel
) -> tuple[InferRequest, str, dict[str, np.ndarray]]:
    parsed, tail = split(body, length)
    name = (parsed.parameters or NO_PARAMETERS).signature_name or PLAIN
    return parsed, name, read_inputs(parsed.inputs, tail, served.signature(name))


def _wanted_outputs(parsed: InferRequest, served: ServedModel, name: str) -> dict[str, bool]:
    default = (parsed.parameters or NO_PARAMETERS).binary_data_output
    known = served.signatures[name].outputs
    if parsed.outputs is None:
        return dict.fromkeys(known, default)
    check_outputs(known, [output.name for output in parsed.outputs])
    wanted = {}
    for output in parsed.outputs:
        binary = output.parameters.binary_data if output.parameters else None
        wanted[output.name] = default if binary is None else binary
    return wanted


def _tensor(name: str, info: TensorInfo) -> Tensor:
    return {"name": name, "datatype": V2_NAMES[info.dtype], "shape": info.sizes}
