"""One gRPC call while it runs: its place, its bytes, its end in the log and in the figures."""

import asyncio
import contextlib
import logging
import math
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from serving.engine.admission import Admission
from serving.engine.auth import HEALTH_PREFIX
from serving.engine.clients import current_client
from serving.engine.shared_limits import Hold
from serving.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    Overloaded,
    ServingError,
    TooLarge,
)
from serving.observability.logs import begin_request, event
from serving.observability.metrics import Metrics

REQUEST_ID = "x-request-id"
PROTOCOL = "grpc"
MAX_PUSHBACK_SECONDS = 3600
_LOG = logging.getLogger(__name__)


class Call:
    """One call while it runs: its id, its bytes, and its end in the log and in the figures.

    address: where it comes from.
    """

    def __init__(
        self,
        method: str,
        metadata: dict[str, Any],
        context: grpc.aio.ServicerContext,
        metrics: Metrics,
    ):
        self.method, self._context, self._metrics = method, context, metrics
        given = metadata.get(REQUEST_ID)
        self._id = begin_request(given if isinstance(given, str) else None)
        self._start, self._model = time.perf_counter(), ""
        self._received = self._sent = 0
        self._first_byte_at: float | None = None
        self._place = self._bytes = Hold()  # of nothing yet
        self._admission: Admission | None = None
        self.address = client_of(context.peer())

    def enter(self, admission: Admission) -> None:
        """Takes a place among all calls; Overloaded if there is none."""
        client = current_client()
        self._place = admission.calls.hold(client, 1)
        self._bytes = admission.bodies.hold(client)
        self._admission = admission

    @contextlib.contextmanager
    def waiting(self, size: int, on_evict: Callable[[], Any]) -> Iterator[None]:
        """While a message is on its way, which counts as so many bytes.

        on_evict: called when others need the room.
        """
        self.expect(size)
        for hold in (self._place, self._bytes):
            hold.on_evict = on_evict
            hold.wait()
        try:
            yield
        finally:
            for hold in (self._place, self._bytes):
                hold.work()

    def check_place(self) -> None:
        """Overloaded if others need the room of this call."""
        if self._place.evicted or self._bytes.evicted:
            raise Overloaded("There are too many calls at once, and this one was silent.")

    def expect(self, size: int) -> None:
        """Counts the message on its way as so many bytes; Overloaded if others need the room."""
        self.check_place()
        if self._admission is not None:
            self._admission.bodies.resize(self._bytes, size)

    def parsed(self, handler: Any, message: bytes) -> Any:
        """The message of its bytes; InvalidInput if they are none of this method's."""
        self._received += len(message)
        self.expect(len(message))
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
        self._first_byte_at = self._first_byte_at or time.perf_counter()
        return answer

    async def __aenter__(self) -> "Call":
        self._context.set_trailing_metadata(((REQUEST_ID, self._id),))
        return self

    async def __aexit__(self, kind, error: BaseException | None, traceback) -> None:
        if self._admission is not None:
            self._admission.calls.release(self._place)
            self._admission.bodies.release(self._bytes)
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
        await self._context.abort(status, str(error), tuple(trailing))

    def _record(self, status: str) -> None:
        seconds = time.perf_counter() - self._start
        level = logging.DEBUG if self.method.startswith(HEALTH_PREFIX) else logging.INFO
        fields = {"method": self.method, "model": self._model, "status": status}
        fields["client"] = self.address[0] if self.address else ""
        event(_LOG, "answered", level, **fields, seconds=seconds, bytes=self._sent)
        sizes = {"received_bytes": self._received, "sent_bytes": self._sent}
        first = None if self._first_byte_at is None else self._first_byte_at - self._start
        self._metrics.request(
            self._model or None, PROTOCOL, status, seconds, first_byte_seconds=first, **sizes
        )


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
