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
LARGE_BYTES = 1 << 18

Result = TypeVar("Result")


class BodyTooSlow(ServingError):  # noqa: N818 - the condition, as the other errors
    """A body that does not end."""

    http_status, grpc_status, code = 408, "DEADLINE_EXCEEDED", "body_too_slow"


class BodyBudget:
    """Bytes of bodies that the requests in flight use, and the most there may be.

    Args:
      body_bytes: of one body.
    """

    def __init__(self, body_bytes: int):
        self.body_bytes = body_bytes
        self.used_bytes = 0

    def reserve(self, count: int) -> None:
        """Reserves bytes; Overloaded if there are not as many left."""
        if self.used_bytes + count > self.body_bytes * BODIES_AT_ONCE:
            raise Overloaded("Too many large requests at once.")
        self.used_bytes += count

    def release(self, count: int) -> None:
        """Frees them again."""
        self.used_bytes -= count


class CappedBody:
    """A `receive` that refuses what is over the limits.

    Args:
      receive: the server's. headers: of the request, as ASGI has them. store: of all requests.

    received_bytes: so far. ended: whether all of it has come.
    """

    def __init__(self, receive: Receive, headers: list[tuple[bytes, bytes]], budget: BodyBudget):
        self._receive, self._budget = receive, budget
        self._declared = _declared(headers)
        self.received_bytes = 0
        self.ended = not (self._declared or any(k == b"transfer-encoding" for k, _ in headers))

    def check(self) -> None:
        """TooLarge for a body that says itself that it is; InvalidInput if it says nonsense."""
        if self._declared < 0:
            raise InvalidInput("`Content-Length` must be a number of bytes.")
        if self._declared > self._budget.body_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next message; TooLarge once there are more bytes than may be."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.ended = not message.get("more_body", False)
            count = len(message.get("body", b""))
            if self.received_bytes + count > self._budget.body_bytes:
                raise self._too_large()
            self._budget.reserve(count)
            self.received_bytes += count
        return message

    def release(self) -> None:
        """To be called when the request is done."""
        self._budget.release(self.received_bytes)

    async def linger(self) -> None:
        """Throws the rest of the body away, for a moment: a client that is still sending when the
        connection closes may never read its answer."""
        left = LINGER_BODIES * self._budget.body_bytes
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self.ended and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.ended = not message.get("more_body", False)
        except TimeoutError:
            return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body must have at most {self._budget.body_bytes:,} bytes.")


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
