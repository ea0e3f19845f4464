"""The Open Inference Protocol, version 2, over gRPC: `inference.GRPCInferenceService`."""

from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from onepass.bundles.errors import InvalidInput, NotFound, ServingError
from onepass.bundles.manifest import version_problem
from onepass.bundles.signature import (
    PLAIN,
    V2_NAMES,
    TensorInfo,
    check_outputs,
    checked_count,
    from_bytes,
    input_info,
    v2_dtype,
)
from serving.engine.descriptions import SERVER_VERSION, metadata_of
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.grpc.interceptor import seconds_left
from serving.grpc.tensors import message
from serving.settings import Settings

# The field of InferTensorContents for each type; FP16 has none.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
SIGNATURE = "signature_name"  # name of the parameter


class Inference:
    """The methods of the protocol: health, metadata and inference."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    async def server_live(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Answer that the server is live."""
        return message("inference.ServerLiveResponse")(live=True)

    async def server_ready(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return whether the server accepts requests."""
        return message("inference.ServerReadyResponse")(ready=self._registry.ready)

    async def model_ready(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return whether a model is ready; raise NotFound for an unknown name or version."""
        response = message("inference.ModelReadyResponse")
        try:
            self._resolve_model(request.name, request.version)
        except (NotFound, InvalidInput):
            raise
        except ServingError:
            return response(ready=False)
        return response(ready=self._registry.ready)

    async def server_metadata(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the name of the server and its version."""
        made = message("inference.ServerMetadataResponse")
        return made(name="onepass", version=SERVER_VERSION)

    async def model_metadata(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the inputs and outputs of a model's signature `serving_default`."""
        served = self._resolve_model(request.name, request.version)
        return message("inference.ModelMetadataResponse")(**metadata_of(self._registry, served))

    async def model_infer(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the outputs for the request's inputs, as raw bytes."""
        served = self._resolve_model(request.model_name, request.model_version)
        name = request.parameters[SIGNATURE].string_param if SIGNATURE in request.parameters else ""
        name = name or PLAIN
        signature = served.signature(name)
        inputs = _inputs(request, signature.inputs, self._settings.max_body_bytes)
        wanted = [output.name for output in request.outputs]
        check_outputs(signature.outputs, wanted)
        seconds = seconds_left(context, self._settings)
        outputs = await served.predict(inputs, name, timeout_seconds=seconds)
        arrays = {name: np.asarray(outputs[name]) for name in dict.fromkeys(wanted or outputs)}
        return message("inference.ModelInferResponse")(
            model_name=served.name,
            model_version=str(served.version),
            id=request.id,
            outputs=[
                {"name": name, "datatype": V2_NAMES[array.dtype], "shape": array.shape}
                for name, array in arrays.items()
            ],
            raw_output_contents=[array.tobytes() for array in arrays.values()],
        )

    def _resolve_model(self, name: str, version: str) -> ServedModel:
        if not name:
            raise InvalidInput("The model's name must be given.")
        if version and (problem := version_problem(version)):
            raise InvalidInput(f"A version {problem}.")
        return self._registry.get(name, int(version) if version else None)


def _inputs(
    request: Message, known: dict[str, TensorInfo], limit_bytes: int
) -> dict[str, np.ndarray]:
    raw = request.raw_input_contents
    if len(raw) and len(raw) != len(request.inputs):
        raise InvalidInput(
            f"`raw_input_contents` must have one entry for each of the {len(request.inputs)} "
            f"inputs, got {len(raw)}."
        )
    arrays: dict[str, np.ndarray] = {}
    left = limit_bytes
    for index, tensor in enumerate(request.inputs):
        input_info(known, tensor.name)
        if tensor.name in arrays:
            raise InvalidInput(f"`{tensor.name}` must be given once.")
        array = _array(tensor, raw[index] if len(raw) else None, left)
        left -= array.nbytes
        arrays[tensor.name] = array
    return arrays


def _array(tensor: Any, raw: bytes | None, limit_bytes: int) -> np.ndarray:
    dtype, shape = v2_dtype(tensor.name, tensor.datatype), tensor.shape
    count = checked_count(tensor.name, shape, dtype, limit_bytes)
    if raw is not None:
        if tensor.HasField("contents"):
            raise InvalidInput(f"`{tensor.name}` must have raw bytes or `contents`, got both.")
        return from_bytes(tensor.name, raw, shape, dtype)
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidInput(f"`{tensor.name}` of {tensor.datatype} must come as raw bytes.")
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise InvalidInput(f"`{tensor.name}` must have {count} `{field}`, got {len(values)}.")
    try:
        return np.array(values, dtype).reshape(shape)
    except OverflowError:
        raise InvalidInput(f"`{tensor.name}` has values beyond {tensor.datatype}.") from None
