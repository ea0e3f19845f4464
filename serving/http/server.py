"""Uvicorn with strict parsing, and limits on heads, idle connections and concurrent requests."""

import asyncio
import collections
import contextlib
import functools
from socket import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.engine.clients import ClientSlots, client_of_address

HEAD_BYTES = 64 * 1024
MAX_REQUESTS = 1024  # requests in progress; further ones get status 503
MAX_IDLE = 1024  # idle connections
IDLE_SECONDS = 30.0  # time until a connection's first request, and between two requests


class StrictConnection(h11.Connection):
    """An h11 connection that also rejects large heads that arrive at once, and ambiguous lengths.

    A proxy in front of the server may interpret a request with both Content-Length and
    Transfer-Encoding differently, so its body may smuggle in a second request: RFC 9112 (6.1)
    requires closing the connection.
    """

    def next_event(self) -> Any:
        """Return the next event; raise RemoteProtocolError if the request's head is rejected."""
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request):
            if before - len(self.trailing_data[0]) > HEAD_BYTES:
                raise h11.RemoteProtocolError("The head is too large.", error_status_hint=431)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("The body has two lengths.")
        return event


class IdleConnections(dict["Connection", str]):
    """The clients of connections without a request, `most` at most, each idle for `seconds`.

    If there are more, the client with the most idle connections loses the one idle for longest.
    """

    def __init__(self, most: int, seconds: float):
        super().__init__()
        self.most, self.seconds = most, seconds

    def add(self, connection: "Connection", client: str) -> None:
        """Add an idle connection; if there are now too many, close one."""
        self[connection] = client
        if len(self) > self.most:
            ((crowd, _),) = collections.Counter(self.values()).most_common(1)
            longest = next(each for each, of in self.items() if of == crowd)
            del self[longest]
            longest.transport.abort()


class Connection(H11Protocol):
    """A connection that is closed unless a request's whole head arrives within the idle time.

    The time starts when the connection is made, and again at the end of each response; only the
    last byte of a head stops it. A client that closes its side before the end of a body gets an
    error response.
    """

    def __init__(self, *arguments: Any, idle: IdleConnections, **more: Any):
        super().__init__(*arguments, **more)
        self.conn = StrictConnection(h11.SERVER, HEAD_BYTES)
        self._idle, self._unsent = idle, 0
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._note_state(is_idle=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the idle ones."""
        super().connection_lost(exc)
        self._note_state(is_idle=False)

    def data_received(self, data: bytes) -> None:
        """Process received data; if they complete a head, the connection is no longer idle."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._note_state(is_idle=False)

    def on_response_complete(self) -> None:
        """Start waiting for the next request, unless it has already arrived."""
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._note_state(is_idle=True)

    def eof_received(self) -> None:
        """Answer 400 if the client closed its side before the end of a body."""
        if (self.conn.their_state, self.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE):
            self.send_400_response("The connection ended before the body of the request did.")

    def _note_state(self, is_idle: bool) -> None:
        self._idle.pop(self, None)
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if is_idle:
            self._unsent = self.transport.get_write_buffer_size()
            self._end = self.loop.call_later(self._idle.seconds, self._time_is_over)
            self._idle.add(self, client_of_address(self.client[0] if self.client else ""))

    def _time_is_over(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._note_state(is_idle=True)
        else:
            self.transport.abort()


class HttpServer(uvicorn.Server):
    """Uvicorn in the caller's event loop; the caller handles signals.

    Connections without a request are limited separately, so they cannot keep requests from being
    answered. The application or the reverse proxy must handle clients that do not read responses.
    """

    def __init__(self, app: ASGIApp, drain_seconds: float = 1.0):
        self._app, self._in_progress, self._cut_off = app, ClientSlots(MAX_REQUESTS), 0
        self.idle = IdleConnections(MAX_IDLE, IDLE_SECONDS)
        self._serving: asyncio.Task | None = None
        super().__init__(
            uvicorn.Config(
                self._count_request,
                interface="asgi3",
                http=functools.partial(Connection, idle=self.idle),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_keep_alive=IDLE_SECONDS,  # type: ignore[arg-type] # also a float
                timeout_graceful_shutdown=drain_seconds,  # type: ignore[arg-type] # also a float
            )
        )

    async def start(self, listener: socket) -> None:
        """Start serving; return once the server accepts requests."""
        self._serving = asyncio.create_task(self.serve([listener]))
        while not self.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)

    async def drain(self) -> bool:
        """Stop accepting connections; return whether all requests were answered in time."""
        self.should_exit = True
        if self._serving is not None:
            await self._serving
        return not (self._in_progress.taken or self._cut_off or self.server_state.connections)

    def capture_signals(self) -> Any:
        """Capture none, so the caller's signal handlers remain."""
        return contextlib.nullcontext()

    async def _count_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of_address((scope.get("client") or ("",))[0])
        if not self._in_progress.has_one_for(client):
            return await service_unavailable(scope, receive, send)  # type: ignore[arg-type]
        self._in_progress.take(client)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._cut_off += 1
            raise
        finally:
            self._in_progress.leave(client)
