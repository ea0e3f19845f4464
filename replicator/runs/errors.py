"""Errors that the command line answers with a single line, and the exit status that they end in."""

import contextlib
import errno
import sys
from collections.abc import Iterator

USAGE, FAILURE = 2, 1  # exit statuses: a mistake of the user's, and everything else that went wrong
# Reasons of an operating system's error for which no other name or option would have been right.
_FAILURES = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ENOMEM),
    *(errno.EMFILE, errno.ENFILE, errno.EPIPE),
}


class UserError(ValueError):
    """A mistake that its message explains to the person at the keyboard, in one line."""

    exit_status = USAGE


def exit_status(error: BaseException) -> int:
    """Return 2 for a mistake of the user's, 1 for a failure of the program or of the machine.

    A UserError that was caused by a full disk, say, or by a lost process, is such a failure.
    """
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
    """A UserError within ends the process: one line on standard error and its exit status."""
    try:
        yield
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(exit_status(error))


def first_line(text: str) -> str:
    """The first line of an error of TensorFlow, of 200 characters at most."""
    return " ".join(text.split(".\n")[0].split("\n")[0].split())[:200]
