"""Reads request bodies as fields and tensors, with limits on sizes and durations."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request

from onepass.bundles.errors import Cancelled, InvalidInput, Overloaded, TooLarge
from serving.engine.fields import Model, as_model, excerpt
from serving.http.responses import HttpError

# Limited because parsing JSON blocks the event loop: 400,000 values take 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, which are each as slow as several numbers
BODIES_AT_ONCE = 16  # limit of the total size of all bodies, in bodies of the largest size
LARGE_BYTES = 1 << 16
LIMITS, RECEIVED = "onepass.body_limits", "onepass.body_bytes"  # keys in an ASGI scope
DECIMAL = re.compile(r"[0-9]{1,18}")
Result = TypeVar("Result")


class BodyLimits:
    """The limits on a body's size and duration, and the number of bytes `used` by all bodies."""

    def __init__(self, max_bytes: int, seconds: float):
        self.max_bytes, self.seconds, self.used = max_bytes, seconds, 0

    async def read(self, request: Request) -> bytes:
        """Return the whole body; its bytes count as used until the request ends."""
        declared = request.headers.get("content-length", "0")
        if not DECIMAL.fullmatch(declared):
            raise InvalidInput("`Content-Length` must be a number of bytes.")
        parts = []
        try:
            async with asyncio.timeout(self.seconds):
                self._check_size(int(declared))
                async for part in request.stream():
                    self._check_size(request.scope[RECEIVED] + len(part))
                    if self.used + len(part) > BODIES_AT_ONCE * self.max_bytes:
                        raise Overloaded("All request bodies together are too large now.")
                    self.used += len(part)
                    request.scope[RECEIVED] += len(part)
                    parts.append(part)
        except TimeoutError as error:
            message = f"The body must arrive within {self.seconds:g} seconds."
            raise HttpError(408, "body_too_slow", message) from error
        except ClientDisconnect as error:
            raise Cancelled("The client disconnected.") from error
        return b"".join(parts)

    def _check_size(self, count: int) -> None:
        if count > self.max_bytes:
            raise TooLarge(f"The body must have at most {self.max_bytes:,} bytes.")


async def read_body(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    """Read the body and return `function(body, *arguments)`, run in a thread if it is large."""
    limits: BodyLimits = request.scope[LIMITS]
    body = await limits.read(request)
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


def json_object(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in a body; NaN, infinity and too many values are InvalidInput."""
    text = bytes(body)
    if text.count(b"[") + text.count(b"{") > MAX_LISTS:
        raise InvalidInput(f"The body must have at most {MAX_LISTS:,} lists and objects.")
    if text.count(b",") + text.count(b":") > MAX_VALUES:
        raise InvalidInput(
            f"JSON must have at most {MAX_VALUES:,} values: send more as binary tensors (v2, gRPC)."
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body must be JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"The body must be a JSON object, got {excerpt(value)}.")
    return value


def json_model(body: bytes | memoryview, model: type[Model]) -> Model:
    """Return the JSON object in a body as a model."""
    return as_model(json_object(body), model)
