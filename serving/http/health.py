"""Whether the server lives, whether it takes requests, and what it has counted."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from serving.engine.registry import ModelRegistry
from serving.errors import NotReady
from serving.http.responses import json_response
from serving.observability.metrics import Metrics


class Health:
    """The endpoints, over a model registry."""

    def __init__(self, registry: ModelRegistry, metrics: Metrics):
        self._registry, self._metrics = registry, metrics

    def routes(self) -> list[Route]:
        """Liveness, readiness, and metrics where TensorFlow Serving has them."""
        return [
            Route("/healthz", self.live),
            Route("/readyz", self.ready),
            Route("/monitoring/prometheus/metrics", self.metrics),
        ]

    async def live(self, request: Request) -> Response:
        """Liveness: 200; without a token too."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when requests are taken, 503 when not yet or no more."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        content, content_type = self._metrics.render()
        return Response(content, headers={"content-type": content_type})


class Probes(Health):
    """The same for an address that only probes reach: without a token, in HTTP's own words."""

    async def ready(self, request: Request) -> Response:
        """200 when requests are taken, 503 when not yet or no more."""
        is_ready = self._registry.ready
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    def app(self) -> ASGIApp:
        """The application that answers them, and nothing else."""
        return Router(self.routes())
