"""The process of a command: signals that end it, and standard streams that cannot be used.

Standard input, output and error may be closed, full, or have no reader.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

# Signals that end a process from outside and can be caught.
ENDING = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGALRM),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class Interrupted(KeyboardInterrupt):
    """Raised when a signal such as SIGTERM asks the process to stop, as Ctrl-C does."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclasses.dataclass
class Received:
    """The signal that interrupted a block, if any."""

    number: int | None = None


@contextlib.contextmanager
def signals_interrupt() -> Iterator[Received]:
    """Raise `Interrupted` in the block for the first signal in `ENDING` that arrives.

    A signal can arrive twice, because shells, terminals and `timeout` may send it both to a process
    and to its group. Signals that are ignored, such as SIGHUP under nohup, or that already have a
    handler are left alone. Outside the main thread, which is the only one that can install
    handlers, this does nothing.
    """
    received, replaced = Received(), []

    def raise_once(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = number
            raise Interrupted(number)

    if threading.current_thread() is threading.main_thread():
        replaced = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, raise_once)
    try:
        yield received
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


class Output:
    """Standard output that remembers the first error in writing to it as `lost`."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write text to the stream."""
        return self._call(self._stream.write, text)

    def flush(self) -> None:
        """Flush the stream."""
        self._call(self._stream.flush)

    def _call(self, method: Callable, *arguments: str) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            self.lost = self.lost or error
            raise

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def watched_output() -> Iterator[Output]:
    """Replace standard output with an `Output` inside the block, and flush it at the end.

    What the locale cannot write is escaped.
    """
    _open_closed()
    before = sys.stdout
    if hasattr(before, "reconfigure"):  # but not if it is a stand-in
        before.reconfigure(errors="backslashreplace")
    output = Output(before)
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

    Python sets such a stream to None. Writing to standard output fails as if it were closed, while
    what is written to standard error is dropped.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
