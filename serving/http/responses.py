"""Responses: JSON, errors in each protocol's format, and streams."""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from onepass.bundles.errors import Cancelled, ServingError

JSON = "application/json"
OPENAI_PATHS = ("/v1/images/", "/v1/audio/")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NO_HEADERS: Mapping[str, str] = {}
Result = TypeVar("Result")


class Error(TypedDict):
    """The body of an error response, except in OpenAI's protocol."""

    error: str


class OpenaiReason(TypedDict):
    """The fields of an OpenAI error."""

    message: str
    type: str
    param: None
    code: str


class OpenaiError(TypedDict):
    """An error in OpenAI's format."""

    error: OpenaiReason


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> Any:
    """Return a JSON response; NumPy arrays become lists, and non-finite numbers become null."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, {"content-type": JSON, **headers})


def is_openai_path(path: str) -> bool:
    """Return whether a path belongs to OpenAI's protocol; `/v1/models` does."""
    return path == "/v1/models" or path.startswith(OPENAI_PATHS)


def protocol_of(path: str) -> str:
    """Return the protocol of a path: "openai", "v2", "tensorflow-rest" or "onepass"."""
    if is_openai_path(path):
        return "openai"
    if path == "/v2" or path.startswith("/v2/"):
        return "v2"
    is_own = path.endswith((":speak", ":draw", "/examples"))
    return "tensorflow-rest" if path.startswith("/v1/") and not is_own else "onepass"


def error_response(
    error: ServingError, path: str, headers: Mapping[str, str] = NO_HEADERS
) -> Response:
    """Return the response for an error, in the format of the path's protocol."""
    status, body = error.http_status, Error(error=str(error))
    if error.retry_after_seconds is not None:
        headers = {**headers, "retry-after": str(max(1, math.ceil(error.retry_after_seconds)))}
    if not is_openai_path(path):
        return json_response(body, status, headers)
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    reason = OpenaiReason(message=str(error), type=kind, param=None, code=error.code)
    return json_response(OpenaiError(error=reason), status, headers)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected; the request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel it and raise Cancelled if the client disconnects."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("The client disconnected.")
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class StreamedResponse:
    """An ASGI response that consists of chunks of bytes, each sent as soon as it is available.

    Nothing is sent before the first chunk is available, so an earlier error can still set the
    status. The generator of the chunks is closed if the client disconnects, or stops reading for
    `stall_seconds`.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        stall_seconds: float,
        headers: Mapping[str, str] = NO_HEADERS,
    ):
        self._chunks, self._stall_seconds = chunks, stall_seconds
        # x-accel-buffering tells nginx not to buffer the response.
        named = {"content-type": media_type, "x-accel-buffering": "no", **headers}
        self._headers = [(name.encode(), value.encode()) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks; raise Cancelled or DeadlineExceeded if the client does not read them."""
        await cancel_on_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": self._headers}
        try:
            chunk = await anext(self._chunks, None)
            await send(start)
            while chunk is not None:
                async with asyncio.timeout(self._stall_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(self._chunks, None)
        finally:
            await self._chunks.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
