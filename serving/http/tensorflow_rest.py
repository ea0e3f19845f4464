"""TensorFlow Serving's REST protocol: status, metadata and predict.

Request bodies, responses and statuses follow tensorflow.org/tfx/serving/api_rest, except that NaN
and infinity, which are not valid JSON, are rejected in requests.
"""

from typing import Annotated, Any

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.signature import PLAIN
from serving.engine.descriptions import describe_signatures
from serving.engine.fields import Fields, Name
from serving.engine.json_tensors import from_columns, from_rows
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.http.operations import Endpoints, get, post, version_at
from serving.http.request_bodies import json_model, read_body
from serving.http.responses import cancel_on_disconnect, json_response


class PredictRequest(Fields):
    """A prediction request: rows in `instances`, or tensors in `inputs`."""

    signature_name: Name | None = None
    instances: Annotated[list, Field(min_length=1)] | None = None
    inputs: Any = None


class TensorflowRest(Endpoints):
    """The endpoints of TensorFlow Serving's protocol."""

    @post("/v1/models/{name}:predict", dict, PredictRequest, versions=True)
    async def predict(self, request: Request) -> Response:
        """Run a signature on `instances`, row by row, or on `inputs`, tensor by tensor."""
        served = self._model_at(request)
        signature, inputs, by_rows = await read_body(request, _parse, served)
        work = served.predict(inputs, signature)
        outputs = await cancel_on_disconnect(request.receive, work)
        arrays = {name: np.ascontiguousarray(value) for name, value in outputs.items()}
        answer: Any = arrays if len(outputs) > 1 else next(iter(outputs.values()))
        if by_rows and len(outputs) > 1:
            rows = zip(*arrays.values(), strict=True)
            answer = [dict(zip(arrays, row, strict=True)) for row in rows]
        return json_response({"predictions" if by_rows else "outputs": answer})

    @get("/v1/models/{name}/metadata", versions=True)
    async def metadata(self, request: Request) -> Response:
        """Return the model's signatures."""
        served = self._model_at(request)
        spec = {"name": served.name, "signature_name": "", "version": str(served.version)}
        metadata = {"signature_def": describe_signatures(served)}
        return json_response({"model_spec": spec, "metadata": metadata})


def _parse(body: bytes, served: ServedModel) -> tuple[str, dict[str, np.ndarray], bool]:
    parsed = json_model(body, PredictRequest)
    if (parsed.instances is None) == (parsed.inputs is None):
        raise InvalidInput("The body must have either `instances` or `inputs`.")
    name = parsed.signature_name or PLAIN
    signature = served.signature(name)
    if parsed.instances is not None:
        return name, from_rows(parsed.instances, signature), True
    return name, from_columns(parsed.inputs, signature), False


def statuses(registry: ModelRegistry, request: Request) -> list[dict[str, Any]]:
    """Return the `model_version_status` of the model or version in the path."""
    name, wanted = request.path_params["name"], version_at(request)
    found = [s for s in registry.versions(name) if wanted in (None, s.version)]
    if wanted is not None and not found:
        raise NotFound(f"There is no version {wanted} of the model `{name}`.")
    return [
        {
            "version": str(s.version),
            "state": s.state,
            "status": {"error_code": "UNKNOWN" if s.error else "OK", "error_message": s.error},
        }
        for s in found
    ]
