"""The gRPC health protocol: current states of the server, its services and all models."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from serving.engine.registry import ModelRegistry
from serving.errors import NotFound, ServingError

POLL_SECONDS = 0.25
Status = health_pb2.HealthCheckResponse.ServingStatus


class Health:
    """The methods `Check` and `Watch`, answered from the model registry.

    "" and the names of the services mean the server; any other name is a model's.
    """

    def __init__(self, registry: ModelRegistry, services: tuple[str, ...]):
        self._registry, self._services = registry, services

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the methods."""
        request, response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        types = (request.FromString, response.SerializeToString)
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check, *types),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, *types),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    async def check(self, request, context) -> Any:
        """Return the state of a service or model; raise NotFound for an unknown name."""
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            raise NotFound("There is no such service or model.")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, request, context) -> AsyncGenerator[Any, None]:
        """Yield the state and each change of it, until the client leaves or the server stops."""
        last_sent, stopping = None, False
        while not stopping:
            stopping = self._registry.draining  # read before the state, which is sent a last time
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
