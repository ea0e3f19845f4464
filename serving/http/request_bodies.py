"""Bodies of requests: capped as declared and as they come, in time, and all together."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive

from serving.engine.admission import SILENT_SECONDS
from serving.engine.clients import Client
from serving.engine.shared_limits import Hold, SharedLimit
from serving.errors import Cancelled, InvalidInput, Overloaded, ServingError, TooLarge

LINGER_SECONDS = 1.0
LINGER_BODIES = 4
LARGE_BYTES = 1 << 16

Result = TypeVar("Result")


class BodyTooSlow(ServingError):  # noqa: N818 - the condition, as the other errors
    """A body that does not end."""

    http_status, grpc_status, code = 408, "DEADLINE_EXCEEDED", "body_too_slow"


class CappedBody:
    """A `receive` that refuses what is over the limits, or does not come.

    Args:
      receive: the server's. headers: of the request, as ASGI has them. max_bytes: of this body.
      limit: on the bytes of all.

    received_bytes: so far. ended: whether all of it has come.
    """

    def __init__(
        self,
        receive: Receive,
        headers: list[tuple[bytes, bytes]],
        max_bytes: int,
        limit: SharedLimit,
    ):
        self._receive, self._max_bytes, self._limit = receive, max_bytes, limit
        self._declared = _declared(headers)
        self._hold: Hold | None = None
        self._silence: asyncio.Timeout | None = None
        self.received_bytes = 0
        self.ended = not (self._declared or any(k == b"transfer-encoding" for k, _ in headers))

    def begin(self, client: Client) -> None:
        """TooLarge for a body that says itself that it is; InvalidInput if it says nonsense."""
        if self._declared < 0:
            raise InvalidInput("`Content-Length` must be a number of bytes.")
        if self._declared > self._max_bytes:
            raise self._too_large()
        self._hold = self._limit.hold(client, on_evict=self._make_room)

    async def receive(self) -> Message:
        """The next message.

        Raises TooLarge once there are more bytes than may be, BodyTooSlow when nothing comes,
        Overloaded when others need the room.
        """
        if self.ended or self._hold is None:
            return await self._receive()
        message = await self._next(self._hold)
        if message["type"] == "http.request":
            self.ended = not message.get("more_body", False)
            count = self.received_bytes + len(message.get("body", b""))
            if count > self._max_bytes:
                raise self._too_large()
            self._limit.resize(self._hold, count)
            self.received_bytes = count
        return message

    async def _next(self, hold: Hold) -> Message:
        hold.wait()
        try:
            async with asyncio.timeout(SILENT_SECONDS) as self._silence:
                return await self._receive()
        except TimeoutError as error:
            if hold.evicted:
                raise Overloaded("Others need the room of this body, which is too slow.") from error
            words = f"Nothing more of the body arrived for {SILENT_SECONDS:g} seconds."
            raise BodyTooSlow(words) from error
        finally:
            hold.work()

    def _make_room(self) -> None:
        if self._silence is not None:
            self._silence.reschedule(asyncio.get_running_loop().time())

    def release(self) -> None:
        """To be called when the request is done."""
        if self._hold is not None:
            self._limit.release(self._hold)

    async def linger(self) -> None:
        """Throws the rest of the body away, for a moment: a client that is still sending when the
        connection closes may never read its answer."""
        left = LINGER_BODIES * self._max_bytes
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.ended and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.ended = not message.get("more_body", False)
        except TimeoutError:
            return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body must have at most {self._max_bytes:,} bytes.")


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) <= 18 else -1
    return 0


async def read_with(function: Callable[..., Result], body: bytes, *arguments: Any) -> Result:
    """What a function makes of a body; in a thread where that may keep others waiting."""
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


async def body_of(request: Request, seconds: float) -> bytes:
    """The whole body.

    Raises BodyTooSlow when it is not there in time, Cancelled when the client disconnects.
    """
    parts = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("The client disconnected.")
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError as error:
        raise BodyTooSlow(f"The body must arrive within {seconds:g} seconds.") from error
