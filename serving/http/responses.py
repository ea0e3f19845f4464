"""Responses: JSON, errors in each protocol's format, and streams."""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import create_model
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from onepass.bundles.errors import Cancelled, DeadlineExceeded, ServingError

JSON = "application/json"
OPENAI_PATHS = ("/v1/images/", "/v1/audio/")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NO_HEADERS: Mapping[str, str] = {}
Result = TypeVar("Result")
ERROR = create_model("Error", error=str)
REASON = create_model("OpenaiReason", message=str, type=str, param=(None, None), code=str)
OPENAI_ERROR = create_model("OpenaiError", error=REASON)


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
    status, message = error.http_status, str(error)
    if error.retry_after_seconds is not None:
        headers = {**headers, "retry-after": str(max(1, math.ceil(error.retry_after_seconds)))}
    if not is_openai_path(path):
        return json_response({"error": message}, status, headers)
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    reason = {"message": message, "type": kind, "param": None, "code": error.code}
    return json_response({"error": reason}, status, headers)


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel it and raise Cancelled if the client disconnects.

    The request's body must have been read before.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("The client disconnected.")
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class HttpError(ServingError):
    """Error that only HTTP has, with its own status and code."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.http_status, self.code = status, code  # type: ignore[misc] # of this error alone


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
        except TimeoutError as error:
            raise DeadlineExceeded("The client does not read the response.") from error
        finally:
            await self._chunks.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
