"""Interceptor of all gRPC methods: authentication, deadlines, sizes, logs and metrics.

Every method is registered as one that reads a stream of bytes. So the token is checked before a
message is received, a slow message meets the deadline, and bytes that are not a message are an
error of the client, not of the server.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from serving.engine.auth import HEALTH_PREFIX, TokenAuth
from serving.engine.streams import STREAM_TIMEOUT_FACTOR
from serving.errors import DeadlineExceeded, InvalidInput, NotReady
from serving.grpc.calls import Call
from serving.observability import traces
from serving.observability.metrics import Metrics
from serving.settings import Settings

POLL_SECONDS = 0.5  # between two checks for a stopping server
SILENT_SECONDS = 10.0  # for a probe, which needs no token, to send its message


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Checks calls, and maps the errors that they raise to statuses.

    Args:
      settings: time and size limits.
      auth: checks the token.
      metrics: counts all calls.
      is_stopping: returns whether the server is stopping; it then waits for no more messages.
    """

    def __init__(
        self,
        settings: Settings,
        auth: TokenAuth,
        metrics: Metrics,
        is_stopping: Callable[[], bool] = lambda: False,
    ):
        self._settings, self._auth = settings, auth
        self._metrics, self._is_stopping = metrics, is_stopping

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler behind this interceptor; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())
        kind = "stream" if handler.response_streaming else "unary"
        method_handler = getattr(grpc, f"stream_{kind}_rpc_method_handler")
        return method_handler(self._answering(method, handler, metadata))

    def _answering(self, method: str, handler: Any, metadata: dict[str, Any]) -> Callable:
        async def answered(
            messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> bytes | None:
            async with Call(method, metadata, context, self._metrics) as call:
                given = metadata.get("authorization", b"")
                self._auth.check(method, given.encode() if isinstance(given, str) else given)
                with traces.span("grpc", _headers(metadata), method=method):
                    if handler.response_streaming:
                        await self._forward_stream(call, handler, messages, context)
                        return None
                    async with asyncio.timeout(seconds_left(context, self._settings)):
                        request = await self._single_message(call, handler, messages)
                        response = await handler.unary_unary(request, context)
                return call.serialised(handler, response, self._settings.max_body_bytes)

        return answered

    async def _forward_stream(
        self, call: Call, handler: Any, messages: Any, context: grpc.aio.ServicerContext
    ) -> None:
        """Write the messages of a streaming method; a slow reader meets the deadline too."""
        if handler.request_streaming:
            responses = handler.stream_stream(self._each_message(call, handler, messages), context)
        else:
            async with asyncio.timeout(seconds_left(context, self._settings)):
                request = await self._single_message(call, handler, messages)
            responses = handler.unary_stream(request, context)
        endless = call.method.startswith(HEALTH_PREFIX)  # a watch
        seconds = None if endless else seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        async with asyncio.timeout(seconds), contextlib.aclosing(responses):
            async for response in responses:
                message = call.serialised(handler, response, self._settings.max_body_bytes)
                async with asyncio.timeout(self._settings.timeout_seconds):  # for a stalled reader
                    await context.write(message)

    async def _each_message(self, call: Call, handler: Any, messages: Any):
        """Yield the messages of a client's stream, which share one deadline."""
        while (message := await self._next_message(messages, math.inf)) is not None:
            yield call.parsed(handler, message)

    async def _single_message(
        self, call: Call, handler: Any, messages: AsyncIterator[bytes]
    ) -> Any:
        """Return the message of a method that takes one."""
        is_probe = call.method.startswith(HEALTH_PREFIX)
        seconds = SILENT_SECONDS if is_probe else self._settings.timeout_seconds
        message = await self._next_message(messages, seconds)
        if message is not None:
            return call.parsed(handler, message)
        if self._is_stopping():
            raise NotReady("The server is stopping.")
        raise InvalidInput("The request must be one message, got none.")

    async def _next_message(self, messages: AsyncIterator[bytes], seconds: float) -> bytes | None:
        """Return the next message; None if there is none, or if the server stops before."""
        next_one = asyncio.ensure_future(_or_none(messages))
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            while not (await asyncio.wait({next_one}, timeout=POLL_SECONDS))[0]:
                if self._is_stopping():
                    return None
                if loop.time() >= end:
                    raise DeadlineExceeded(f"No message arrived within {seconds:g} seconds.")
            return next_one.result()
        finally:
            next_one.cancel()


def seconds_left(context: grpc.aio.ServicerContext, settings: Settings, times: int = 1) -> float:
    """Return the seconds until the call's deadline, or `times` the server's limit if earlier."""
    left, longest = context.time_remaining(), times * settings.timeout_seconds
    return longest if left is None else min(left, longest)


async def _or_none(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)


def _headers(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if isinstance(value, str)}
