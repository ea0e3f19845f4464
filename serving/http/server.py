"""The HTTP server: limits on heads, idle time and connections, and a graceful shutdown."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.http.accept_backlog import SETTLE_SECONDS, reject_new_connections

HEAD_BYTES = 64 * 1024
HEAD_FIELDS = 128
IDLE_SECONDS = 30.0  # without a whole head, without the next request, without taking an answer
LINGER_SECONDS = 2.0  # that a connection has for one more request, once the server stops
MAX_CONNECTIONS = 1024
TOO_MANY_CONNECTIONS = b'{"error": "There are too many connections."}'


class HeadTooLarge(Exception):  # noqa: N818 - the condition, as the errors of requests
    """More header fields than there may be; the parser answers it with 400."""


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded, which the parser's are not."""

    def __init__(self, *arguments: Any, **rest: Any):
        super().__init__(*arguments, **rest)
        self._in_head, self._head_bytes, self._fields = True, 0, 0
        self._messages = 0

    @property
    def is_answering(self) -> bool:
        """Whether an answer is being made."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def unsent_bytes(self) -> int:
        """Of answers that were made and that the client has not taken."""
        return self.transport.get_write_buffer_size()

    @property
    def progress(self) -> tuple[int, int]:
        """Requests so far and unsent bytes: what changes on a connection that is in use."""
        return self._messages, self.unsent_bytes

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; closes the connection over a head that does not end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head:
            self._head_bytes = 0
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header field; HeadTooLarge if there are too many."""
        self._fields += 1
        if self._fields > HEAD_FIELDS:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body begins."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next head begins."""
        self._in_head, self._head_bytes, self._fields = True, 0, 0
        self._messages += 1
        super().on_message_complete()


class GracefulShutdown:
    """The application; while `shutting_down`, every response asks the client to disconnect."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self.shutting_down = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""

        async def send_on(message: Message) -> None:
            if self.shutting_down and message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_on)


class ConnectionLimit:
    """The application, unless there are too many connections: then 503, with Retry-After.

    Args:
      connections: how many there are.
    """

    def __init__(self, app: ASGIApp, connections: Callable[[], int]):
        self._app, self._connections = app, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if self._connections() <= MAX_CONNECTIONS:
            await self._app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(TOO_MANY_CONNECTIONS)).encode()),
            (b"retry-after", b"1"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": TOO_MANY_CONNECTIONS})


class HttpServer(uvicorn.Server):
    """Uvicorn in an event loop of others: it handles no signals, and ends idle connections.

    Args:
      app: an ASGI application.
    """

    def __init__(self, app: ASGIApp):
        self._app = GracefulShutdown(
            ConnectionLimit(app, lambda: len(self.server_state.connections))
        )
        self._listeners: list[socket.socket] = []
        self._idle_since: dict[
            Any, tuple[tuple[int, int], float]
        ] = {}  # since when, of connections
        super().__init__(
            uvicorn.Config(
                self._app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_SECONDS),
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers what comes to the sockets until it is to stop."""
        self._listeners = sockets or []
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals as they are."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ends connections that have been idle for too long; whether to stop."""
        if counter % 10 == 0:
            self._close_idle(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def drain(self, seconds: float) -> bool:
        """Accepts no connection from now on, and ends; whether all requests were answered.

        A connection has LINGER_SECONDS for a request that is under way to it, and its answer then
        closes it. What is not answered after `seconds` is cut off.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._app.shutting_down = True
        for listener in self._listeners:
            reject_new_connections(listener)
        await asyncio.sleep(min(SETTLE_SECONDS, seconds))
        waiting = self._accept_backlog()
        for server in self.servers:
            server.close()
        for connection in waiting:
            await loop.connect_accepted_socket(self._protocol, connection)
        linger_end = min(end, loop.time() + LINGER_SECONDS)
        await asyncio.sleep(0.02)  # in which what was accepted becomes a connection
        while self.server_state.connections and loop.time() < linger_end:
            await asyncio.sleep(0.02)
        for connection in self._busy():
            connection.shutdown()  # after its answer
        while self._busy() and loop.time() < end:
            await asyncio.sleep(0.02)
        is_answered = not self._busy()
        self.config.timeout_graceful_shutdown = 1 if is_answered else 0
        self.should_exit = True
        return is_answered

    def _accept_backlog(self) -> list[socket.socket]:
        """Clients that the system has connected already; closing the listener would reset them."""
        found = []
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # there are no more, or no files for more
                while True:
                    found.append(listener.accept()[0])
        for connection in found:
            connection.setblocking(False)
        return found

    def _protocol(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    @property
    def _open(self) -> list[Any]:
        return list(self.server_state.connections)

    def _busy(self) -> list[Any]:
        return [c for c in self._open if c.is_answering or c.unsent_bytes]

    def _close_idle(self, now: float) -> None:
        idle_since = {}
        for connection in self._open:
            if not connection.is_answering:
                progress, since = self._idle_since.get(connection, (None, now))
                since = since if progress == connection.progress else now
                idle_since[connection] = (connection.progress, since)
        self._idle_since = idle_since
        for connection, (_, since) in idle_since.items():
            if now - since > IDLE_SECONDS and connection.unsent_bytes:
                connection.transport.abort()  # to close it is to wait until the client reads
            elif now - since > IDLE_SECONDS:
                connection.transport.close()
