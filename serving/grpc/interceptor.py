"""Interceptor of all gRPC methods: authentication, deadlines, sizes, logs and metrics.

Every method is registered as one that reads a stream of bytes. Therefore the token is checked
before a message is received, the deadline also applies to slow messages, and bytes that are not a
valid message are reported as the client's error, not the server's.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from onepass.bundles import errors
from serving import observability
from serving.engine.clients import HEALTH_PREFIX, TokenAuth, begin_client
from serving.engine.served_model import STREAM_TIMEOUT_FACTOR
from serving.observability import Metrics, begin_request, event
from serving.settings import Settings

PROXIES_VARIABLE, DEFAULT_PROXIES = "FORWARDED_ALLOW_IPS", "127.0.0.1"
FORWARDED = "x-forwarded-for"


def client_address(peer: str, metadata: Mapping[str, Any]) -> str:
    """Return the address that a trusted proxy names ("x-forwarded-for"), or else the peer's."""
    given = metadata.get(FORWARDED)
    if not isinstance(given, str) or not is_proxy(peer):
        return peer
    named = [address.strip() for address in given.split(",")]
    return next((address for address in reversed(named) if not is_proxy(address)), named[0])


def is_proxy(address: str) -> bool:
    """Return whether an address belongs to a trusted proxy."""
    for proxy in os.environ.get(PROXIES_VARIABLE, DEFAULT_PROXIES).split(","):
        if proxy.strip() in ("*", address):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(address) in ipaddress.ip_network(proxy.strip()):
                return True
    return False


REQUEST_ID = "x-request-id"
PROTOCOL = "grpc"
MAX_PUSHBACK_SECONDS = 3600
_LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5  # interval of the checks for a stopping server
SILENT_SECONDS = 10.0  # time for a probe, which needs no token, to send its message


class Call:
    """A call in progress, which is logged and counted in the metrics when it ends."""

    def __init__(
        self,
        method: str,
        metadata: dict[str, Any],
        context: grpc.aio.ServicerContext,
        metrics: Metrics,
    ):
        self.method, self._context, self._metrics = method, context, metrics
        self.client = client_address(client_of(context.peer()), metadata)
        given = metadata.get(REQUEST_ID)
        self._id = begin_request(given if isinstance(given, str) else None)
        self._start, self._model = time.perf_counter(), ""
        self._received = self._sent = 0
        self._first_byte_at: float | None = None

    def parse_message(self, handler: Any, message: bytes) -> Any:
        """Parse a message; raise InvalidInput if its bytes are not a message of this method."""
        self._received += len(message)
        try:
            request = handler.request_deserializer(message)
        except DecodeError:
            raise errors.InvalidInput("The request is not a message of this method.") from None
        spec = getattr(request, "model_spec", None)
        name = spec.name if spec is not None else getattr(request, "model_name", "")
        self._model = name[:64]
        return request

    def serialise_response(self, handler: Any, response: Message, limit_bytes: int) -> bytes:
        """Serialise a response; raise TooLarge if it is over the limit."""
        answer = handler.response_serializer(response)
        if len(answer) > limit_bytes:
            raise errors.TooLarge(
                f"The answer has {len(answer)} bytes, over the server's limit of {limit_bytes}: "
                "ask for fewer rows, fewer outputs, or a stream."
            )
        self._sent += len(answer)
        self._first_byte_at = self._first_byte_at or time.perf_counter()
        return answer

    async def __aenter__(self) -> "Call":
        self._context.set_trailing_metadata(((REQUEST_ID, self._id),))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._record("ok")
        elif isinstance(error, errors.ServingError):
            await self._abort(error)
        elif isinstance(error, TimeoutError):
            await self._abort(errors.DeadlineExceeded("The answer was not ready in time."))
        elif isinstance(error, grpc.aio.AbortError):  # the handler has set the status
            self._record("not_implemented")
        elif isinstance(error, asyncio.CancelledError):
            self._record("cancelled")
        elif isinstance(error, MemoryError):
            await self._abort(errors.Overloaded("There is not enough memory for this request."))
        elif isinstance(error, Exception):
            _LOG.error("a call failed", exc_info=error)
            await self._abort(errors.Internal("The server failed; see its log."))

    async def _abort(self, error: errors.ServingError) -> None:
        self._record(error.code)
        trailing: list[tuple[str, str]] = [(REQUEST_ID, self._id)]
        if error.retry_after_seconds is not None:
            seconds = min(error.retry_after_seconds, MAX_PUSHBACK_SECONDS)
            trailing.append(("retry-after", str(max(1, math.ceil(seconds)))))
            trailing.append(("grpc-retry-pushback-ms", str(math.ceil(1000 * seconds))))
        status = getattr(grpc.StatusCode, error.grpc_status)
        await self._context.abort(status, str(error), tuple(trailing))

    def _record(self, status: str) -> None:
        seconds = time.perf_counter() - self._start
        level = logging.DEBUG if self.method.startswith(HEALTH_PREFIX) else logging.INFO
        fields = {"method": self.method, "model": self._model, "status": status}
        fields["client"] = self.client
        event(_LOG, "answered", level, **fields, seconds=seconds, bytes=self._sent)
        sizes = {"received_bytes": self._received, "sent_bytes": self._sent}
        first = None if self._first_byte_at is None else self._first_byte_at - self._start
        self._metrics.request(
            self._model or None, PROTOCOL, status, seconds, first_byte_seconds=first, **sizes
        )


