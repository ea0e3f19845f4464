"""The HTTP application: all routes of all protocols, behind the middleware."""

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.engine.registry import ModelRegistry
from serving.http.draw import DrawRoute
from serving.http.health import Health
from serving.http.middleware import RequestMiddleware
from serving.http.model_listing import ModelListing
from serving.http.openai_images import OpenaiImages
from serving.http.openai_speech import OpenaiSpeech
from serving.http.openapi import OpenApi
from serving.http.page import Page
from serving.http.speak import SpeakRoute
from serving.http.tensorflow_rest import TensorflowRest
from serving.http.v2 import V2
from serving.observability.metrics import Metrics
from serving.settings import Settings


class Routes:
    """An ASGI application that calls the endpoint of a path; errors are raised.

    The routes are searched in order, so the most requested come first.
    """

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics):
        parts = (
            V2(registry, settings),
            TensorflowRest(registry, settings),
            SpeakRoute(registry, settings),
            DrawRoute(registry, settings),
            OpenaiSpeech(registry, settings),
            OpenaiImages(registry, settings),
            ModelListing(registry),
            Health(registry, metrics),
            OpenApi(settings),
            Page(),
        )
        routes = [route for part in parts for route in part.routes()]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        scope["app"] = self
        await self._router(scope, receive, send)


def make_app(
    registry: ModelRegistry,
    settings: Settings,
    metrics: Metrics,
) -> ASGIApp:
    """Return the HTTP application for a model registry; raise UserError for an unusable token."""
    return RequestMiddleware(Routes(registry, settings, metrics), settings, metrics)
