"""Uvicorn with limits on heads, idle connections and concurrent requests."""

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from socket import socket

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable

from serving.engine.fair_shares import ClientSlots, client_of_address
from serving.http.connection import HEAD_BYTES, Connection, IdleConnections

MAX_REQUESTS = 1024  # requests in progress; further ones get status 503
MAX_IDLE = 1024  # idle connections
IDLE_SECONDS = 30.0  # time until a connection's first request, and between two requests


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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, so the caller's signal handlers remain."""
        yield

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
