"""Middleware for all HTTP requests: host, token and size checks, headers, errors, logs, metrics.

A page on a different site can make a browser call a server on the user's machine, either through a
host name that resolves to it (DNS rebinding) or through a form. `Host` reveals the former, `Origin`
the latter.
"""

import ipaddress
import logging
import math
import re
import time

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onepass.bundles.errors import (
    Forbidden,
    Internal,
    InvalidInput,
    NotFound,
    Overloaded,
    ServingError,
)
from serving import observability
from serving.engine.auth import TokenAuth, read_tokens
from serving.engine.fair_shares import begin_client
from serving.http.request_bodies import LIMITS, RECEIVED, BodyLimits
from serving.http.responses import error_body, protocol_of
from serving.observability import Metrics, begin_request, event
from serving.settings import Settings

HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PREFLIGHT_SECONDS = 600  # for which a browser remembers the answer
READ_HEADERS = "authorization, content-type, inference-header-content-length, traceparent, "
READ_HEADERS += "x-request-id"
SENT_HEADERS = "inference-header-content-length, retry-after, x-note, x-num-samples, "
SENT_HEADERS += "x-request-id"
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
LOG = logging.getLogger(__name__)


class Misdirected(ServingError):  # noqa: N818 - named as the other errors
    """Error for a request with a `Host` that is not served."""

    http_status, grpc_status, code = 421, "PERMISSION_DENIED", "misdirected"


class AllowedHosts:
    """The hosts that are served: the server's address, localhost, and hosts in the settings.

    A server that other machines can reach also accepts any numeric address, since DNS rebinding
    needs a name. Pages on hosts in the settings, at the default port of their scheme, count as the
    server's own, whatever `Host` a proxy sends.
    """

    def __init__(self, settings: Settings):
        named = ("localhost", "127.0.0.1", "::1", settings.host, *settings.allowed_hosts)
        self._names = {name.strip("[]").lower() for name in named}
        self._own_sites = {name.lower() for name in settings.allowed_hosts}
        self._origins = settings.allow_origin
        self._any_address = not settings.is_loopback

    def check(self, method: str, headers: dict[bytes, bytes]) -> None:
        """Check the headers `Host` and `Origin` of a request."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        match = HOST.fullmatch(host)
        if match is None:
            raise InvalidInput("`Host` must name a host.")
        name = match["name"].strip("[]")
        if name not in self._names and not (self._any_address and _is_address(name)):
            raise Misdirected("This host is not served; see `allowed_hosts`.")
        origin = headers.get(b"origin")
        if origin is not None and method not in SAFE_METHODS:
            sender = origin.decode("latin-1").lower().partition("://")[2]
            if sender in (host, *self._own_sites) or origin.decode("latin-1") in self._origins:
                return
            raise Forbidden(
                "Pages of other sites may not send requests. Behind a proxy, pass `Host` on or "
                "name the site in `allowed_hosts`; name another site in `allow_origin`."
            )


class AllowedOrigins:
    """The headers that let pages of the origins in the settings read answers (CORS).

    An origin is sent back only if it is exactly one of them. Browsers are never asked to send
    credentials of their own: a page has the token, if there is one, and sends it itself.
    """

    def __init__(self, settings: Settings):
        self._origins = {origin.encode() for origin in settings.allow_origin}

    def headers(self, request: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the headers of every answer to a request with these headers."""
        if not self._origins:
            return {}
        found = {b"vary": b"origin"}
        if request.get(b"origin") in self._origins:
            found[b"access-control-allow-origin"] = request[b"origin"]
            found[b"access-control-expose-headers"] = SENT_HEADERS.encode()
        return found

    def preflight(self, method: str, request: dict[bytes, bytes]) -> Response | None:
        """Return the answer to an allowed origin's question before its request, else None."""
        asks = method == "OPTIONS" and b"access-control-request-method" in request
        if not asks or request.get(b"origin") not in self._origins:
            return None
        named = {
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": READ_HEADERS,
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        }
        return Response(None, 204, named)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class UnsupportedEncoding(ServingError):  # noqa: N818 - named as the other errors
    """Error for a compressed body, whose size is unknown before it is decompressed."""

    http_status, grpc_status, code = 415, "INVALID_ARGUMENT", "unsupported_encoding"


class WrongMethod(ServingError):  # noqa: N818
    """Error for a path that exists only for other methods."""

    http_status, grpc_status, code = 405, "UNIMPLEMENTED", "method_not_allowed"

    def __init__(self, allowed: str):
        super().__init__(f"This path accepts only {allowed}.")
        self.allowed = allowed


