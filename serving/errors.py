"""What a request can end in, with its status over HTTP and over gRPC."""

from typing import ClassVar

SHOWN_CHARACTERS = 64


def shortened(word: str) -> str:
    """A word of a request, fit to be shown in a line of an answer or of a log."""
    printable = "".join(c if c.isprintable() else "?" for c in word[:SHOWN_CHARACTERS])
    return printable + ("..." if len(word) > SHOWN_CHARACTERS else "")


class ServingError(Exception):
    """A request that is not answered; its message may be shown to the client.

    http_status: of the answer. grpc_status: the name of a `grpc.StatusCode`. code: a short word for
    programs. retry_after_seconds: when it may be worth trying again; None where it is not.
    """

    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "internal"
    retry_after_seconds: float | None = None

    def __init__(self, message: str, retry_after_seconds: float | None = None):
        super().__init__(message)
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds


class InvalidInput(ServingError):  # noqa: N818 - the condition, as HTTP and gRPC name it
    """A field that breaks a rule; the message names both."""

    http_status, grpc_status, code = 400, "INVALID_ARGUMENT", "invalid_input"


class Unauthorized(ServingError):  # noqa: N818
    """A request without a token, or with a wrong one."""

    http_status, grpc_status, code = 401, "UNAUTHENTICATED", "unauthorized"


class Forbidden(ServingError):  # noqa: N818
    """A request that may not be made, such as one for another host."""

    http_status, grpc_status, code = 403, "PERMISSION_DENIED", "forbidden"


class NotFound(ServingError):  # noqa: N818
    """No model, version or page of that name."""

    http_status, grpc_status, code = 404, "NOT_FOUND", "not_found"


class TooLarge(ServingError):  # noqa: N818
    """A body, a tensor or a number of rows over the limit."""

    http_status, grpc_status, code = 413, "RESOURCE_EXHAUSTED", "too_large"


class TooManyRequests(ServingError):  # noqa: N818
    """A client over its requests per minute."""

    http_status, grpc_status, code = 429, "RESOURCE_EXHAUSTED", "too_many_requests"
    retry_after_seconds = 1.0


class Cancelled(ServingError):  # noqa: N818
    """A request whose client disconnected: there is no one to respond to."""

    http_status, grpc_status, code = 499, "CANCELLED", "cancelled"


class Internal(ServingError):  # noqa: N818
    """A failure of the server's own; what it was is in the log, by request id, and nowhere else."""

    http_status, grpc_status, code = 500, "INTERNAL", "internal"

    def __init__(self, message: str = "The model failed; the server's log has the reason."):
        super().__init__(message)


class Overloaded(ServingError):  # noqa: N818
    """A full queue, or no stream left."""

    http_status, grpc_status, code = 503, "UNAVAILABLE", "overloaded"
    retry_after_seconds = 1.0


class NotReady(ServingError):  # noqa: N818
    """A model that is loading, or a server that is stopping."""

    http_status, grpc_status, code = 503, "UNAVAILABLE", "not_ready"
    retry_after_seconds = 1.0


class DeadlineExceeded(ServingError):  # noqa: N818
    """An answer that did not come within its time."""

    http_status, grpc_status, code = 504, "DEADLINE_EXCEEDED", "deadline_exceeded"


# What a status tells a client; of two errors with the same one the first.
_COMMON = (
    *(InvalidInput, Unauthorized, Forbidden, NotFound, TooLarge, TooManyRequests, Overloaded),
    DeadlineExceeded,
)
HTTP_CODES = {error.http_status: error.code for error in _COMMON}
GRPC_CODES = {error.grpc_status: error.code for error in reversed(_COMMON)}
