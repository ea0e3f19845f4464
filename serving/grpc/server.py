"""The gRPC server, for the protocols of TensorFlow Serving, v2 inference, health and onepass.

Every method is registered as one that reads a stream of bytes. Therefore the token is checked
before a message is received, the deadline also applies to slow messages, and bytes that are not a
valid message are reported as the client's error, not the server's.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import os
import re
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from onepass.bundles import errors
from onepass.bundles.manifest import version_problem
from onepass.bundles.sampling import check_convention
from onepass.bundles.signature import (
    PLAIN,
    V2_NAMES,
    Arrays,
    TensorInfo,
    check_input,
    check_outputs,
    checked_count,
    from_bytes,
    input_info,
    v2_dtype,
)
from serving import observability
from serving.engine.clients import HEALTH_PREFIX, TokenAuth, begin_client, read_tokens
from serving.engine.descriptions import SERVER_VERSION, describe_signatures, metadata_of
from serving.engine.fields import as_model
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import STREAM_TIMEOUT_FACTOR, ServedModel
from serving.engine.speech import SynthesisFields, is_conditional, signature, synthesis
from serving.grpc import tensors
from serving.observability import Metrics, begin_request, event
from serving.settings import Settings

PROXIES_VARIABLE, DEFAULT_PROXIES = "FORWARDED_ALLOW_IPS", "127.0.0.1"
FORWARDED = "x-forwarded-for"
REQUEST_ID = "x-request-id"
PROTOCOL = "grpc"
MAX_PUSHBACK_SECONDS = 3600
LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5  # interval of the checks for a stopping server
SILENT_SECONDS = 10.0  # time for a probe, which needs no token, to send its message
METADATA = "signature_def"
SIGNATURE = "signature_name"  # name of a parameter of v2 inference
# The field of InferTensorContents for each type; FP16 has none.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{"INT64": "int64_contents", "UINT64": "uint64_contents"},
    **{"FP32": "fp32_contents", "FP64": "fp64_contents"},
}
STATES = tensors.enum_values("tensorflow.serving.ModelVersionStatus.State")
WATCH_SECONDS = 0.25
Context: TypeAlias = grpc.aio.ServicerContext
Status = health_pb2.HealthCheckResponse.ServingStatus
HEALTH = "grpc.health.v1.Health"
SERVICES = (
    *("tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"),
    *("inference.GRPCInferenceService", "onepass.Models"),
)
MAX_CONNECTIONS = 1024
MAX_CALLS = 256  # largest number of concurrent calls, each with a message up to the size limit
MAX_CALLS_PER_CONNECTION = 64  # further calls wait in the client
MAX_METADATA_BYTES = 16 * 1024
IDLE_SECONDS = 120  # a connection without calls is closed after this time
HANDSHAKE_SECONDS = 10
ALIVE_SECONDS = 30.0  # between two pings of a client, and for its answer
ONLY_IDENTITY = 1  # a compressed message could expand without limit


def client_address(peer: str, metadata: Mapping[str, Any]) -> str:
    """Return the address that a trusted proxy names ("x-forwarded-for"), or else the peer's."""
    given = metadata.get(FORWARDED)
    if not isinstance(given, str) or not is_proxy(peer):
        return peer
    named = [address.strip() for address in given.split(",")]
    return next((address for address in reversed(named) if not is_proxy(address)), named[0])


def is_proxy(address: str) -> bool:
    """Return whether an address belongs to a trusted proxy."""
    for proxy in os.environ.get(PROXIES_VARIABLE, DEFAULT_PROXIES).split(","):
        if proxy.strip() in ("*", address):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(address) in ipaddress.ip_network(proxy.strip()):
                return True
    return False


