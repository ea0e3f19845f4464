"""The gRPC health protocol: the current status of the server, its services and all models."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from onepass.bundles.errors import NotFound, ServingError
from serving.engine.registry import ModelRegistry

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
