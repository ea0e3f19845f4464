"""The HTTP application: the middleware, and the routes of all protocols, health and the page."""

from typing import Any

from pydantic import create_model
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from onepass.bundles.errors import NotReady
from serving.engine.registry import ModelRegistry
from serving.http.draw import DrawRoute
from serving.http.middleware import RequestMiddleware
from serving.http.model_listing import ModelListing
from serving.http.openai import OpenaiImages, OpenaiSpeech
from serving.http.operations import Endpoints, OpenApi, get
from serving.http.responses import error_response, json_response
from serving.http.speak import SpeakRoute
from serving.http.tensorflow_rest import TensorflowRest
from serving.http.v2 import V2
from serving.observability import Metrics
from serving.settings import Settings

PROTOCOLS = (V2, TensorflowRest, SpeakRoute, DrawRoute, OpenaiSpeech, OpenaiImages, ModelListing)
STATE = create_model("State", status=str)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Health(Endpoints):
    """The endpoints for health and metrics."""

    def __init__(self, registry: ModelRegistry, metrics: Metrics):
        self._registry, self._metrics = registry, metrics

    @get("/healthz", STATE)
    async def live(self, request: Request) -> Response:
        """Answer 200; needs no token."""
        return json_response({"status": "ok"})

    @get("/readyz", STATE)
    async def ready(self, request: Request) -> Response:
        """Answer 200 if requests are accepted, 503 otherwise."""
        if not self._registry.ready:
            raise NotReady("The server is not ready.")
        return json_response({"status": "ready"})

    @get("/monitoring/prometheus/metrics", {"text/plain": str})
    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's format."""
        content, content_type = self._metrics.render()
        return Response(content, headers={"content-type": content_type})


class Page(StaticFiles, Endpoints):
    """The page at `/`, and its files under `/page/`."""

    def __init__(self) -> None:
        super().__init__(packages=[("serving", "page")])

    @get("/", {"text/html": str})
    async def front(self, request: Request) -> Response:
        """Return the page."""
        return await self.get_response("index.html", request.scope)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a response with one of the page's files."""
        response = await super().get_response(path, scope)
        response.headers.update({"content-security-policy": POLICY, "cache-control": "no-cache"})
        return response


def make_app(registry: ModelRegistry, settings: Settings, metrics: Metrics) -> ASGIApp:
    """Return the HTTP application for a model registry; raise UserError for an invalid token."""
    page, protocols = Page(), [kind(registry, settings) for kind in PROTOCOLS]
    endpoints: Any = (*protocols, Health(registry, metrics), page)
    routes: list[BaseRoute] = [route for each in endpoints for route in each.routes()]
    routes += [Mount("/page", page), *OpenApi(settings, routes).routes()]
    return RequestMiddleware(Router(routes, redirect_slashes=False), settings, metrics)


def make_probes(registry: ModelRegistry, metrics: Metrics) -> ASGIApp:
    """Return an application that serves only health and metrics, without a token."""
    handlers: Any = {NotReady: lambda request, error: error_response(error, request.url.path)}
    return ExceptionMiddleware(Router(Health(registry, metrics).routes()), handlers)