class Call:
    """A call in progress, which is logged and counted in the metrics when it ends."""

    def __init__(self, method: str, metadata: dict[str, Any], context: Context, metrics: Metrics):
        self.method, self._context, self._metrics = method, context, metrics
        self.client = client_address(client_of(context.peer()), metadata)
        given = metadata.get(REQUEST_ID)
        self._id = begin_request(given if isinstance(given, str) else None)
        self._start, self._model = time.perf_counter(), ""
        self._received = self._sent = 0
        self._first_byte_at: float | None = None

    def parse_message(self, handler: Any, message: bytes) -> Any:
        """Parse a message; raise InvalidInput if its bytes are not a message of this method."""
        self._received += len(message)
        try:
            request = handler.request_deserializer(message)
        except DecodeError:
            raise errors.InvalidInput("The request is not a message of this method.") from None
        spec = getattr(request, "model_spec", None)
        name = spec.name if spec is not None else getattr(request, "model_name", "")
        self._model = name[:64]
        return request

    def serialise_response(self, handler: Any, response: Message, limit_bytes: int) -> bytes:
        """Serialise a response; raise TooLarge if it is over the limit."""
        answer = handler.response_serializer(response)
        if len(answer) > limit_bytes:
            raise errors.TooLarge(
                f"The answer has {len(answer)} bytes, over the server's limit of {limit_bytes}: "
                "ask for fewer rows, fewer outputs, or a stream."
            )
        self._sent += len(answer)
        self._first_byte_at = self._first_byte_at or time.perf_counter()
        return answer

    async def __aenter__(self) -> "Call":
        self._context.set_trailing_metadata(((REQUEST_ID, self._id),))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._record("ok")
        elif isinstance(error, errors.ServingError):
            await self._abort(error)
        elif isinstance(error, TimeoutError):
            await self._abort(errors.DeadlineExceeded("The answer was not ready in time."))
        elif isinstance(error, grpc.aio.AbortError):  # the handler has set the status
            self._record("not_implemented")
        elif isinstance(error, asyncio.CancelledError):
            self._record("cancelled")
        elif isinstance(error, MemoryError):
            await self._abort(errors.Overloaded("There is not enough memory for this request."))
        elif isinstance(error, Exception):
            LOG.error("a call failed", exc_info=error)
            await self._abort(errors.Internal("The server failed; see its log."))

    async def _abort(self, error: errors.ServingError) -> None:
        self._record(error.code)
        trailing: list[tuple[str, str]] = [(REQUEST_ID, self._id)]
        if error.retry_after_seconds is not None:
            seconds = min(error.retry_after_seconds, MAX_PUSHBACK_SECONDS)
            trailing.append(("retry-after", str(max(1, math.ceil(seconds)))))
            trailing.append(("grpc-retry-pushback-ms", str(math.ceil(1000 * seconds))))
        status = getattr(grpc.StatusCode, error.grpc_status)
        await self._context.abort(status, str(error), tuple(trailing))

    def _record(self, status: str) -> None:
        seconds = time.perf_counter() - self._start
        level = logging.DEBUG if self.method.startswith(HEALTH_PREFIX) else logging.INFO
        fields = {"method": self.method, "model": self._model, "status": status}
        fields["client"] = self.client
        event(LOG, "answered", level, **fields, seconds=seconds, bytes=self._sent)
        sizes = {"received_bytes": self._received, "sent_bytes": self._sent}
        first = None if self._first_byte_at is None else self._first_byte_at - self._start
        self._metrics.request(
            self._model or None, PROTOCOL, status, seconds, first_byte_seconds=first, **sizes
        )


def client_of(peer: str) -> str:
    """Return the address of a peer such as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    return urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Checks calls and maps their errors to statuses; awaits no more messages while stopping."""

    def __init__(
        self,
        settings: Settings,
        auth: TokenAuth,
        metrics: Metrics,
        is_stopping: Callable[[], bool] = lambda: False,
    ):
        self._settings, self._auth = settings, auth
        self._metrics, self._is_stopping = metrics, is_stopping

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, wrapped by this interceptor; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())

        async def answer_call(messages: AsyncIterator[bytes], context: Context) -> bytes | None:
            async with Call(method, metadata, context, self._metrics) as call:
                given = metadata.get("authorization", b"")
                given = given.encode() if isinstance(given, str) else given
                token = self._auth.check(method, given)
                begin_client(call.client, token)
                headers = {name: v for name, v in metadata.items() if isinstance(v, str)}
                with observability.span("grpc", headers, method=method):
                    if handler.response_streaming:
                        await self._forward_stream(call, handler, messages, context)
                        return None
                    async with asyncio.timeout(seconds_left(context, self._settings)):
                        request = await self._single_message(call, handler, messages)
                        response = await handler.unary_unary(request, context)
                return call.serialise_response(handler, response, self._settings.max_body_bytes)

        kind = "stream" if handler.response_streaming else "unary"
        return getattr(grpc, f"stream_{kind}_rpc_method_handler")(answer_call)

    async def _forward_stream(
        self, call: Call, handler: Any, messages: Any, context: Context
    ) -> None:
        if handler.request_streaming:
            responses = handler.stream_stream(self._each_message(call, handler, messages), context)
        else:
            async with asyncio.timeout(seconds_left(context, self._settings)):
                request = await self._single_message(call, handler, messages)
            responses = handler.unary_stream(request, context)
        endless = call.method.startswith(HEALTH_PREFIX)  # the method `Watch`
        seconds = None if endless else seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        async with asyncio.timeout(seconds), contextlib.aclosing(responses):
            async for response in responses:
                message = call.serialise_response(handler, response, self._settings.max_body_bytes)
                async with asyncio.timeout(self._settings.timeout_seconds):  # for a stalled reader
                    await context.write(message)

    async def _each_message(self, call: Call, handler: Any, messages: Any) -> AsyncIterator[Any]:
        while (message := await self._next_message(messages, math.inf)) is not None:
            yield call.parse_message(handler, message)

    async def _single_message(
        self, call: Call, handler: Any, messages: AsyncIterator[bytes]
    ) -> Any:
        is_probe = call.method.startswith(HEALTH_PREFIX)
        seconds = SILENT_SECONDS if is_probe else self._settings.timeout_seconds
        message = await self._next_message(messages, seconds)
        if message is not None:
            return call.parse_message(handler, message)
        if self._is_stopping():
            raise errors.NotReady("The server is stopping.")
        raise errors.InvalidInput("The request must be one message, got none.")

    async def _next_message(self, messages: AsyncIterator[bytes], seconds: float) -> bytes | None:
        next_one = asyncio.ensure_future(anext(messages, None))
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            while not (await asyncio.wait({next_one}, timeout=POLL_SECONDS))[0]:
                if self._is_stopping():
                    return None
                if loop.time() >= end:
                    raise errors.DeadlineExceeded(f"No message arrived within {seconds:g} seconds.")
            return next_one.result()
        finally:
            next_one.cancel()


