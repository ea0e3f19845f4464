"""Reads request bodies, with limits on the size and duration of each and on their total size."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from onepass.bundles.errors import Cancelled, InvalidInput, Overloaded, ServingError, TooLarge

BODIES_AT_ONCE = 16  # limit of the total size of all bodies, in bodies of the largest size
LARGE_BYTES = 1 << 16

LIMITS, RECEIVED = "onepass.body_limits", "onepass.body_bytes"  # keys in an ASGI scope
DECIMAL = re.compile(r"[0-9]{1,18}")

Result = TypeVar("Result")


class BodyTooSlow(ServingError):  # noqa: N818 - named as the other errors
    """Error for a body that did not arrive in time."""

    http_status, grpc_status, code = 408, "DEADLINE_EXCEEDED", "body_too_slow"


class BodyLimits:
    """The limits on a body's size and duration, and the number of bytes `used` by all bodies."""

    def __init__(self, max_bytes: int, seconds: float):
        self.max_bytes, self.seconds, self.used = max_bytes, seconds, 0

    def add(self, scope: Scope, count: int) -> None:
        """Count received bytes; raise TooLarge or Overloaded if they exceed a limit."""
        if scope[RECEIVED] + count > self.max_bytes:
            raise TooLarge(f"The body must have at most {self.max_bytes:,} bytes.")
        if self.used + count > BODIES_AT_ONCE * self.max_bytes:
            raise Overloaded("All request bodies together are too large now.")
        self.used += count
        scope[RECEIVED] += count


async def read_body(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    """Read the body and return `function(body, *arguments)`, run in a thread if it is large."""
    body = await body_of(request)
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


async def body_of(request: Request) -> bytes:
    """Return the whole body, within the limits of length, total size and time."""
    limits: BodyLimits = request.scope[LIMITS]
    declared = request.headers.get("content-length", "0")
    if not DECIMAL.fullmatch(declared):
        raise InvalidInput("`Content-Length` must be a number of bytes.")
    if int(declared) > limits.max_bytes:
        raise TooLarge(f"The body must have at most {limits.max_bytes:,} bytes.")
    parts = []
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                limits.add(request.scope, len(part))
                parts.append(part)
    except TimeoutError as error:
        raise BodyTooSlow(f"The body must arrive within {limits.seconds:g} seconds.") from error
    except ClientDisconnect as error:
        raise Cancelled("The client disconnected.") from error
    return b"".join(parts)
