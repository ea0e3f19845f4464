"""Uvicorn, with its own limits on heads, idle connections and their number."""

import asyncio
import contextlib
from collections.abc import Iterator
from socket import socket

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 1024  # beyond that requests are answered 503 by uvicorn
HEAD_BYTES = 64 * 1024
IDLE_SECONDS = 30  # without the next request


class WholeBodies(H11Protocol):
    """HTTP/1.1 in which a client that sends no more in the middle of a body is told so."""

    def eof_received(self) -> None:
        """Answer 400 where a body is cut short; the connection ends in any case."""
        if (self.conn.their_state, self.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE):
            self.send_400_response("The connection ended before the body of the request did.")


class HttpServer(uvicorn.Server):
    """Uvicorn in the event loop of a caller, who handles the signals.

    h11 bounds the head of a request. What uvicorn does not bound, such as a head that comes slowly
    or an answer that is not read, is for the proxy in front.

    Args:
      app: an ASGI application.
      drain_seconds: for requests under way when the server stops.
    """

    def __init__(self, app: ASGIApp, drain_seconds: float = 1.0):
        self._app, self._under_way, self._cut_off = app, 0, 0
        self._serving: asyncio.Task | None = None
        super().__init__(
            uvicorn.Config(
                self._counted,
                interface="asgi3",
                http=WholeBodies,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=drain_seconds,  # type: ignore[arg-type] # also a float
            )
        )

    async def begin(self, listener: socket) -> None:
        """Return once requests that come to the listener are answered."""
        self._serving = asyncio.create_task(self.serve([listener]))
        while not self.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)

    async def drain(self) -> bool:
        """Accept no more connections; return whether all requests were answered in time."""
        self.should_exit = True
        if self._serving is not None:
            await self._serving
        return not (self._under_way or self._cut_off or self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals as they are."""
        yield

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._cut_off += 1
            raise
        finally:
            self._under_way -= 1
