"""The one kind of error that the command line answers with a single line and exit status 2."""

import contextlib
import sys
from collections.abc import Iterator


class UserError(ValueError):
    """A mistake that its message explains to the person at the keyboard, in one line."""


@contextlib.contextmanager
def in_one_line(program: str) -> Iterator[None]:
    """A UserError within ends the process: one line on standard error and exit status 2."""
    try:
        yield
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)


def first_line(text: str) -> str:
    """The first line of an error of TensorFlow, of 200 characters at most."""
    return " ".join(text.split(".\n")[0].split("\n")[0].split())[:200]
