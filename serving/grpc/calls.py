"""One gRPC call in progress: its id, its sizes, and its record in log and metrics."""

import asyncio
import logging
import math
import time
import urllib.parse
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from serving.engine.auth import HEALTH_PREFIX
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
    """A call in progress, recorded in log and metrics when it ends."""

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

    def parsed(self, handler: Any, message: bytes) -> Any:
        """Parse a message; raise InvalidInput if its bytes are not one of this method."""
        self._received += len(message)
        try:
            request = handler.request_deserializer(message)
        except DecodeError:
            raise InvalidInput("The request is not a message of this method.") from None
        self._model = _model_of(request)
        return request

    def serialised(self, handler: Any, response: Message, limit_bytes: int) -> bytes:
        """Serialise a response; raise TooLarge if it is over the limit."""
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
        if error is None:
            self._record("ok")
        elif isinstance(error, ServingError):
            await self._abort(error)
        elif isinstance(error, TimeoutError):
            await self._abort(DeadlineExceeded("The answer was not ready in time."))
        elif isinstance(error, grpc.aio.AbortError):  # the handler has set the status
            self._record("not_implemented")
        elif isinstance(error, asyncio.CancelledError):
            self._record("cancelled")
        elif isinstance(error, MemoryError):
            await self._abort(Overloaded("There is not enough memory for this request."))
        elif isinstance(error, Exception):
            _LOG.error("a call failed", exc_info=error)
            await self._abort(Internal("The server failed; see its log."))

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
        fields["client"] = client_of(self._context.peer())
        event(_LOG, "answered", level, **fields, seconds=seconds, bytes=self._sent)
        sizes = {"received_bytes": self._received, "sent_bytes": self._sent}
        first = None if self._first_byte_at is None else self._first_byte_at - self._start
        self._metrics.request(
            self._model or None, PROTOCOL, status, seconds, first_byte_seconds=first, **sizes
        )


def client_of(peer: str) -> str:
    """Return the address of a peer such as `ipv4:127.0.0.1:40000` or `ipv6:%5B::1%5D:40000`."""
    return urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _model_of(request: Message) -> str:
    """Return the model's name in a request, in whatever field its protocol has it."""
    spec = getattr(request, "model_spec", None)
    name = spec.name if spec is not None else getattr(request, "model_name", "")
    return name[:64]
