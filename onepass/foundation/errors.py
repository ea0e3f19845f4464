"""Errors that the command line reports in one line, and their exit statuses."""

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Any

USAGE, FAILURE = 2, 1  # exit statuses: a user's mistake, and every other error
# Operating system errors that the user cannot avoid with a different path or option.
_FAILURES = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM),
    *(errno.EMFILE, errno.ENFILE, errno.EPIPE),
}


class UserError(ValueError):
    """A user's mistake, with a one-line message."""

    exit_status = USAGE


def must_be(name: str, rule: str, value: object) -> str:
    """Return the message for what breaks a rule: "`width` must be at least 2, got 1."."""
    return f"`{name}` must be {rule}, got {value}."


def require(holds: object, name: str, rule: str, value: object) -> None:
    """Raise UserError with the message of `must_be` unless the rule holds."""
    if not holds:
        raise UserError(must_be(name, rule, value))


def at_least(config: Any, least: float, *fields: str) -> None:
    """Raise UserError if a field of a configuration is below `least` or NaN."""
    for field in fields:
        value = getattr(config, field)
        require(value >= least, field, f"at least {least}", value)


def exit_status(error: BaseException) -> int:
    """Return 2 for a user's mistake, 1 for a failure, such as a UserError from a full disk."""
    if not isinstance(error, UserError):
        return FAILURE
    cause: BaseException | None = error
    while cause is not None:
        failed = isinstance(cause, OSError) and cause.errno in _FAILURES
        if failed or getattr(cause, "exit_status", USAGE) == FAILURE:
            return FAILURE
        cause = cause.__cause__
    return USAGE


@contextlib.contextmanager
def in_one_line(program: str) -> Iterator[None]:
    """Print a UserError raised inside the block in one line on stderr and exit with its status."""
    try:
        yield
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(exit_status(error))


def first_line(text: str) -> str:
    """Return the first line of a TensorFlow error message, at most 200 characters."""
    return " ".join(text.split(".\n")[0].split("\n")[0].split())[:200]