def seconds_left(context: Context, settings: Settings, times: int = 1) -> float:
    """Return the seconds until the call's deadline, at most `times` times the server's limit."""
    left, longest = context.time_remaining(), times * settings.timeout_seconds
    return longest if left is None else min(left, longest)


def model_named(spec: Any) -> tuple[str, int | None]:
    """Return the name and version in a ModelSpec; raise InvalidInput without a name."""
    if not spec.name:
        raise errors.InvalidInput("`model_spec.name` must be given.")
    if spec.WhichOneof("version_choice") == "version_label":
        raise errors.InvalidInput(
            "`model_spec.version_label` must not be given: versions are numbers."
        )
    return spec.name, spec.version.value if spec.HasField("version") else None


def fill_spec(spec: Any, served: ServedModel, signature: str = "") -> None:
    """Write the model, version and signature that answered the request into a ModelSpec."""
    spec.name, spec.signature_name = served.name, signature
    spec.version.value = served.version


class Services:
    """The methods of all services; of PredictionService, only prediction with tensors."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    async def predict(self, request: Message, context: Context) -> Any:
        """Return the outputs of a signature for the request's inputs."""
        served = self._served(request.model_spec)
        name = request.model_spec.signature_name or PLAIN
        signature = served.signature(name)
        check_outputs(signature.outputs, request.output_filter)
        inputs = tensors.decode_all(request.inputs, signature.inputs, self._settings.max_body_bytes)
        seconds = seconds_left(context, self._settings)
        outputs = await served.predict(inputs, name, timeout_seconds=seconds)
        response = tensors.message("tensorflow.serving.PredictResponse")()
        fill_spec(response.model_spec, served, name)
        for output in dict.fromkeys(request.output_filter or outputs):
            tensors.encode(outputs[output], response.outputs[output])
        return response

    async def get_model_metadata(self, request: Message, context: Context) -> Any:
        """Return the signatures of a model."""
        if list(request.metadata_field) != [METADATA]:
            raise errors.InvalidInput(f"`metadata_field` must be `{METADATA}` and nothing else.")
        served = self._served(request.model_spec)
        signatures = tensors.message("tensorflow.serving.SignatureDefMap")()
        ParseDict(describe_signatures(served), signatures)
        response = tensors.message("tensorflow.serving.GetModelMetadataResponse")()
        fill_spec(response.model_spec, served)
        response.metadata[METADATA].Pack(signatures)
        return response

    async def classify(self, request: Message, context: Context) -> None:
        """Abort with UNIMPLEMENTED, like all methods for tf.Example."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "This method is for tf.Example models, which are not supported: use Predict.",
        )

    regress = multi_inference = classify

    async def get_model_status(self, request: Message, context: Context) -> Any:
        """Return the status of all versions of a model, or of the requested version."""
        name, version = model_named(request.model_spec)
        response = tensors.message("tensorflow.serving.GetModelStatusResponse")()
        for status in self._registry.versions(name):
            if version in (None, status.version):
                entry = response.model_version_status.add(version=status.version)
                entry.state = STATES[status.state]
                if status.error:
                    entry.status.error_code = grpc.StatusCode.INTERNAL.value[0]
                    entry.status.error_message = status.error
        if not response.model_version_status:
            raise errors.NotFound(f"There is no version {version} of {name}.")
        return response

    async def server_live(self, request: Message, context: Context) -> Any:
        """Answer that the server is live."""
        return tensors.message("inference.ServerLiveResponse")(live=True)

    async def server_ready(self, request: Message, context: Context) -> Any:
        """Return whether the server accepts requests."""
        return tensors.message("inference.ServerReadyResponse")(ready=self._registry.ready)

    async def model_ready(self, request: Message, context: Context) -> Any:
        """Return whether a model is ready; raise NotFound for an unknown name or version."""
        response = tensors.message("inference.ModelReadyResponse")
        try:
            self._resolve_model(request.name, request.version)
        except (errors.NotFound, errors.InvalidInput):
            raise
        except errors.ServingError:
            return response(ready=False)
        return response(ready=self._registry.ready)

    async def server_metadata(self, request: Message, context: Context) -> Any:
        """Return the name of the server and its version."""
        made = tensors.message("inference.ServerMetadataResponse")
        return made(name="onepass", version=SERVER_VERSION)

    async def model_metadata(self, request: Message, context: Context) -> Any:
        """Return the inputs and outputs of a model's signature `serving_default`."""
        served = self._resolve_model(request.name, request.version)
        made = tensors.message("inference.ModelMetadataResponse")
        return made(**metadata_of(self._registry, served))

    async def model_infer(self, request: Message, context: Context) -> Any:
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
        return tensors.message("inference.ModelInferResponse")(
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
            raise errors.InvalidInput("The model's name must be given.")
        if version and (problem := version_problem(version)):
            raise errors.InvalidInput(f"A version {problem}.")
        return self._registry.get(name, int(version) if version else None)

    def _served(self, spec: Any) -> ServedModel:
        name, version = model_named(spec)
        return self._registry.get(name, version)

    async def list(self, request: Message, context: Context) -> Any:
        """Return all models that are ready, with their model.json."""
        response = tensors.message("onepass.ListResponse")()
        for name in self._registry.names():
            with contextlib.suppress(errors.ServingError):  # skips models that are still loading
                served = self._registry.get(name)
                facts = {"version": served.version, "kind": served.kind}
                response.models.add(name=name, spec_json=json.dumps(served.spec), **facts)
        return response

    async def speak(self, request: Message, context: Context) -> AsyncGenerator[Any, None]:
        """Yield responses with chunks of audio, whose samples are little-endian float32 bytes."""
        served = self._served(request.model_spec)
        rate_hz = served.speech_bundle.spec["sample_rate_hz"]
        fields, frames = _parse_request(served, request, self._settings.max_body_bytes)
        seconds = seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        _, chunks = synthesis(served, fields, frames, timeout_seconds=seconds)
        response = tensors.message("onepass.SpeakResponse")
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                samples = np.asarray(chunk, "<f4").tobytes()
                yield response(samples=samples, sample_rate_hz=rate_hz)


def _inputs(request: Message, known: dict[str, TensorInfo], limit_bytes: int) -> Arrays:
    raw = request.raw_input_contents
    if len(raw) and len(raw) != len(request.inputs):
        raise errors.InvalidInput(
            f"`raw_input_contents` must have one entry for each of the {len(request.inputs)} "
            f"inputs, got {len(raw)}."
        )
    arrays: Arrays = {}
    left = limit_bytes
    for index, tensor in enumerate(request.inputs):
        input_info(known, tensor.name)
        if tensor.name in arrays:
            raise errors.InvalidInput(f"`{tensor.name}` must be given once.")
        array = _array(tensor, raw[index] if len(raw) else None, left)
        left -= array.nbytes
        arrays[tensor.name] = array
    return arrays


def _array(tensor: Any, raw: bytes | None, limit_bytes: int) -> np.ndarray:
    dtype, shape = v2_dtype(tensor.name, tensor.datatype), tensor.shape
    count = checked_count(tensor.name, shape, dtype, limit_bytes)
    if raw is not None:
        if tensor.HasField("contents"):
            raise errors.InvalidInput(
                f"`{tensor.name}` must have raw bytes or `contents`, got both."
            )
        return from_bytes(tensor.name, raw, shape, dtype)
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise errors.InvalidInput(f"`{tensor.name}` of {tensor.datatype} must come as raw bytes.")
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise errors.InvalidInput(
            f"`{tensor.name}` must have {count} `{field}`, got {len(values)}."
        )
    try:
        return np.array(values, dtype).reshape(shape)
    except OverflowError:
        raise errors.InvalidInput(f"`{tensor.name}` has values beyond {tensor.datatype}.") from None


def _parse_request(
    served: ServedModel, request: Message, limit_bytes: int
) -> tuple[SynthesisFields, np.ndarray | None]:
    frames = None
    if request.HasField("frames") != is_conditional(served):
        rule = "be given" if is_conditional(served) else "not be given: the model is unconditional"
        raise errors.InvalidInput(f"`frames` must {rule}.")
    if request.num_samples < 0:
        raise errors.InvalidInput(f"`num_samples` must be at least 0, got {request.num_samples}.")
    if request.HasField("frames"):
        given = tensors.decode(request.frames, "frames", limit_bytes)[None]
        frames = check_input("frames", signature(served).inputs["frames"], given)[0]
        if not request.force:
            check_convention(served.spec, frames)
    fields = {
        "seed": request.seed,
        "row": request.row,
        "speaker": request.speaker or None,
        "temperature": request.temperature if request.HasField("temperature") else None,
        "seconds": request.num_samples / served.spec["sample_rate_hz"] or None,
    }
    return as_model(fields, SynthesisFields), frames


class Health(health_pb2_grpc.HealthServicer):
    """The methods `Check` and `Watch`; "" and gRPC services mean the server, others a model."""

    def __init__(self, registry: ModelRegistry, services: tuple[str, ...]):
        self._registry, self._services = registry, services

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - named by the protocol
        """Return the status of a service or model; raise NotFound for an unknown name."""
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            raise errors.NotFound("There is no such service or model.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:  # noqa: N802
        """Yield the status and each change to it until the client leaves or the server stops."""
        last_sent, stopping = None, False
        while not stopping:
            stopping = self._registry.draining  # read first, so that the last status is still sent
            status = self._status(request.service)
            if status != last_sent:
                yield health_pb2.HealthCheckResponse(status=status)
                last_sent = status
            await asyncio.sleep(0 if stopping else WATCH_SECONDS)

    def _status(self, name: str) -> int:
        if not name or name in self._services:
            return Status.SERVING if self._registry.ready else Status.NOT_SERVING
        try:
            self._registry.get(name)
        except errors.NotFound:
            return Status.SERVICE_UNKNOWN
        except errors.ServingError:
            return Status.NOT_SERVING
        return Status.SERVING if self._registry.ready else Status.NOT_SERVING


def make_server(registry: ModelRegistry, settings: Settings, metrics: Metrics) -> grpc.aio.Server:
    """Return a gRPC server in the running event loop, neither bound to a port nor started."""
    auth = TokenAuth(read_tokens(settings))
    interceptor = RequestInterceptor(settings, auth, metrics, lambda: registry.draining)
    server = grpc.aio.server(
        interceptors=(interceptor,), options=_options(settings), maximum_concurrent_rpcs=MAX_CALLS
    )
    services = Services(registry, settings)
    for name in SERVICES:
        server.add_generic_rpc_handlers((_handler(name, services),))
    named = (*SERVICES, HEALTH, reflection.SERVICE_NAME)
    health_pb2_grpc.add_HealthServicer_to_server(Health(registry, named), server)
    described = tensors.pool()
    for module in (health_pb2, reflection_pb2):
        described.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    reflection.enable_server_reflection(named, server, described)
    return server


def _handler(service: str, services: Services) -> grpc.GenericRpcHandler:
    handlers = {}
    for name in tensors.pool().FindServiceByName(service).methods_by_name:
        method = getattr(services, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        request, response, streams = tensors.method_types(service, name)
        kind = "stream" if streams else "unary"
        handler = getattr(grpc, f"unary_{kind}_rpc_method_handler")
        handlers[name] = handler(method, request.FromString, response.SerializeToString)
    return grpc.method_handlers_generic_handler(service, handlers)


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", settings.max_body_bytes),
        ("grpc.compression_enabled_algorithms_bitset", ONLY_IDENTITY),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        ("grpc.keepalive_time_ms", int(1000 * ALIVE_SECONDS)),
        ("grpc.keepalive_timeout_ms", int(1000 * ALIVE_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.ping_timeout_ms", int(1000 * ALIVE_SECONDS)),
        ("grpc.so_reuseport", 0),
    ]
