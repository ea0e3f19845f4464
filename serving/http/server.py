"""The HTTP server: limits on heads, idle time and connections, and a graceful shutdown."""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Container, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr

from serving.engine.admission import MAX_CONNECTIONS
from serving.engine.clients import Client, network_of
from serving.engine.shared_limits import Hold, SharedLimit
from serving.errors import Overloaded
from serving.http.accept_backlog import SETTLE_SECONDS, reject_new_connections
from serving.http.middleware import CONNECTION_HOLD, Headers, RewrittenHeaders
from serving.http.tls import TlsConnection

HEAD_BYTES = 64 * 1024
HEAD_FIELDS = 128
IDLE_SECONDS = 30.0  # without a whole head, without the next request, without taking an answer
LINGER_SECONDS = 2.0  # that a connection has for one more request, once the server stops
ACCEPTED_AT_ONCE, BACKLOG = 32, 2048
STILL_AT_WORK = b"HTTP/1.1 100 Continue\r\n\r\n"


class HeadTooLarge(Exception):  # noqa: N818 - the condition, as the errors of requests
    """More header fields than there may be; the parser answers it with 400."""


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded, which the parser's are not.

    It has a place, of `limit`, and loses it to others while the server waits for its client. One
    without a place, but of `spare`, is answered 503, see `RequestMiddleware`. Those of `proxies`,
    which bring the requests of many, may have all places.
    """

    def __init__(
        self,
        *arguments: Any,
        limit: SharedLimit,
        spare: SharedLimit,
        proxies: Container[str],
        **rest: Any,
    ):
        super().__init__(*arguments, **rest)
        self._limit, self._spare, self._proxies = limit, spare, proxies
        self._socket: Any = None  # its transport, below that of TLS if there is TLS
        self._hold: Hold | None = None  # its place
        self._spare_hold: Hold | None = None  # instead of one
        self._in_head, self._head_bytes, self._fields = True, 0, 0
        self._messages = 0
        self._is_half_closed = False

    @property
    def is_answering(self) -> bool:
        """Whether an answer is being made."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def unsent_bytes(self) -> int:
        """Of answers that were made and that the client has not taken."""
        transports = {self._socket, self.transport}
        return sum(transport.get_write_buffer_size() for transport in transports)

    @property
    def progress(self) -> tuple[int, int]:
        """Requests so far and unsent bytes: what changes on a connection that is in use."""
        return self._messages, self.unsent_bytes

    def take_place(self, socket: Any) -> None:
        """Takes a place, or a spare one, for who is at the other end."""
        self._socket, self.client = socket, get_remote_addr(socket)
        self._hold = self._held(self._limit)
        if self._hold is None:
            self._spare_hold = self._held(self._spare)
            if self._spare_hold is None:
                socket.abort()

    def give_place(self) -> None:
        """Gives it back."""
        if self._hold is not None:
            self._limit.release(self._hold)
        if self._spare_hold is not None:
            self._spare.release(self._spare_hold)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes a place, unless it had one for the handshake."""
        if self._socket is None:
            self.take_place(transport)
        super().connection_made(transport)  # type: ignore[arg-type]

    def _held(self, limit: SharedLimit) -> Hold | None:
        address = self.client[0] if self.client else ""
        client = Client(address, network_of(address))
        if address in self._proxies:
            client = Client(address, has_token=True)
        try:
            hold = limit.hold(client, 1, self.end)
        except Overloaded:
            return None
        hold.wait()
        return hold

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives the place back."""
        super().connection_lost(exc)
        self.give_place()

    def end(self) -> None:
        """Closes the connection; to wait for a client that does not read would be no end."""
        if self.transport is None or self.unsent_bytes:
            self._socket.abort()
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; closes the connection over a head that does not end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head:
            self._head_bytes = 0
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        if self._hold is not None and self._hold.silent_since is not None:
            self._hold.wait()  # since now

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a client that sends no more may wait for an answer."""
        is_waiting = self.is_answering and not self.cycle.more_body
        self._is_half_closed = is_waiting and self.transport is self._socket  # TLS has no half
        self.probe()
        return self._is_half_closed

    def probe(self) -> None:
        """Writes what a client that waits passes over; the system of one that has left refuses it,
        which ends the connection. Else the two would look the same."""
        if not self._is_half_closed or not self.is_answering or self.cycle.response_started:
            return
        if self.cycle.scope["http_version"] == "1.1":
            self.transport.write(STILL_AT_WORK)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._hold is None:  # there may be one now
            self._hold = self._held(self._limit)
        self.scope[CONNECTION_HOLD] = self._hold  # type: ignore[literal-required]

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
        if self._hold is not None:
            self._hold.work()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The client's turn, unless it has sent the next request already."""
        if self._hold is not None and not self.pipeline:
            self._hold.wait()
        super().on_response_complete()
        if self._is_half_closed and not self.is_answering:
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Uvicorn in an event loop of others: it handles no signals, and ends idle connections.

    Args:
      app: an ASGI application. limit: on connections; None: one of its own. context: of TLS; None:
        without. proxies: addresses whose connections bring the requests of many.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: SharedLimit | None = None,
        context: ssl.SSLContext | None = None,
        proxies: Container[str] = (),
    ):
        self._context, self._is_draining = context, False
        limit = limit or SharedLimit("connections", MAX_CONNECTIONS)
        spare = SharedLimit("connections without a place", limit.total)
        self._make_connection = functools.partial(
            Connection, limit=limit, spare=spare, proxies=proxies
        )
        self._listeners: list[socket.socket] = []
        self._idle_since: dict[
            Any, tuple[tuple[int, int], float]
        ] = {}  # since when, of connections
        super().__init__(
            uvicorn.Config(
                RewrittenHeaders(app, self._closing),
                http=self._connection,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_SECONDS),
                backlog=ACCEPTED_AT_ONCE,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens. The loop takes as many clients in a row as it listens for, and meanwhile does
        nothing else; so the larger number is set on the listeners themselves."""
        await super().startup(sockets)
        for listener in self._listeners:
            listener.listen(BACKLOG)

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
            for connection in self._open:
                connection.probe()
        return await super().on_tick(counter)

    async def drain(self, seconds: float) -> bool:
        """Accepts no connection from now on, and ends; whether all requests were answered.

        A connection has LINGER_SECONDS for a request that is under way to it, and its answer then
        closes it. What is not answered after `seconds` is cut off.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._is_draining = True
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

    def _closing(self, headers: Headers) -> Headers:
        """Those of an answer, which asks the client to disconnect once the server stops."""
        return [*headers, (b"connection", b"close")] if self._is_draining else headers

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

    def _connection(self, *arguments: Any, **named: Any) -> asyncio.BaseProtocol:
        connection = self._make_connection(*arguments, **named)
        return connection if self._context is None else TlsConnection(connection, self._context)

    def _protocol(self) -> asyncio.BaseProtocol:
        return self._connection(self.config, self.server_state, self.lifespan.state)

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
            if now - since > IDLE_SECONDS:
                connection.end()
