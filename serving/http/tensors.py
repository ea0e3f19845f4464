"""The protocols of tensors: TensorFlow Serving's REST, v2 inference, and the list of models.

Request bodies, responses and statuses follow tensorflow.org/tfx/serving/api_rest, except that NaN
and infinity, which are not valid JSON, are rejected in requests.

If the header `Inference-Header-Content-Length: N` is given, the first N bytes of a body are JSON.
The binary tensors follow in the order of the JSON, little-endian, without gaps.
"""

import asyncio
import contextlib
import logging
import math
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput, NotFound, NotReady, ServingError
from onepass.bundles.signature import (
    PLAIN,
    V2_NAMES,
    Arrays,
    Signature,
    check_dimensions,
    check_outputs,
    from_bytes,
    input_info,
    v2_dtype,
)
from serving.engine.descriptions import SERVER_VERSION, describe_signatures, facts_of, metadata_of
from serving.engine.fields import Fields, Name, flat_tensor, from_columns, from_rows
from serving.engine.served_model import ServedModel
from serving.http import routes

HEADER = "inference-header-content-length"
OCTETS = "application/octet-stream"
EXTENSIONS = {"extensions": ["binary_tensor_data", "model_repository(index)"]}
TENSOR: Any = create_model("Tensor", name=str, datatype=str, shape=list[int])
TENSORS: Any = list[TENSOR]
METADATA = create_model(
    "Metadata", name=str, versions=list[str], platform=str, inputs=TENSORS, outputs=TENSORS
)
# Each output also has its data, or the size of its binary data.
INFER_RESULT = create_model(
    "InferResult", model_name=str, model_version=str, id=(str, ""), outputs=TENSORS
)
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


class PredictRequest(Fields):
    """A prediction request: rows in `instances`, or tensors in `inputs`."""

    signature_name: Name | None = None
    instances: Annotated[list, Field(min_length=1)] | None = None
    inputs: Any = None


class TensorflowRest(routes.Endpoints):
    """The endpoints of TensorFlow Serving's protocol."""

    @routes.post("/v1/models/{name}:predict", dict, PredictRequest, versions=True)
    async def predict(self, request: Request) -> Response:
        """Run a signature on `instances`, row by row, or on `inputs`, tensor by tensor."""
        served = self._model_at(request)
        signature, inputs, by_rows = await routes.read_body(request, _parse_prediction, served)
        work = served.predict(inputs, signature)
        outputs = await routes.cancel_on_disconnect(request.receive, work)
        arrays = {name: np.ascontiguousarray(value) for name, value in outputs.items()}
        answer: Any = arrays if len(outputs) > 1 else next(iter(outputs.values()))
        if by_rows and len(outputs) > 1:
            rows = zip(*arrays.values(), strict=True)
            answer = [dict(zip(arrays, row, strict=True)) for row in rows]
        return routes.json_response({"predictions" if by_rows else "outputs": answer})

    @routes.get("/v1/models/{name}/metadata", versions=True)
    async def metadata(self, request: Request) -> Response:
        """Return the model's signatures."""
        served = self._model_at(request)
        spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
        metadata = {"signature_def": describe_signatures(served)}
        return routes.json_response({"model_spec": spec, "metadata": metadata})


def _parse_prediction(body: bytes, served: ServedModel) -> tuple[str, Arrays, bool]:
    parsed = routes.json_model(body, PredictRequest)
    if (parsed.instances is None) == (parsed.inputs is None):
        raise InvalidInput("The body must have either `instances` or `inputs`.")
    name = parsed.signature_name or PLAIN
    signature = served.signature(name)
    if parsed.instances is not None:
        return name, from_rows(parsed.instances, signature), True
    return name, from_columns(parsed.inputs, signature), False


class InferParameters(Fields):
    """Parameters of a request; `timeout` is in microseconds, 0 for the server's limit."""

    signature_name: Name | None = None
    binary_data_output: bool = False
    timeout: Annotated[float, Field(ge=0)] = 0.0


class TensorParameters(Fields):
    """Parameters of a tensor: of an input its bytes, of an output whether it is binary."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    binary_data: bool | None = None
    classification: Annotated[int, Field(le=0)] | None = None
    shared_memory_region: None = None


class InputTensor(Fields):
    """An input tensor: its elements are in `data`, or follow the JSON as binary data."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(fail_fast=True)]
    datatype: str
    data: list | None = None
    parameters: TensorParameters | None = None


class OutputTensor(Fields):
    """A requested output."""

    name: str
    parameters: TensorParameters | None = None


class InferRequest(Fields):
    """The JSON of an inference request."""

    inputs: Annotated[list[InputTensor], Field(min_length=1, fail_fast=True)]
    outputs: Annotated[list[OutputTensor], Field(min_length=1, fail_fast=True)] | None = None
    id: Name | None = None
    parameters: InferParameters | None = None


def split(body: bytes, header_length: str | None) -> tuple[InferRequest, memoryview]:
    """Return a request's JSON, all of it without a `header_length`, and the bytes after it."""
    length = str(len(body)) if header_length is None else header_length
    if not routes.DECIMAL.fullmatch(length) or int(length) > len(body):
        raise InvalidInput(
            f"`Inference-Header-Content-Length` must be from 0 to {len(body)}, the body's length."
        )
    view = memoryview(body)
    return routes.json_model(view[: int(length)], InferRequest), view[int(length) :]


def read_inputs(tensors: list[InputTensor], tail: memoryview, signature: Signature) -> Arrays:
    """Return a request's inputs, binary ones as views, with shapes that are checked later."""
    inputs: Arrays = {}
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


