"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""

from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from onepass.bundles.errors import InvalidInput, NotFound
from onepass.bundles.signature import PLAIN, check_outputs
from serving.engine.descriptions import describe_signatures
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.grpc.interceptor import seconds_left
from serving.grpc.tensors import decode_all, encode, enum_values, message
from serving.settings import Settings

METADATA = "signature_def"
STATES = enum_values("tensorflow.serving.ModelVersionStatus.State")


def resolve_model(registry: ModelRegistry, spec: Any) -> ServedModel:
    """Return the model that a ModelSpec names; raise InvalidInput, NotFound or NotReady."""
    return registry.get(_name(spec), _version(spec))


def fill_spec(spec: Any, served: ServedModel, signature: str = "") -> None:
    """Write the model, version and signature that answered the request into a ModelSpec."""
    spec.name, spec.signature_name = served.name, signature
    spec.version.value = served.version


class Prediction:
    """The service PredictionService; only prediction with tensors is implemented."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    async def predict(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the outputs of a signature for the request's inputs."""
        served = resolve_model(self._registry, request.model_spec)
        name = request.model_spec.signature_name or PLAIN
        signature = served.signature(name)
        check_outputs(signature.outputs, request.output_filter)
        inputs = decode_all(request.inputs, signature.inputs, self._settings.max_body_bytes)
        seconds = seconds_left(context, self._settings)
        outputs = await served.predict(inputs, name, timeout_seconds=seconds)
        response = message("tensorflow.serving.PredictResponse")()
        fill_spec(response.model_spec, served, name)
        for output in dict.fromkeys(request.output_filter or outputs):
            encode(outputs[output], response.outputs[output])
        return response

    async def get_model_metadata(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the signatures of a model."""
        if list(request.metadata_field) != [METADATA]:
            raise InvalidInput(f"`metadata_field` must be `{METADATA}` and nothing else.")
        served = resolve_model(self._registry, request.model_spec)
        signatures = message("tensorflow.serving.SignatureDefMap")()
        ParseDict(describe_signatures(served), signatures)
        response = message("tensorflow.serving.GetModelMetadataResponse")()
        fill_spec(response.model_spec, served)
        response.metadata[METADATA].Pack(signatures)
        return response

    async def classify(self, request: Message, context: grpc.aio.ServicerContext) -> None:
        """Abort with UNIMPLEMENTED, like all methods for tf.Example."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "This method is for tf.Example models, which are not supported: use Predict.",
        )

    regress = multi_inference = classify


class Models:
    """The service ModelService."""

    def __init__(self, registry: ModelRegistry):
        self._registry = registry

    async def get_model_status(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return the status of all versions of a model, or of the requested version."""
        name, version = _name(request.model_spec), _version(request.model_spec)
        response = message("tensorflow.serving.GetModelStatusResponse")()
        for status in self._registry.versions(name):
            if version in (None, status.version):
                entry = response.model_version_status.add(version=status.version)
                entry.state = STATES[status.state]
                if status.error:
                    entry.status.error_code = grpc.StatusCode.INTERNAL.value[0]
                    entry.status.error_message = status.error
        if not response.model_version_status:
            raise NotFound(f"There is no version {version} of {name}.")
        return response


def _name(spec: Any) -> str:
    if not spec.name:
        raise InvalidInput("`model_spec.name` must be given.")
    return spec.name


def _version(spec: Any) -> int | None:
    if spec.WhichOneof("version_choice") == "version_label":
        raise InvalidInput("`model_spec.version_label` must not be given: versions are numbers.")
    return spec.version.value if spec.HasField("version") else None
