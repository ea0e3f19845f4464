"""The gRPC server, for the protocols of TensorFlow Serving, v2 inference, health and onepass."""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from onepass.bundles.errors import NotFound, ServingError
from serving.engine.auth import TokenAuth, read_tokens
from serving.engine.registry import ModelRegistry
from serving.grpc.inference import Inference
from serving.grpc.interceptor import RequestInterceptor
from serving.grpc.prediction import Models, Prediction
from serving.grpc.speech import Speech
from serving.grpc.tensors import method_types, pool
from serving.observability import Metrics
from serving.settings import Settings

POLL_SECONDS = 0.25
Status = health_pb2.HealthCheckResponse.ServingStatus


class Health(health_pb2_grpc.HealthServicer):
    """The methods `Check` and `Watch`; "" and gRPC services mean the server, others a model."""

    def __init__(self, registry: ModelRegistry, services: tuple[str, ...]):
        self._registry, self._services = registry, services

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - named by the protocol
        """Return the status of a service or model; raise NotFound for an unknown name."""
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            raise NotFound("There is no such service or model.")
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
            await asyncio.sleep(0 if stopping else POLL_SECONDS)

    def _status(self, name: str) -> int:
        if not name or name in self._services:
            return Status.SERVING if self._registry.ready else Status.NOT_SERVING
        try:
            self._registry.get(name)
        except NotFound:
            return Status.SERVICE_UNKNOWN
        except ServingError:
            return Status.NOT_SERVING
        return Status.SERVING if self._registry.ready else Status.NOT_SERVING


HEALTH = "grpc.health.v1.Health"
MAX_CONNECTIONS = 1024
MAX_CALLS = 256  # largest number of concurrent calls, each with a message up to the size limit
MAX_CALLS_PER_CONNECTION = 64  # further calls wait in the client
MAX_METADATA_BYTES = 16 * 1024
IDLE_SECONDS = 120  # a connection without calls is closed after this time
HANDSHAKE_SECONDS = 10
ALIVE_SECONDS = 30.0  # between two pings of a client, and for its answer
ONLY_IDENTITY = 1  # a compressed message could expand without limit


def make_server(registry: ModelRegistry, settings: Settings, metrics: Metrics) -> grpc.aio.Server:
    """Return a gRPC server in the running event loop, neither bound to a port nor started."""
    auth = TokenAuth(read_tokens(settings))
    interceptor = RequestInterceptor(settings, auth, metrics, lambda: registry.draining)
    server = grpc.aio.server(
        interceptors=(interceptor,), options=_options(settings), maximum_concurrent_rpcs=MAX_CALLS
    )
    services = {
        "tensorflow.serving.PredictionService": Prediction(registry, settings),
        "tensorflow.serving.ModelService": Models(registry),
        "inference.GRPCInferenceService": Inference(registry, settings),
        "onepass.Models": Speech(registry, settings),
    }
    for name, servicer in services.items():
        server.add_generic_rpc_handlers((_handler(name, servicer),))
    named = (*services, HEALTH, reflection.SERVICE_NAME)
    health_pb2_grpc.add_HealthServicer_to_server(Health(registry, named), server)
    described = pool()
    for module in (health_pb2, reflection_pb2):
        described.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    reflection.enable_server_reflection(named, server, described)
    return server


def _handler(service: str, servicer: Any) -> grpc.GenericRpcHandler:
    handlers = {}
    for name in pool().FindServiceByName(service).methods_by_name:
        method = getattr(servicer, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        request, response, streams = method_types(service, name)
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
