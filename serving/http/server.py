"""Uvicorn with limits on heads, idle connections and the number of connections."""

import asyncio
import contextlib
from collections.abc import Iterator
from socket import socket

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 1024  # uvicorn answers further requests 503
HEAD_BYTES = 64 * 1024
IDLE_SECONDS = 30  # between two requests of a connection


class WholeBodies(H11Protocol):
    """HTTP/1.1 that answers a client which stops sending in the middle of a body."""

    def eof_received(self) -> None:
        """Answer 400 where a body is cut short; the connection ends in any case."""
        if (self.conn.their_state, self.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE):
            self.send_400_response("The connection ended before the body of the request did.")


class HttpServer(uvicorn.Server):
    """Uvicorn in the event loop of a caller, who handles the signals.

    h11 limits the size of a request's head. Limits that uvicorn lacks, such as on a slow head or a
    response that is not read, are the reverse proxy's.
    """

    def __init__(self, app: ASGIApp, drain_seconds: float = 1.0):
        self._app, self._in_progress, self._cut_off = app, 0, 0
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

    async def start(self, listener: socket) -> None:
        """Start serving; return once requests are answered."""
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
        return not (self._in_progress or self._cut_off or self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals as they are."""
        yield

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_progress += 1
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._cut_off += 1
            raise
        finally:
            self._in_progress -= 1
