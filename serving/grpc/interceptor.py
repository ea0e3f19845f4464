"""Before every gRPC method: authentication, rate limits, deadlines, sizes; logs and metrics.

Every method is registered as one that reads a stream of bytes. So the token and the client's rate
are checked before a message is taken in, a message that is slow to come meets the deadline, and
bytes that are no message are the client's mistake instead of a failure of the server.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from serving.engine.admission import SILENT_SECONDS, Admission
from serving.engine.auth import HEALTH_PREFIX
from serving.engine.proxies import HEADER
from serving.engine.streams import STREAM_TIMEOUT_FACTOR
from serving.errors import DeadlineExceeded, InvalidInput, NotReady
from serving.grpc.calls import Call
from serving.observability import traces
from serving.observability.metrics import Metrics
from serving.settings import Settings

LATE_SECONDS = 0.25  # after which a message is late
POLL_SECONDS = 1.0  # between two checks whether the server is stopping
SMALL_BYTES = 2**18  # that a message counts as until it is late, and then as the largest


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls, and maps whatever they raise to a status with a message.

    admission: who may come in, and what all requests hold. metrics: counts every call.
    is_stopping: whether the server is stopping; messages that have not come by then
    are waited for no more.
    """

    def __init__(
        self,
        settings: Settings,
        admission: Admission,
        metrics: Metrics,
        is_stopping: Callable[[], bool] = lambda: False,
    ):
        self._settings, self._admission = settings, admission
        self._metrics, self._is_stopping = metrics, is_stopping

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler behind this interceptor; None where there is no such method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())
        kind = "stream" if handler.response_streaming else "unary"
        make = getattr(grpc, f"stream_{kind}_rpc_method_handler")
        return make(self._answering(method, handler, metadata))

    def _answering(self, method: str, handler: Any, metadata: dict[str, Any]) -> Callable:
        async def answered(
            messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> bytes | None:
            async with Call(method, metadata, context, self._metrics) as call:
                await self._admit(call, metadata)
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
        """Writes what a method that streams yields; a slow reader meets the deadline too."""
        async with asyncio.timeout(seconds_left(context, self._settings)):
            if handler.request_streaming:
                each = self._each_message(call, handler, messages)
                responses = handler.stream_stream(each, context)
            else:
                request = await self._single_message(call, handler, messages)
                responses = handler.unary_stream(request, context)
        endless = call.method.startswith(HEALTH_PREFIX)  # a watch, of which there are few
        seconds = None if endless else seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        async with asyncio.timeout(seconds), contextlib.aclosing(responses):
            async for response in responses:
                message = call.serialised(handler, response, self._settings.max_body_bytes)
                async with asyncio.timeout(self._settings.timeout_seconds):  # of a stalled reader
                    await context.write(message)

    async def _each_message(self, call: Call, handler: Any, messages: Any):
        """The messages of a stream that the client sends; each counts as a request."""
        seconds = self._settings.timeout_seconds
        while (message := await self._next_message(call, messages, seconds)) is not None:
            if seconds == math.inf:
                self._admission.count_another(call.method, call.address)
            seconds = math.inf  # between two questions; the deadline of the stream holds
            yield call.parsed(handler, message)

    async def _single_message(
        self, call: Call, handler: Any, messages: AsyncIterator[bytes]
    ) -> Any:
        """The one message of a method that takes one."""
        # A probe's is small; of another one nobody sees whether it comes slowly or not at all.
        is_probe = call.method.startswith(HEALTH_PREFIX)
        seconds = SILENT_SECONDS if is_probe else self._settings.timeout_seconds
        message = await self._next_message(call, messages, seconds)
        if message is not None:
            return call.parsed(handler, message)
        if self._is_stopping():
            raise NotReady("The server is stopping.")
        raise InvalidInput("The request must be one message, got none.")

    async def _next_message(
        self, call: Call, messages: AsyncIterator[bytes], seconds: float
    ) -> bytes | None:
        """The next message; None if there is none, or if the server stops before it comes.

        How large it will be is not known: as long as it is awaited, it counts as the largest.
        """
        coming = asyncio.ensure_future(_or_none(messages))
        largest, loop = self._settings.max_body_bytes, asyncio.get_running_loop()
        start = loop.time()
        try:
            with call.waiting(min(SMALL_BYTES, largest), coming.cancel):
                poll_seconds = LATE_SECONDS
                while not (await asyncio.wait({coming}, timeout=poll_seconds))[0]:
                    if self._is_stopping():
                        return None
                    call.expect(largest)
                    poll_seconds = POLL_SECONDS
                    if loop.time() - start >= seconds:
                        raise DeadlineExceeded(f"No message came within {seconds:g} seconds.")
                call.check_place()
                return coming.result()
        finally:
            coming.cancel()

    async def _admit(self, call: Call, metadata: dict[str, Any]) -> None:
        """Unauthorized, TooManyRequests or Overloaded for a call that is not admitted."""
        given = metadata.get("authorization", b"")
        given = given.encode() if isinstance(given, str) else given
        forwarded = metadata.get(HEADER, "")
        call.address = await self._admission.proxies.client_of(
            call.address, [forwarded.encode()] if isinstance(forwarded, str) else []
        )
        await self._admission.admit(call.method, given, call.address)
        call.enter(self._admission)


def seconds_left(context: grpc.aio.ServicerContext, settings: Settings, times: int = 1) -> float:
    """Seconds until the call's own deadline, or `times` the server's if that is earlier."""
    left, longest = context.time_remaining(), times * settings.timeout_seconds
    return longest if left is None else min(left, longest)


async def _or_none(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)


def _headers(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if isinstance(value, str)}