def client_of(peer: str) -> str:
    """Return the address of a peer such as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    return urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


class RequestInterceptor(grpc.aio.ServerInterceptor):
    """Checks calls and maps their errors to statuses; awaits no more messages while stopping."""

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
        """Return the method's handler, wrapped by this interceptor; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata or ())
        kind = "stream" if handler.response_streaming else "unary"
        method_handler = getattr(grpc, f"stream_{kind}_rpc_method_handler")
        return method_handler(self._answering(method, handler, metadata))

    def _answering(self, method: str, handler: Any, metadata: dict[str, Any]) -> Callable:
        async def answer_call(
            messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> bytes | None:
            async with Call(method, metadata, context, self._metrics) as call:
                given = metadata.get("authorization", b"")
                given = given.encode() if isinstance(given, str) else given
                token = self._auth.check(method, given)
                begin_client(call.client, token)
                headers = {name: v for name, v in metadata.items() if isinstance(v, str)}
                with observability.span("grpc", headers, method=method):
                    if handler.response_streaming:
                        await self._forward_stream(call, handler, messages, context)
                        return None
                    async with asyncio.timeout(seconds_left(context, self._settings)):
                        request = await self._single_message(call, handler, messages)
                        response = await handler.unary_unary(request, context)
                return call.serialise_response(handler, response, self._settings.max_body_bytes)

        return answer_call

    async def _forward_stream(
        self, call: Call, handler: Any, messages: Any, context: grpc.aio.ServicerContext
    ) -> None:
        if handler.request_streaming:
            responses = handler.stream_stream(self._each_message(call, handler, messages), context)
        else:
            async with asyncio.timeout(seconds_left(context, self._settings)):
                request = await self._single_message(call, handler, messages)
            responses = handler.unary_stream(request, context)
        endless = call.method.startswith(HEALTH_PREFIX)  # the method `Watch`
        seconds = None if endless else seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        async with asyncio.timeout(seconds), contextlib.aclosing(responses):
            async for response in responses:
                message = call.serialise_response(handler, response, self._settings.max_body_bytes)
                async with asyncio.timeout(self._settings.timeout_seconds):  # for a stalled reader
                    await context.write(message)

    async def _each_message(self, call: Call, handler: Any, messages: Any) -> AsyncIterator[Any]:
        while (message := await self._next_message(messages, math.inf)) is not None:
            yield call.parse_message(handler, message)

    async def _single_message(
        self, call: Call, handler: Any, messages: AsyncIterator[bytes]
    ) -> Any:
        is_probe = call.method.startswith(HEALTH_PREFIX)
        seconds = SILENT_SECONDS if is_probe else self._settings.timeout_seconds
        message = await self._next_message(messages, seconds)
        if message is not None:
            return call.parse_message(handler, message)
        if self._is_stopping():
            raise errors.NotReady("The server is stopping.")
        raise errors.InvalidInput("The request must be one message, got none.")

    async def _next_message(self, messages: AsyncIterator[bytes], seconds: float) -> bytes | None:
        next_one = asyncio.ensure_future(_or_none(messages))
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            while not (await asyncio.wait({next_one}, timeout=POLL_SECONDS))[0]:
                if self._is_stopping():
                    return None
                if loop.time() >= end:
                    raise errors.DeadlineExceeded(f"No message arrived within {seconds:g} seconds.")
            return next_one.result()
        finally:
            next_one.cancel()


def seconds_left(context: grpc.aio.ServicerContext, settings: Settings, times: int = 1) -> float:
    """Return the seconds until the call's deadline, at most `times` times the server's limit."""
    left, longest = context.time_remaining(), times * settings.timeout_seconds
    return longest if left is None else min(left, longest)


async def _or_none(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)
