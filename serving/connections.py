"""What an HTTP connection may do: how long its head, how long idle, and how it ends in a drain."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
HEAD_FIELDS = 128
IDLE_SECONDS = 30.0  # without a whole head, or without the next request
LINGER_SECONDS = 0.5  # that a kept connection has for one more request, once the server stops
MAX_CONNECTIONS = 1024


class HeadTooLarge(Exception):  # noqa: N818 - the condition, as the errors of requests
    """More header fields than there may be; the parser answers it with 400."""


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded, which the parser's are not."""

    def __init__(self, *arguments: Any, **rest: Any):
        super().__init__(*arguments, **rest)
        self._in_head, self._head_bytes, self._fields = True, 0, 0
        self._messages = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

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


class Farewell:
    """The application; once `leaving`, every answer asks the client to close its connection."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self.leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""

        async def send_on(message: Message) -> None:
            if self.leaving and message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_on)


class HttpServer(uvicorn.Server):
    """Uvicorn in somebody else's event loop: signals are not its own, idle connections end.

    Args:
      app: an ASGI application.
    """

    def __init__(self, app: ASGIApp):
        self._app = Farewell(app)
        self._idle_since: dict[Any, float] = {}
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
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=int(IDLE_SECONDS),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals as they are."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ends connections that have been idle for too long; whether to stop."""
        if counter % 10 == 0:
            self._end_idle(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def leave(self, seconds: float) -> bool:
        """Accepts no connection from now on, and ends; whether all requests were answered.

        A kept connection has LINGER_SECONDS for a request that is under way to it. What is not
        answered after `seconds` is cut off.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self._app.leaving = True
        for listener in self.servers:
            listener.close()
        if self.server_state.connections:
            await asyncio.sleep(min(LINGER_SECONDS, seconds))
        for connection in self._busy():
            connection.shutdown()  # after its answer
        while self._busy() and loop.time() < end:
            await asyncio.sleep(0.02)
        is_answered = not self._busy()
        self.config.timeout_graceful_shutdown = 1 if is_answered else 0
        self.should_exit = True
        return is_answered

    def _busy(self) -> list[Any]:
        return [c for c in self.server_state.connections if not getattr(c, "is_idle", True)]

    def _end_idle(self, now: float) -> None:
        idle = self.server_state.connections.difference(self._busy())
        self._idle_since = {c: self._idle_since.get(c, now) for c in idle}
        for connection, since in self._idle_since.items():
            if now - since > IDLE_SECONDS:
                connection.transport.close()
