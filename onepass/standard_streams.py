"""Standard input, output and error that may be closed, full, or read by nobody any more."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Output:
    """Standard output, which remembers why something that was printed is lost.

    Attributes:
      lost: the error of the first line that could not be written; None while all are.
    """

    def __init__(self, stream: TextIO | None):
        self._is_closed = stream is None
        # The real one stays open for as long as the process lives.
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write to the stream; of a closed one the text is lost, and the work goes on."""
        if self._is_closed and text:
            self.lost = OSError(errno.EBADF, os.strerror(errno.EBADF))
        with self._watched():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._watched():
            self._stream.flush()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def watched_output() -> Iterator[Output]:
    """A context in which standard output is an `Output`; what waits in it is written at its end."""
    _open_closed()
    before, output = sys.stdout, Output(sys.stdout)
    sys.stdout = output
    try:
        yield output
    finally:
        sys.stdout = before
        with contextlib.suppress(OSError):
            output.flush()
        if output.lost is not None:
            _let_go(1)  # or Python would try again as it ends


def say_error(line: str) -> None:
    """Print a line on standard error, where that can be written."""
    try:
        print(f"onepass: {line}", file=sys.stderr, flush=True)
    except OSError:
        _let_go(2)


def _open_closed() -> None:
    """Open closed descriptors of standard streams on nothing, so that no file takes their numbers.

    Python has None for such a stream; standard output stays so, see `Output`.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)


def _let_go(descriptor: int) -> None:
    """Send what still waits to be written to a standard stream nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
