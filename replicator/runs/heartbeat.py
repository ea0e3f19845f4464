"""A sign of life of a job that has said nothing for a while."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

SECONDS = 10.0  # without a line

# What tells where the job is, the innermost last; each gives a line, or None to stay silent.
_telling: list[Callable[[], str | None]] = []
_lock = threading.Lock()
_spoke = 0.0  # when the last line was printed, on the monotonic clock


def spoke() -> None:
    """Note that a line was printed just now."""
    global _spoke
    _spoke = time.monotonic()


@contextlib.contextmanager
def telling(line: Callable[[], str | None]) -> Iterator[None]:
    """A context in which the function says where the job is."""
    with _lock:
        _telling.append(line)
    try:
        yield
    finally:
        with _lock:
            _telling.remove(line)


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """A context of a part of a job that cannot count its progress, such as a compilation."""
    start = time.monotonic()
    with telling(lambda: f"{what}: {time.monotonic() - start:.0f} s so far"):
        yield


@contextlib.contextmanager
def heartbeat(what: str, seconds: float = SECONDS, stream: TextIO | None = None) -> Iterator[None]:
    """A context in which a line says where the job is whenever none was printed for a while.

    Args:
      what: the whole job, for the time in which no part of it tells more.
      seconds: without a line.
      stream: to print on; None: standard error, as it is then.
    """
    ended = threading.Event()

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
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            print(line, file=sys.stderr if stream is None else stream, flush=True)
