"""The HTTP application: the middleware, and the routes of all protocols, health and the page.

A page on a different site can make a browser call a server on the user's machine, either through a
host name that resolves to it (DNS rebinding) or through a form. `Host` reveals the former, `Origin`
the latter.
"""

import logging
import re
import time
from typing import Any

from pydantic import create_model
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onepass.bundles import errors
from serving import observability
from serving.engine.clients import TokenAuth, begin_client, read_tokens
from serving.engine.registry import ModelRegistry
from serving.http import routes
from serving.http.generation import DrawRoute, OpenaiImages, OpenaiSpeech, SpeakRoute
from serving.http.tensors import V2, ModelListing, TensorflowRest
from serving.observability import Metrics, begin_request, event
from serving.settings import Settings

HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
ADDRESS = "0123456789."  # no name has only these characters
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
BOTH_WAYS = ("inference-header-content-length", "x-request-id")
READ_HEADERS = (*BOTH_WAYS, "authorization", "content-type", "traceparent")
SENT_HEADERS = (*BOTH_WAYS, "retry-after", "x-note", "x-num-samples", "x-words")
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
DEFAULT_HEADERS = {
    b"content-security-policy": NOTHING.encode(),
    b"cache-control": b"no-store",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
RESPONSE = "onepass.response"  # a key in an ASGI scope
LOG = logging.getLogger(__name__)
PROTOCOLS = (V2, TensorflowRest, SpeakRoute, DrawRoute, OpenaiSpeech, OpenaiImages, ModelListing)
STATE = create_model("State", status=str)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def check_host(settings: Settings, method: str, headers: Headers) -> None:
    """Raise an error unless `Host` is the server's address, localhost or in the settings.

    A server that other machines can reach also accepts any numeric address, since DNS rebinding
    needs a name. Pages (`Origin`) on hosts in the settings, at the default port of their scheme,
    count as the server's own, whatever `Host` a proxy sends.
    """
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    match = HOST.fullmatch(host)
    if match is None:
        raise errors.InvalidInput("`Host` must name a host.")
    name, own = match["name"].strip("[]"), [each.lower() for each in settings.allowed_hosts]
    known = ("localhost", "127.0.0.1", "::1", settings.host.lower(), *own)
    is_address = ":" in name or set(name) <= set(ADDRESS)
    is_reached = is_address and not settings.is_loopback
    if not is_reached and name not in [each.strip("[]") for each in known]:
        message = "This host is not served; see `allowed_hosts`."
        raise routes.HttpError(421, "misdirected", message)
    if origin is None or method in SAFE_METHODS or origin in settings.allow_origin:
        return
    if origin.lower().partition("://")[2] not in (host, *own):
        raise errors.Forbidden(
            "Pages of other sites may not send requests. Behind a proxy, pass `Host` on or "
            "name the site in `allowed_hosts`; name another site in `allow_origin`."
        )


class ResponseRecorder:
    """Wraps an ASGI `send`, adds the default headers, and records status, code, bytes and time."""

    def __init__(self, send: Send, request_id: str):
        self._send, self._request_id = send, request_id.encode()
        self.status, self.code, self.sent_bytes = 0, "ok", 0
        self.first_byte_at: float | None = None

    async def send(self, message: Message) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            named = {name.lower(): value for name, value in message.get("headers", ())}
            headers = {**DEFAULT_HEADERS, **named, b"x-request-id": self._request_id}
            message = {**message, "headers": [*headers.items()]}
        else:
            self.sent_bytes += len(message.get("body", b""))
            self.first_byte_at = self.first_byte_at or time.perf_counter()
        await self._send(message)


class RequestMiddleware:
    """The ASGI application that wraps the routes.

    It checks the host, the encoding and the token, in this order; the endpoint reads the body. A
    browser's question before a request (preflight), which has no token, is answered after the host.
    Errors are in the format of the path's protocol; unexpected ones get 500 and reveal no details.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics):
        self._app, self._metrics, self._auth = app, metrics, TokenAuth(read_tokens(settings))
        self._settings = settings
        self._body_limits = routes.BodyLimits(settings.max_body_bytes, settings.timeout_seconds)
        self._answer: ASGIApp = self._admit
        if origins := settings.allow_origin:
            methods = ("GET", "HEAD", "POST")
            self._answer = CORSMiddleware(
                self._admit, origins, methods, READ_HEADERS, expose_headers=SENT_HEADERS
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; close any WebSocket."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1003})
        started, headers = time.perf_counter(), Headers(scope=scope)
        response = ResponseRecorder(send, begin_request(headers.get("x-request-id")))
        # With an "app", Starlette's router raises errors instead of answering them.
        kept = {routes.LIMITS: self._body_limits, routes.RECEIVED: 0, RESPONSE: response}
        scope.update({"app": self, **kept})
        try:
            check_host(self._settings, scope["method"], headers)
            await self._answer(scope, receive, response.send)
        except errors.ServingError as error:
            await _refuse(error, scope, receive, response.send)
        finally:
            self._record(scope, response, started)
            self._body_limits.used -= scope[routes.RECEIVED]

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            with observability.span("http", headers, method=scope["method"]):
                if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
                    message = "The body must not be compressed (`Content-Encoding`)."
                    raise routes.HttpError(415, "unsupported_encoding", message)
                authorization = headers.get("authorization", "").encode("latin-1")
                begin_client(_address(scope), self._auth.check(scope["path"], authorization))
                await self._app(scope, receive, send)
        except Exception as error:
            await _refuse(error, scope, receive, send)

    def _record(self, scope: Scope, response: ResponseRecorder, started: float) -> None:
        path, first = scope["path"], response.first_byte_at
        seconds = time.perf_counter() - started
        self._metrics.request(
            scope.get("path_params", {}).get("name"),
            routes.protocol_of(path),
            response.code,
            seconds,
            first_byte_seconds=None if first is None else first - started,
            received_bytes=scope[routes.RECEIVED],
            sent_bytes=response.sent_bytes,
        )
        outcome: dict[str, Any] = {"status": response.status, "code": response.code}
        outcome |= {"seconds": seconds, "client": _address(scope)}
        event(LOG, f"{scope['method']} {path}", **outcome)


def _address(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


async def _refuse(raised: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with an error, unless the response has begun: uvicorn closes its connection."""
    headers: dict[str, str] = {}
    if isinstance(raised, HTTPException) and raised.status_code == 405:
        allowed = ", ".join(sorted((raised.headers or {}).get("Allow", "GET, HEAD").split(", ")))
        headers = {"allow": allowed}
        raised = routes.HttpError(405, "method_not_allowed", f"This path accepts only {allowed}.")
    elif isinstance(raised, HTTPException):
        raised = errors.NotFound("This path does not exist.")
    elif not isinstance(raised, errors.ServingError):
        LOG.error("a request failed", exc_info=raised)
        is_full = isinstance(raised, MemoryError)
        full = errors.Overloaded("There is not enough memory for this request.")
        raised = full if is_full else errors.Internal("The server failed; see its log.")
    response: ResponseRecorder = scope[RESPONSE]
    response.code = raised.code
    if raised.http_status == 401:
        headers["www-authenticate"] = 'Bearer realm="onepass"'
    if not response.status:
        answer = routes.error_response(raised, scope["path"], headers)
        answer.body = b"" if scope["method"] == "HEAD" else answer.body
        await answer(scope, receive, send)


class Health(routes.Endpoints):
    """The endpoints for health and metrics."""

    def __init__(self, registry: ModelRegistry, metrics: Metrics):
        self._registry, self._metrics = registry, metrics

    @routes.get("/healthz", STATE)
    async def live(self, request: Request) -> Response:
        """Answer 200; needs no token."""
        return routes.json_response({"status": "ok"})

    @routes.get("/readyz", STATE)
    async def ready(self, request: Request) -> Response:
        """Answer 200 if requests are accepted, 503 otherwise."""
        if not self._registry.ready:
            raise errors.NotReady("The server is not ready.")
        return routes.json_response({"status": "ready"})

    @routes.get("/monitoring/prometheus/metrics", {"text/plain": str})
    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's format."""
        content, content_type = self._metrics.render()
        return Response(content, headers={"content-type": content_type})


class Page(StaticFiles, routes.Endpoints):
    """The page at `/`, and its files under `/page/`."""

    def __init__(self) -> None:
        super().__init__(packages=[("serving", "page")])

    @routes.get("/", {"text/html": str})
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
    made: list[BaseRoute] = [route for each in endpoints for route in each.routes()]
    made += [Mount("/page", page), *routes.OpenApi(settings, made).routes()]
    return RequestMiddleware(Router(made, redirect_slashes=False), settings, metrics)


def make_probes(registry: ModelRegistry, metrics: Metrics) -> ASGIApp:
    """Return an application that serves only health and metrics, without a token."""
    handlers: Any = {
        errors.NotReady: lambda request, error: routes.error_response(error, request.url.path)
    }
    return ExceptionMiddleware(Router(Health(registry, metrics).routes()), handlers)
