"""Bodies of requests: capped as declared and as they come, in time, and all together."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive

from serving.errors import Cancelled, InvalidInput, Overloaded, ServingError, TooLarge

BODIES_AT_ONCE = 16  # of the largest size: what all requests together may hold
LINGER_SECONDS = 1.0
LINGER_BODIES = 4
LARGE_BYTES = 1 << 16

Result = TypeVar("Result")


class BodyTooSlow(ServingError):  # noqa: N818 - the condition, as the other errors
    """A body that does not end."""

    http_status, grpc_status, code = 408, "DEADLINE_EXCEEDED", "body_too_slow"


class BodyLimits:
    """The largest body in bytes, and the bytes that all bodies together hold, `used` of them."""

    def __init__(self, max_bytes: int):
        self.max_bytes, self.used = max_bytes, 0

    def add(self, count: int) -> None:
        """Count bytes that have come; Overloaded where all bodies together are too large."""
        if self.used + count > BODIES_AT_ONCE * self.max_bytes:
            raise Overloaded("There are too many bytes of requests at once.")
        self.used += count


class CappedBody:
    """A `receive` that refuses what is over the limits.

    Args:
      receive: the server's. headers: of the request, as ASGI has them. limits: see there.

    received_bytes: so far. ended: whether all of it has come.
    """

    def __init__(self, receive: Receive, headers: list[tuple[bytes, bytes]], limits: BodyLimits):
        self._receive, self._limits = receive, limits
        self._declared = _declared(headers)
        self.received_bytes = 0
        self.ended = not (self._declared or any(k == b"transfer-encoding" for k, _ in headers))

    def check(self) -> None:
        """TooLarge for a body that says itself that it is; InvalidInput if it says nonsense."""
        if self._declared < 0:
            raise InvalidInput("`Content-Length` must be a number of bytes.")
        if self._declared > self._limits.max_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next message; TooLarge or Overloaded once there are more bytes than may be."""
        message = await self._receive()
        if message["type"] == "http.request" and not self.ended:
            self.ended = not message.get("more_body", False)
            count = len(message.get("body", b""))
            if self.received_bytes + count > self._limits.max_bytes:
                raise self._too_large()
            self._limits.add(count)
            self.received_bytes += count
        return message

    def release(self) -> None:
        """To be called when the request is done."""
        self._limits.used -= self.received_bytes

    async def linger(self) -> None:
        """Throws the rest of the body away, for a moment: a client that is still sending when the
        connection closes may never read its answer."""
        left = LINGER_BODIES * self._limits.max_bytes
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.ended and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.ended = not message.get("more_body", False)
        except TimeoutError:
            return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body must have at most {self._limits.max_bytes:,} bytes.")


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
