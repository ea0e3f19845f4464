"""Before every gRPC method: authentication, rate limits, deadlines, sizes; logs and metrics.

Every method is registered as one that reads a stream of bytes. So the token and the client's rate
are checked before a message is taken in, a message that is slow to come meets the deadline, and
bytes that are no message are the client's mistake instead of a failure of the server.
"""

import asyncio
import contextlib
import logging
import math
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from serving.engine.auth import TokenAuth
from serving.engine.rate_limits import RateLimiter
from serving.engine.streams import STREAM_TIMEOUT_FACTOR
from serving.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    NotReady,
    Overloaded,
    ServingError,
    TooLarge,
)
from serving.observability import traces
from serving.observability.logs import begin_request, event
from serving.observability.metrics import Metrics
from serving.settings import Settings

UNAUTHENTICATED_PREFIX = "/grpc.health.v1.Health/"  # a probe has no token
REQUEST_ID = "x-request-id"
PROTOCOL = "grpc"
MAX_PUSHBACK_SECONDS = 3600
POLL_SECONDS = 0.25  # between two checks whether the server is stopping
_LOG = logging.getLogger(__name__)


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls, and maps whatever they raise to a status with a message.

    access: of the metadata `authorization: Bearer TOKEN`. rates: of each client's requests.
    metrics: a `Metrics` that counts every call, or None. is_stopping: whether
    the server is stopping; messages that have not come by then are waited for no more.
    """

    def __init__(
        self,
        settings: Settings,
        auth: TokenAuth,
        rate_limiter: RateLimiter,
        metrics: Metrics | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ):
        self._settings, self._auth = settings, auth
        self._rate_limiter, self._metrics, self._is_stopping = rate_limiter, metrics, is_stopping

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
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(method, handler, metadata))
        return grpc.stream_unary_rpc_method_handler(self._unary(method, handler, metadata))

    def _unary(self, method: str, handler: Any, metadata: dict[str, Any]) -> Callable:
        async def answered(
            messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> bytes:
            async with _Call(method, metadata, context, self._metrics) as call:
                self._admit(method, metadata, context)
                with traces.span("grpc", _headers(metadata), method=method):
                    async with asyncio.timeout(self._seconds_left(context)):
                        request = await self._single_message(call, handler, messages)
                        response = await handler.unary_unary(request, context)
                return call.serialised(handler, response, self._settings.max_body_bytes)

        return answered

    def _stream(self, method: str, handler: Any, metadata: dict[str, Any]) -> Callable:
        async def answered(
            messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> None:
            async with _Call(method, metadata, context, self._metrics) as call:
                self._admit(method, metadata, context)
                with traces.span("grpc", _headers(metadata), method=method):
                    await self._forward_stream(call, handler, messages, context)

        return answered

    async def _forward_stream(
        self, call: "_Call", handler: Any, messages: Any, context: grpc.aio.ServicerContext
    ) -> None:
        """Writes what a method that streams yields; a slow reader meets the deadline too."""
        async with asyncio.timeout(self._seconds_left(context)):
            if handler.request_streaming:
                each = self._each_message(call, handler, messages, context)
                responses = handler.stream_stream(each, context)
            else:
                request = await self._single_message(call, handler, messages)
                responses = handler.unary_stream(request, context)
        endless = call.method.startswith(UNAUTHENTICATED_PREFIX)  # a watch, of which there are few
        seconds = None if endless else seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        async with asyncio.timeout(seconds):
            async with contextlib.aclosing(responses):
                async for response in responses:
                    limit = self._settings.max_body_bytes
                    await context.write(call.serialised(handler, response, limit))

    async def _each_message(
        self, call: "_Call", handler: Any, messages: Any, context: grpc.aio.ServicerContext
    ):
        """The messages of a stream that the client sends; each counts as a request."""
        first = True
        while (message := await self._next_message(messages)) is not None:
            if not first:
                self._rate_limiter.check(call.method, client_of(context.peer()))
            first = False
            yield call.parsed(handler, message)

    async def _single_message(
        self, call: "_Call", handler: Any, messages: AsyncIterator[bytes]
    ) -> Any:
        """The one message of a method that takes one."""
        message = await self._next_message(messages)
        if message is not None:
            return call.parsed(handler, message)
        if self._is_stopping():
            raise NotReady("The server is stopping.")
        raise InvalidInput("The request must be one message, got none.")

    async def _next_message(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """The next message; None if there is none, or if the server stops before it comes."""
        coming = asyncio.ensure_future(_or_none(messages))
        try:
            while not (await asyncio.wait({coming}, timeout=POLL_SECONDS))[0]:
                if self._is_stopping():
                    return None
            return coming.result()
        finally:
            coming.cancel()

    def _admit(
        self, method: str, metadata: dict[str, Any], context: grpc.aio.ServicerContext
    ) -> None:
        """Unauthorized or TooManyRequests for a call that is not admitted."""
        if method.startswith(UNAUTHENTICATED_PREFIX):
            return
        self._rate_limiter.check(method, client_of(context.peer()))
        given = metadata.get("authorization", b"")
        given = given.encode() if isinstance(given, str) else given
        self._auth.check(method, {b"authorization": given})

    def _seconds_left(self, context: grpc.aio.ServicerContext) -> float:
        return seconds_left(context, self._settings)


class _Call:
    """One call while it runs: its id, its bytes, and its end in the log and in the figures."""

    def __init__(
        self,
        method: str,
        metadata: dict[str, Any],
        context: grpc.aio.ServicerContext,
        metrics: Metrics | None,
    ):
        self.method, self._context, self._metrics = method, context, metrics
        given = metadata.get(REQUEST_ID)
        self._id = begin_request(given if isinstance(given, str) else None)
        self._start, self._model = time.perf_counter(), ""
        self._received = self._sent = 0

    def parsed(self, handler: Any, message: bytes) -> Any:
        """The message of its bytes; InvalidInput if they are none of this method's."""
        self._received += len(message)
        try:
            request = handler.request_deserializer(message)
        except DecodeError:
            raise InvalidInput("The bytes of the request are no message of this method.") from None
        self._model = _model_of(request)
        return request

    def serialised(self, handler: Any, response: Message, limit_bytes: int) -> bytes:
        """The bytes of an answer; TooLarge if they are over the limit."""
        answer = handler.response_serializer(response)
        if len(answer) > limit_bytes:
            raise TooLarge(
                f"The answer has {len(answer)} bytes, over the server's limit of {limit_bytes}: "
                "ask for fewer rows, fewer outputs, or a stream."
            )
        self._sent += len(answer)
        return answer

    async def __aenter__(self) -> "_Call":
        self._context.set_trailing_metadata(((REQUEST_ID, self._id),))
        return self

    async def __aexit__(self, kind, error: BaseException | None, traceback) -> None:
        if error is None:
            self._record("ok")
        elif isinstance(error, ServingError):
            await self._abort(error)
        elif isinstance(error, TimeoutError):
            await self._abort(DeadlineExceeded("The answer did not come within its time."))
        elif isinstance(error, grpc.aio.AbortError):  # its status was set where it was raised
            self._record("not_implemented")
        elif isinstance(error, asyncio.CancelledError):
            self._record("cancelled")
        elif isinstance(error, MemoryError):
            await self._abort(Overloaded("There is not enough memory for this request."))
        elif isinstance(error, Exception):
            _LOG.error("a call failed", exc_info=error)
            await self._abort(Internal("The server failed; its log has the reason."))

    async def _abort(self, error: ServingError) -> None:
        self._record(error.code)
        trailing: list[tuple[str, str]] = [(REQUEST_ID, self._id)]
        if error.retry_after_seconds is not None:
            seconds = min(error.retry_after_seconds, MAX_PUSHBACK_SECONDS)
            trailing.append(("retry-after", str(max(1, math.ceil(seconds)))))
            trailing.append(("grpc-retry-pushback-ms", str(math.ceil(1000 * seconds))))
        status = getattr(grpc.StatusCode, error.grpc_status)
        await self._context.abort(status, error.message, tuple(trailing))

    def _record(self, status: str) -> None:
        seconds = time.perf_counter() - self._start
        level = logging.DEBUG if self.method.startswith(UNAUTHENTICATED_PREFIX) else logging.INFO
        fields = {"method": self.method, "model": self._model, "status": status}
        event(_LOG, "answered", level, **fields, seconds=seconds, bytes=self._sent)
        if self._metrics is not None:
            sizes = {"received_bytes": self._received, "sent_bytes": self._sent}
            self._metrics.request(self._model or None, PROTOCOL, status, seconds, **sizes)


def seconds_left(context: grpc.aio.ServicerContext, settings: Settings, times: int = 1) -> float:
    """Seconds until the call's own deadline, or `times` the server's if that is earlier."""
    left, longest = context.time_remaining(), times * settings.timeout_seconds
    return longest if left is None else min(left, longest)


async def _or_none(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)


def client_of(peer: str) -> tuple[str, int] | None:
    """Address and port of a peer such as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return address.strip("[]"), int(port)


def _model_of(request: Message) -> str:
    """The name of the model that a request is for, in whatever field its protocol has it."""
    spec = getattr(request, "model_spec", None)
    name = spec.name if spec is not None else getattr(request, "model_name", "")
    return name[:64]


def _headers(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if isinstance(value, str)}
