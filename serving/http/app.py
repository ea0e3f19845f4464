"""The HTTP application: all routes of all protocols and the web page, behind the middleware."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from serving.engine.registry import ModelRegistry
from serving.http.draw import DrawRoute
from serving.http.health import Health
from serving.http.middleware import RequestMiddleware
from serving.http.model_listing import ModelListing
from serving.http.openai_images import OpenaiImages
from serving.http.openai_speech import OpenaiSpeech
from serving.http.openapi import OpenApi
from serving.http.operations import Endpoints, get
from serving.http.speak import SpeakRoute
from serving.http.tensorflow_rest import TensorflowRest
from serving.http.v2 import V2
from serving.observability.metrics import Metrics
from serving.settings import Settings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Page(StaticFiles, Endpoints):
    """The page at `/`, and its files under `/page/`."""

    def __init__(self) -> None:
        super().__init__(packages=[("serving", "page")])

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the page and of its files."""
        return [*super().routes(), Mount("/page", self)]

    @get("/", {"text/html": str})
    async def front(self, request: Request) -> Response:
        """Return the page."""
        return await self.get_response("index.html", request.scope)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return one of its files."""
        response = await super().get_response(path, scope)
        response.headers["content-security-policy"] = POLICY
        response.headers["cache-control"] = "no-cache"
        return response


def make_app(registry: ModelRegistry, settings: Settings, metrics: Metrics) -> ASGIApp:
    """Return the HTTP application for a model registry; raise UserError for an unusable token."""
    kinds = (V2, TensorflowRest, SpeakRoute, DrawRoute, OpenaiSpeech, OpenaiImages, ModelListing)
    endpoints: list[Endpoints] = [kind(registry, settings) for kind in kinds]
    endpoints += [Health(registry, metrics), Page()]
    described = OpenApi(settings, [found for each in endpoints for found in each.operations()])
    routes = [route for each in (*endpoints, described) for route in each.routes()]
    return RequestMiddleware(Router(routes, redirect_slashes=False), settings, metrics)
