"""TensorFlow Serving's REST protocol: status, metadata and predict.

Bodies, answers and statuses are those of tensorflow.org/tfx/serving/api_rest, but NaN and infinity
are refused, for they are no JSON.
"""

import dataclasses
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.bundles.dtypes import TENSORFLOW_NAMES
from serving.bundles.signature import Signature, TensorInfo
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput, NotFound
from serving.http.disconnects import cancel_on_disconnect
from serving.http.fields import Fields, json_object, text
from serving.http.json_responses import json_response
from serving.http.json_tensors import from_columns, from_rows
from serving.http.model_lookup import DEFAULT, MAX_NAME_CHARACTERS, model_from_path, version_at
from serving.http.request_bodies import body_of, read_with
from serving.settings import Settings

METHOD = "tensorflow/serving/predict"


class TensorflowRest:
    """The endpoints, over a model registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def routes(self) -> list[Route]:
        """Predict first: it is asked for most."""
        routes = []
        for place in ("/v1/models/{name:name}", "/v1/models/{name:name}/versions/{version:name}"):
            routes.append(Route(f"{place}:predict", self.predict, methods=["POST"]))
            routes.append(Route(f"{place}/metadata", self.metadata, methods=["GET"]))
        return routes

    async def predict(self, request: Request) -> Response:
        """Runs a signature on `instances`, row by row, or on `inputs`, tensor by tensor."""
        served = model_from_path(self._registry, request)
        body = await body_of(request, self._settings.timeout_seconds)
        asked = await read_with(_asked, body, served)
        outputs = await cancel_on_disconnect(
            request.receive, served.predict(asked.inputs, asked.signature)
        )
        return json_response(_as_rows(outputs) if asked.by_rows else _as_columns(outputs))

    async def metadata(self, request: Request) -> Response:
        """What the signatures take and give."""
        served = model_from_path(self._registry, request)
        described = {name: _described(s) for name, s in served.signatures.items()}
        return json_response(
            {
                "model_spec": {
                    "name": served.name,
                    "signature_name": "",
                    "version": str(served.version),
                },
                "metadata": {"signature_def": {"signature_def": described}},
            }
        )


def signature_of(served: ServedModel, name: str) -> Signature:
    """The signature of that name; InvalidInput if there is none."""
    signature = served.signatures.get(name)
    if signature is None:
        known = ", ".join(served.signatures)
        raise InvalidInput(f"There is no signature `{name}`; there are {known}.")
    return signature


def statuses(registry: ModelRegistry, request: Request) -> list[dict[str, Any]]:
    """`model_version_status` of the model, or of the version, that the path names."""
    name, wanted = request.path_params["name"], version_at(request)
    found = [s for s in registry.versions(name) if wanted in (None, s.version)]
    if wanted is not None and not found:
        raise NotFound(f"There is no version {wanted} of the model `{name}`.")
    return [_status(s.version, s.state, s.error) for s in found]


def _status(version: int, state: str, error: str) -> dict[str, Any]:
    code = "UNKNOWN" if error else "OK"
    status = {"error_code": code, "error_message": error}
    return {"version": str(version), "state": state, "status": status}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A request to predict: the inputs of a signature, and whether they came row by row."""

    signature: str
    inputs: dict[str, np.ndarray]
    by_rows: bool


def _asked(body: bytes, served: ServedModel) -> _Asked:
    fields = json_object(body)
    name = text(fields, "signature_name", MAX_NAME_CHARACTERS) or DEFAULT
    inputs = _inputs(fields, signature_of(served, name))
    return _Asked(name, inputs, "instances" in fields)


def _inputs(fields: Fields, signature: Signature) -> dict[str, np.ndarray]:
    if ("instances" in fields) == ("inputs" in fields):
        raise InvalidInput("The body must have either `instances` or `inputs`.")
    if "instances" in fields:
        return from_rows(fields["instances"], signature)
    return from_columns(fields["inputs"], signature)


def _as_rows(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    names = list(outputs)
    rows = zip(*(np.ascontiguousarray(value) for value in outputs.values()), strict=True)
    return {"predictions": [dict(zip(names, row, strict=True)) for row in rows]}


def _as_columns(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    columns = {name: np.ascontiguousarray(value) for name, value in outputs.items()}
    return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}


def _described(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": {name: _tensor(name, info) for name, info in signature.inputs.items()},
        "outputs": {name: _tensor(name, info) for name, info in signature.outputs.items()},
        "method_name": METHOD,
    }


def _tensor(name: str, info: TensorInfo) -> dict[str, Any]:
    sides = [{"size": str(-1 if side is None else side), "name": ""} for side in info.shape]
    shape = {"dim": sides, "unknown_rank": False}
    return {"dtype": TENSORFLOW_NAMES[info.dtype], "tensor_shape": shape, "name": f"{name}:0"}
