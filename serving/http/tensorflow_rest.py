"""TensorFlow Serving's REST protocol: status, metadata and predict.

Request bodies, responses and statuses follow tensorflow.org/tfx/serving/api_rest, except that NaN
and infinity, which are not valid JSON, are rejected in requests.
"""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.signature import PLAIN, TENSORFLOW_NAMES, TensorInfo
from serving.engine.fields import Fields, Name
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.http.operations import Endpoints, get, post, version_at
from serving.http.request_bodies import from_columns, from_rows, json_model, read_body
from serving.http.responses import cancel_on_disconnect, json_response

METHOD = "tensorflow/serving/predict"


class PredictRequest(Fields):
    """A prediction request: rows in `instances`, or tensors in `inputs`."""

    signature_name: Name | None = None
    instances: Annotated[list, Field(min_length=1)] | None = None
    inputs: Any = None


class LoadError(TypedDict):
    """The error of a version; its code is "OK" if there is none."""

    error_code: str
    error_message: str


class VersionStatus(TypedDict):
    """A version of a model, and its state."""

    version: str
    state: Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: LoadError


class TensorflowRest(Endpoints):
    """The endpoints of TensorFlow Serving's protocol."""

    @post("/v1/models/{name}:predict", dict, PredictRequest, versions=True)
    async def predict(self, request: Request) -> Response:
        """Run a signature on `instances`, row by row, or on `inputs`, tensor by tensor."""
        served = self._model_at(request)
        signature, inputs, by_rows = await read_body(request, _parse, served)
        work = served.predict(inputs, signature)
        outputs = await cancel_on_disconnect(request.receive, work)
        return json_response(_as_rows(outputs) if by_rows else _as_columns(outputs))

    @get("/v1/models/{name}/metadata", versions=True)
    async def metadata(self, request: Request) -> Response:
        """Return the model's signatures."""
        served = self._model_at(request)
        spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
        metadata = {"signature_def": describe_signatures(served)}
        return json_response({"model_spec": spec, "metadata": metadata})


def statuses(registry: ModelRegistry, request: Request) -> list[VersionStatus]:
    """Return the `model_version_status` of the model or version in the path."""
    name, wanted = request.path_params["name"], version_at(request)
    found = [s for s in registry.versions(name) if wanted in (None, s.version)]
    if wanted is not None and not found:
        raise NotFound(f"There is no version {wanted} of the model `{name}`.")
    return [_status(s.version, s.state, s.error) for s in found]


def _status(version: int, state: Any, error: str) -> VersionStatus:
    status: LoadError = {"error_code": "UNKNOWN" if error else "OK", "error_message": error}
    return {"version": str(version), "state": state, "status": status}


def _parse(body: bytes, served: ServedModel) -> tuple[str, dict[str, np.ndarray], bool]:
    parsed = json_model(body, PredictRequest)
    if (parsed.instances is None) == (parsed.inputs is None):
        raise InvalidInput("The body must have either `instances` or `inputs`.")
    name = parsed.signature_name or PLAIN
    signature = served.signature(name)
    if parsed.instances is not None:
        return name, from_rows(parsed.instances, signature), True
    return name, from_columns(parsed.inputs, signature), False


def _as_rows(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    names = list(outputs)
    rows = zip(*(np.ascontiguousarray(value) for value in outputs.values()), strict=True)
    return {"predictions": [dict(zip(names, row, strict=True)) for row in rows]}


def _as_columns(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    columns = {name: np.ascontiguousarray(value) for name, value in outputs.items()}
    return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}


def describe_signatures(served: ServedModel) -> dict[str, Any]:
    """Return the model's signatures as a SignatureDefMap in JSON form."""

    def tensors(infos: dict[str, TensorInfo]) -> dict[str, Any]:
        return {
            name: {
                "dtype": TENSORFLOW_NAMES[info.dtype],
                "tensor_shape": {
                    "dim": [{"size": str(size), "name": ""} for size in info.sizes],
                    "unknown_rank": False,
                },
                "name": f"{name}:0",
            }
            for name, info in infos.items()
        }

    definitions = {
        name: {
            "inputs": tensors(signature.inputs),
            "outputs": tensors(signature.outputs),
            "method_name": METHOD,
        }
        for name, signature in served.signatures.items()
    }
    return {"signature_def": definitions}