def write_response(header: dict[str, Any], outputs: Arrays, binary: dict[str, bool]) -> Response:
    """Return the response, JSON except for the outputs that are `binary`, which follow it."""
    described, tail = [], []
    for name, value in outputs.items():
        array = np.ascontiguousarray(value)
        tensor = {"name": name, "datatype": V2_NAMES[array.dtype], "shape": list(value.shape)}
        if binary[name]:
            described.append({**tensor, "parameters": {"binary_data_size": array.nbytes}})
            tail.append(array.tobytes())
        else:
            described.append({**tensor, "data": array.reshape(-1)})
    text = orjson.dumps({**header, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    binary_head = {HEADER: str(len(text)), "content-type": OCTETS}
    headers = binary_head if tail else {"content-type": routes.JSON}
    return Response(b"".join([text, *tail]), headers=headers)


class V2(routes.Endpoints):
    """The endpoints of the v2 protocol."""

    @routes.post(
        "/v2/models/{name}/infer",
        {routes.JSON: INFER_RESULT, OCTETS: routes.Bytes},
        {routes.JSON: InferRequest, OCTETS: routes.Bytes},
        versions=True,
        header={HEADER: Annotated[int, Field(ge=0)]},
    )
    async def infer(self, request: Request) -> Response:
        """Run the signature in the parameter `signature_name`, by default `serving_default`."""
        served, length = self._model_at(request), request.headers.get(HEADER)
        parsed, inputs = await routes.read_body(request, _parse_inference, length, served)
        options = parsed.parameters or InferParameters()
        name = options.signature_name or PLAIN
        binary = _wanted_outputs(parsed, served.signatures[name], options.binary_data_output)
        seconds = min(self._settings.timeout_seconds, options.timeout / 1e6 or math.inf)
        work = served.predict(inputs, name, timeout_seconds=seconds)
        outputs = await routes.cancel_on_disconnect(request.receive, work)
        head = {"model_name": served.name, "model_version": str(served.version)}
        head |= {} if parsed.id is None else {"id": parsed.id}
        return write_response(head, {name: outputs[name] for name in binary}, binary)

    @routes.get("/v2/models/{name}", METADATA, versions=True)
    async def metadata(self, request: Request) -> Response:
        """Return the inputs and outputs of `serving_default`."""
        return routes.json_response(metadata_of(self._registry, self._model_at(request)))

    @routes.get("/v2/models/{name}/ready", versions=True)
    async def model_ready(self, request: Request) -> Response:
        """Answer 200 if the model is ready, else 503 or 404 with the reason."""
        return routes.json_response({"name": self._model_at(request).name, "ready": True})

    @routes.get("/v2")
    async def server(self, request: Request) -> Response:
        """Return the name, version and extensions of the server."""
        return routes.json_response({"name": "onepass", "version": SERVER_VERSION, **EXTENSIONS})

    @routes.get("/v2/health/live")
    async def live(self, request: Request) -> Response:
        """Answer 200."""
        return routes.json_response({"live": True})

    @routes.get("/v2/health/ready")
    async def ready(self, request: Request) -> Response:
        """Answer 200 if the server accepts requests, else 503."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return routes.json_response({"ready": True})

    @routes.post("/v2/repository/index", list[dict])
    async def index(self, request: Request) -> Response:
        """Return all versions of all models."""
        rows = []
        for name in sorted(self._registry.names()):
            for status in self._registry.versions(name):
                state = "READY" if status.state == "AVAILABLE" else "UNAVAILABLE"
                row = {"name": name, "version": str(status.version), "state": state}
                rows.append({**row, "reason": status.error})
        return routes.json_response(rows)


def _parse_inference(
    body: bytes, length: str | None, served: ServedModel
) -> tuple[InferRequest, Arrays]:
    parsed, tail = split(body, length)
    name = parsed.parameters.signature_name if parsed.parameters else None
    return parsed, read_inputs(parsed.inputs, tail, served.signature(name or PLAIN))


def _wanted_outputs(parsed: InferRequest, known: Signature, default: bool) -> dict[str, bool]:
    """Return for each output that is asked for whether it is sent as binary data."""
    outputs = parsed.outputs or [OutputTensor(name=name) for name in known.outputs]
    check_outputs(known.outputs, [output.name for output in outputs])
    options = {output.name: output.parameters or TensorParameters() for output in outputs}
    asked = {name: option.binary_data for name, option in options.items()}
    return {name: default if binary is None else binary for name, binary in asked.items()}


class ModelListing(routes.Endpoints):
    """The endpoints that list models."""

    @routes.get("/v1/models", MODELS)
    async def models(self, request: Request) -> Response:
        """Return all models."""
        entries = []
        for name in sorted(self._registry.names()):
            with contextlib.suppress(NotFound):  # the model was removed meanwhile
                entries.append(await self._entry(name))
        return routes.json_response({"object": "list", "data": entries})

    @routes.get("/v1/models/{name}", MODEL, versions=True)
    async def model(self, request: Request) -> Response:
        """Return one model, with `model_version_status` as in TensorFlow Serving."""
        name, wanted = request.path_params["name"], routes.version_at(request)
        found = [s for s in self._registry.versions(name) if wanted in (None, s.version)]
        if wanted is not None and not found:
            raise NotFound(f"There is no version {wanted} of the model `{name}`.")
        statuses = []
        for each in found:
            code = "UNKNOWN" if each.error else "OK"
            status = {"error_code": code, "error_message": each.error}
            statuses.append({"version": str(each.version), "state": each.state, "status": status})
        entry = await self._entry(name, wanted)
        return routes.json_response({**entry, "model_version_status": statuses})

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
