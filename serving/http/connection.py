"""HTTP/1.1 connections with strict parsing, and time limits for connections without a request."""

import asyncio
import collections
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.engine.fair_shares import client_of_address

HEAD_BYTES = 64 * 1024


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


class IdleConnections:
    """The connections without a request, at most `most`, each idle for at most `seconds`.

    If there are more, the client with the most idle connections loses the one idle for longest.
    """

    def __init__(self, most: int, seconds: float):
        self.seconds, self._most = seconds, most
        self._connections: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: "Connection", client: str) -> None:
        """Add an idle connection; if there are now more than `most`, close one."""
        self._connections[connection] = client
        if len(self._connections) > self._most:
            (crowd, _), *_ = collections.Counter(self._connections.values()).most_common(1)
            longest = next(each for each, of in self._connections.items() if of == crowd)
            self.discard(longest)
            longest.transport.abort()

    def discard(self, connection: "Connection") -> None:
        """Remove a connection that has a request or has ended."""
        self._connections.pop(connection, None)


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
        self._note_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the idle ones."""
        super().connection_lost(exc)
        self._note_busy()

    def data_received(self, data: bytes) -> None:
        """Process received data; if they complete a head, the connection is no longer idle."""
        super().data_received(data)
        if not self._is_idle:
            self._note_busy()

    def on_response_complete(self) -> None:
        """Start waiting for the next request, unless it has already arrived."""
        super().on_response_complete()
        if self._is_idle:
            self._note_idle()

    def eof_received(self) -> None:
        """Answer 400 if the client closed its side before the end of a body."""
        if (self.conn.their_state, self.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE):
            self.send_400_response("The connection ended before the body of the request did.")

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _note_idle(self) -> None:
        self._note_busy()
        self._unsent = self.transport.get_write_buffer_size()
        self._end = self.loop.call_later(self._idle.seconds, self._time_is_over)
        self._idle.add(self, client_of_address(self.client[0] if self.client else ""))

    def _note_busy(self) -> None:
        self._idle.discard(self)
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _time_is_over(self) -> None:
        """Close the connection, unless the client is still reading the last response."""
        if 0 < self.transport.get_write_buffer_size() < self._unsent:
            self._note_idle()
        else:
            self.transport.abort()