class ResponseRecorder:
    """Wraps an ASGI `send`, adds the default headers, and records status, code, bytes and time."""

    def __init__(self, send: Send, request_id: str, more: dict[bytes, bytes]):
        self._send = send
        self._more = [*more.items(), (b"x-request-id", request_id.encode())]
        self.status, self.code, self.sent_bytes = 0, "ok", 0
        self.first_byte_at: float | None = None

    async def send(self, message: Message) -> None:
        """Send an ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            there = {name for name, _ in headers}
            headers += [pair for pair in DEFAULT_HEADERS.items() if pair[0] not in there]
            message = {**message, "headers": [*headers, *self._more]}
        else:
            self.sent_bytes += len(message.get("body", b""))
            self.first_byte_at = self.first_byte_at or time.perf_counter()
        await self._send(message)


class RequestMiddleware:
    """The ASGI application that wraps the routes.

    It checks the host, the encoding and the token, in this order; the endpoint reads the body. A
    browser's question before a request (preflight), which has no token, is answered after the host.
    Errors are answered in the format of the path's protocol; unexpected errors get status 500 and
    reveal no details.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics):
        self._app, self._metrics, self._auth = app, metrics, TokenAuth(read_tokens(settings))
        self._allowed_hosts, self._origins = AllowedHosts(settings), AllowedOrigins(settings)
        self._body_limits = BodyLimits(settings.max_body_bytes, settings.timeout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; close any WebSocket."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1003})
        started = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = begin_request(headers.get(b"x-request-id", b"").decode("latin-1"))
        response = ResponseRecorder(send, request_id, self._origins.headers(headers))
        # With an "app", Starlette's router raises errors instead of answering them.
        scope.update({"app": self, LIMITS: self._body_limits, RECEIVED: 0})
        try:
            parent = {"traceparent": headers.get(b"traceparent", b"").decode("latin-1")}
            with observability.span("http", parent, method=scope["method"]):
                self._allowed_hosts.check(scope["method"], headers)
                answer = self._origins.preflight(scope["method"], headers)
                if answer is None:
                    self._admit(scope, headers)
                await (answer or self._app)(scope, receive, response.send)
        except Exception as raised:
            error = _error_of(raised)
            response.code = error.code
            if not response.status:  # else uvicorn closes the connection of the incomplete response
                await _error_response(error, scope)(scope, receive, response.send)
        finally:
            self._record(scope, response, started)
            self._body_limits.used -= scope[RECEIVED]

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            raise UnsupportedEncoding("The body must not be compressed (`Content-Encoding`).")
        token = self._auth.check(scope["path"], headers.get(b"authorization", b""))
        begin_client(_address(scope), token)

    def _record(self, scope: Scope, response: ResponseRecorder, started: float) -> None:
        path, first = scope["path"], response.first_byte_at
        seconds = time.perf_counter() - started
        self._metrics.request(
            scope.get("path_params", {}).get("name"),
            protocol_of(path),
            response.code,
            seconds,
            first_byte_seconds=None if first is None else first - started,
            received_bytes=scope[RECEIVED],
            sent_bytes=response.sent_bytes,
        )
        event(
            LOG,
            f"{scope['method']} {path}",
            status=response.status,
            code=response.code,
            seconds=seconds,
            client=_address(scope),
        )


def _address(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


def _error_of(raised: Exception) -> ServingError:
    if isinstance(raised, ServingError):
        return raised
    if isinstance(raised, HTTPException):
        if raised.status_code == 405:
            allowed = (raised.headers or {}).get("Allow", "GET, HEAD")
            return WrongMethod(", ".join(sorted(allowed.split(", "))))
        return NotFound("This path does not exist.")
    LOG.error("a request failed", exc_info=raised)
    if isinstance(raised, MemoryError):
        return Overloaded("There is not enough memory for this request.")
    return Internal("The server failed; see its log.")


def _error_response(error: ServingError, scope: Scope) -> Response:
    content = error_body(scope["path"], error.http_status, str(error), error.code)
    named = {"content-type": "application/json", "content-length": str(len(content))}
    if error.retry_after_seconds is not None:
        named["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds)))
    if error.http_status == 401:
        named["www-authenticate"] = 'Bearer realm="onepass"'
    if isinstance(error, WrongMethod):
        named["allow"] = error.allowed
    return Response(b"" if scope["method"] == "HEAD" else content, error.http_status, named)
