"""Handle standard input, output and error that are closed, full, or have no reader."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Output:
    """Standard output that remembers the first error in writing to it as `lost`."""

    def __init__(self, stream: TextIO | None):
        self._is_closed = stream is None
        # The replacement stays open until the process ends.
        self._stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write text, with escapes for what the locale lacks; drop it if the stream is closed."""
        if self._is_closed and text:
            self.lost = OSError(errno.EBADF, os.strerror(errno.EBADF))
        with self._record_loss():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                return self._stream.write(
                    text.encode(encoding, "backslashreplace").decode(encoding)
                )

    def flush(self) -> None:
        """Flush the stream."""
        with self._record_loss():
            self._stream.flush()

    @contextlib.contextmanager
    def _record_loss(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def watched_output() -> Iterator[Output]:
    """Replace standard output with an `Output` inside the block, and flush it at the end."""
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
            _discard(1)  # otherwise Python would try again at exit


def say_error(line: str) -> None:
    """Print a line to standard error if it is writable."""
    try:
        print(f"onepass: {line}", file=sys.stderr, flush=True)
    except OSError:
        _discard(2)


def _open_closed() -> None:
    """Open closed standard descriptors on the null device, so that no file takes their numbers.

    Python sets such a stream to None; standard output stays None, which `Output` handles.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
