"""Liveness, readiness and metrics of the server."""

from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp

from serving.engine.registry import ModelRegistry
from serving.errors import NotReady
from serving.http.operations import Endpoints, get
from serving.http.responses import json_response
from serving.observability.metrics import Metrics


class State(TypedDict):
    """Liveness or readiness of the server."""

    status: str


class Health(Endpoints):
    """The endpoints for health and metrics."""

    def __init__(self, registry: ModelRegistry, metrics: Metrics):
        self._registry, self._metrics = registry, metrics

    @get("/healthz", State)
    async def live(self, request: Request) -> Response:
        """Answer 200; needs no token."""
        return json_response({"status": "ok"})

    @get("/readyz", State)
    async def ready(self, request: Request) -> Response:
        """Answer 200 if requests are accepted, 503 otherwise."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return json_response({"status": "ready"})

    @get("/monitoring/prometheus/metrics", {"text/plain": str})
    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' format."""
        content, content_type = self._metrics.render()
        return Response(content, headers={"content-type": content_type})


class Probes(Health):
    """The same endpoints for a port of their own, without a token."""

    @get("/readyz")
    async def ready(self, request: Request) -> Response:
        """Answer 200 if requests are accepted, 503 otherwise."""
        is_ready = self._registry.ready
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    def app(self) -> ASGIApp:
        """Return an application that serves these endpoints alone."""
        return Router(self.routes())
