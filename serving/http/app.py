"""The HTTP application: all routes of all protocols, behind the middleware."""

from starlette.routing import Router
from starlette.types import ASGIApp

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


def make_app(registry: ModelRegistry, settings: Settings, metrics: Metrics) -> ASGIApp:
    """Return the HTTP application for a model registry; raise UserError for an unusable token."""
    endpoints = (  # the most requested first, since routes are searched in order
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
    routes = [route for each in endpoints for route in each.routes()]
    return RequestMiddleware(Router(routes, redirect_slashes=False), settings, metrics)
