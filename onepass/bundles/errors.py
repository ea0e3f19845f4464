"""The errors that a request to a model can end with, and their HTTP and gRPC statuses."""

from typing import ClassVar

SHOWN_CHARACTERS = 64


def shorten_text(word: str) -> str:
    """Return text from a request, shortened and made printable for a response or a log line."""
    printable = "".join(c if c.isprintable() else "?" for c in word[:SHOWN_CHARACTERS])
    return printable + ("..." if len(word) > SHOWN_CHARACTERS else "")


class ServingError(Exception):
    """Error for a failed request; its message may be shown to the client."""

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "internal"
    retry_after_seconds: float | None = None  # when a retry may succeed; None: it will not help

    def __init__(self, message: str, retry_after_seconds: float | None = None):
        super().__init__(message)
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds


class InvalidInput(ServingError):  # noqa: N818 - named as HTTP and gRPC name the condition
    """Error for a field that breaks a rule; the message names both."""

    http_status, grpc_status, code = 400, "INVALID_ARGUMENT", "invalid_input"


class Unauthorized(ServingError):  # noqa: N818
    """Error for a request with no token or a wrong one."""

    http_status, grpc_status, code = 401, "UNAUTHENTICATED", "unauthorized"


class Forbidden(ServingError):  # noqa: N818
    """Error for a request that is not allowed, such as one from a page on a different site."""

    http_status, grpc_status, code = 403, "PERMISSION_DENIED", "forbidden"


class NotFound(ServingError):  # noqa: N818
    """Error for a model, version or page that does not exist."""

    http_status, grpc_status, code = 404, "NOT_FOUND", "not_found"


class TooLarge(ServingError):  # noqa: N818
    """Error for a body, a tensor, a batch or a duration over the limit."""

    http_status, grpc_status, code = 413, "RESOURCE_EXHAUSTED", "too_large"


class Cancelled(ServingError):  # noqa: N818
    """Error for a request whose client disconnected and no longer waits for a response."""

    http_status, grpc_status, code = 499, "CANCELLED", "cancelled"


class Internal(ServingError):  # noqa: N818
    """Error for a failure in the server; the cause is written only to the log."""

    http_status, grpc_status, code = 500, "INTERNAL", "internal"

    def __init__(self, message: str = "The model failed; see the server's log."):
        super().__init__(message)


class Overloaded(ServingError):  # noqa: N818
    """Error for a server that has too many waiting requests or streams, or too little memory."""

    http_status, grpc_status, code = 503, "UNAVAILABLE", "overloaded"
    retry_after_seconds = 1.0


class NotReady(ServingError):  # noqa: N818
    """Error for a model or server that is not ready, as it is loading, restarting or stopping."""

    http_status, grpc_status, code = 503, "UNAVAILABLE", "not_ready"
    retry_after_seconds = 1.0


class DeadlineExceeded(ServingError):  # noqa: N818
    """Error for a response that was not ready in time."""

    http_status, grpc_status, code = 504, "DEADLINE_EXCEEDED", "deadline_exceeded"


# The error code of each status; the first one, if two errors have the same status.
_COMMON = InvalidInput, Unauthorized, Forbidden, NotFound, TooLarge, Overloaded, DeadlineExceeded
HTTP_CODES = {error.http_status: error.code for error in _COMMON}
HTTP_CODES[429] = "too_many_requests"  # sent by a proxy, not by this server
GRPC_CODES = {error.grpc_status: error.code for error in reversed(_COMMON)}
