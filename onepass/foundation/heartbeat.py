"""Print status lines of a job that has printed nothing for a while."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

SECONDS = 10.0  # silence before a status line

# Functions that return a status line, or None to print nothing; the innermost block's is last.
_telling: list[Callable[[], str | None]] = []
_lock = threading.Lock()
_spoke = 0.0  # monotonic time at which the last line was printed


def spoke() -> None:
    """Record that a line was printed just now."""
    global _spoke
    _spoke = time.monotonic()


@contextlib.contextmanager
def telling(line: Callable[[], str | None]) -> Iterator[None]:
    """Make `line`, which may return None, the source of status lines inside the block."""
    with _lock:
        _telling.append(line)
    try:
        yield
    finally:
        with _lock:
            _telling.remove(line)


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """Report the block's elapsed time in status lines, for work without a known number of units."""
    start = time.monotonic()
    with telling(lambda: f"{what}: {time.monotonic() - start:.0f} s so far"):
        yield


@contextlib.contextmanager
def heartbeat(
    what: str, seconds: float | None = None, stream: TextIO | None = None
) -> Iterator[None]:
    """Print a line about the job `what`, or from `telling`, after `seconds` without any output."""
    ended, seconds = threading.Event(), SECONDS if seconds is None else seconds

    def beat() -> None:
        while not ended.wait(max(0.0, _spoke + seconds - time.monotonic())):
            if time.monotonic() - _spoke >= seconds:
                _speak(stream)
                spoke()

    spoke()
    with during(what):
        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _speak(stream: TextIO | None) -> None:
    with _lock:
        line = _telling[-1]()
    if line is not None:
        with contextlib.suppress(OSError, ValueError):  # the stream was closed
            print(line, file=sys.stderr if stream is None else stream, flush=True)
