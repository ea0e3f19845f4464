"""Show progress: a bar on a terminal, and elsewhere a line every ten seconds."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TextIO, TypeVar

from onepass.foundation.files import plural

Item = TypeVar("Item", covariant=True)


class Items(Sized, Iterable[Item], Protocol):
    """Items that are counted before they are read."""


SECONDS = 10.0  # between status lines
COLUMNS = 80  # if the width of the terminal is unknown
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<LEFT, {rate_fmt}{postfix}]"

# What returns a status line, or None, and where to print it; that of the innermost block is last.
_sources: list[tuple[Callable[[], str | None], TextIO | None]] = []
_changed = threading.Condition(threading.RLock())
_thread: threading.Thread | None = None  # it alone prints status lines, so there is one at a time
_last = 0.0  # monotonic time of the last status line, or at which the outermost block began


@contextlib.contextmanager
def telling(line: Callable[[], str | None], stream: TextIO | None = None) -> Iterator[None]:
    """Print `line()`, unless None, every ten seconds in the block, but not in a nested one."""
    global _thread, _last
    source = (line, stream)
    with _changed:
        _sources.append(source)
        if _thread is None or not _thread.is_alive():  # as in a forked process
            _last = time.monotonic()
            _thread = threading.Thread(target=_print_lines, name="status lines", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _changed:
            _sources.remove(source)
            ending = None if _sources else _thread
            _changed.notify_all()
        if ending is not None:
            ending.join()


def _print_lines() -> None:
    with _changed:
        while _sources:
            _changed.wait(max(0.0, _last + SECONDS - time.monotonic()))
            _print_due()


def _print_due() -> None:
    global _last
    if _sources and time.monotonic() - _last >= SECONDS:
        _last = time.monotonic()
        line, stream = _sources[-1]
        if (text := line()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the stream was closed
                say(text, stream)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line, by default on standard error, above the bar if there is one."""
    stream = sys.stderr if stream is None else stream
    if "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(text, file=stream)
        stream.flush()
    else:
        print(text, file=stream, flush=True)


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """Report the block's elapsed time in status lines, for work without a known number of units."""
    start = time.monotonic()
    with telling(lambda: f"{what}: {time.monotonic() - start:.0f} s so far"):
        yield


class Progress:
    """The progress of a long job, as in `with Progress(total, "training", "step") as progress`."""

    def __init__(
        self,
        total: int,
        title: str,
        unit: str,
        done: int = 0,
        stream: TextIO | None = None,
        until: float | None = None,  # monotonic time by which the job ends at the latest
    ):
        self.stream = stream if stream is not None else sys.stderr
        self.total, self.title, self.unit, self.done = total, title, unit, done
        self._until, self._start = until, time.monotonic()
        # Units and time at the first count; the rate excludes the compilation before it.
        self._first: tuple[int, float] | None = None
        self._figures: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._bar = self._make_bar() if self.stream.isatty() else None

    def _make_bar(self) -> Any:
        from tqdm import tqdm  # which takes as long to import as the rest of a help text

        known = os.get_terminal_size(self.stream.fileno()).columns > 0
        return tqdm(
            total=self.total,
            initial=self.done,
            desc=self.title,
            unit=self.unit,
            file=self.stream,
            dynamic_ncols=known,
            ncols=None if known else COLUMNS,
            smoothing=0.1,
            bar_format=BAR.replace("LEFT", duration(math.inf)),
        )

    def __enter__(self) -> "Progress":
        """Begin to print status lines, and return this object."""
        self._stack.enter_context(telling(self._status, self.stream))
        return self

    def __exit__(self, *exception: object) -> None:
        """Print no more lines, and close the bar."""
        self._stack.close()
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, **figures: float) -> None:
        """Add `count` completed units, and show the given values next to the count."""
        self.done += count
        self._figures = {name: f"{value:.4g}" for name, value in figures.items()}
        is_first, self._first = self._first is None, self._first or (self.done, time.monotonic())
        if self._bar is not None:
            if is_first:
                self._bar.unpause()
            self._bar.bar_format = BAR.replace("LEFT", duration(self.seconds_left))
            self._bar.set_postfix(self._figures, refresh=False)
            self._bar.update(count)

    def say(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        say(text, self.stream)

    @property
    def seconds_left(self) -> float:
        """Seconds to the end at the current rate, or to `until` if sooner; infinite if unknown."""
        left = (self.total - self.done) / self._rate if self._rate else math.inf
        at_most = math.inf if self._until is None else self._until - time.monotonic()
        return max(0.0, min(left, at_most))

    @property
    def _rate(self) -> float:
        """Units per second since the first call of `advance`; 0 before the second call."""
        done, start = self._first or (self.done, 0.0)
        return (self.done - done) / max(time.monotonic() - start, 1e-9)

    def _status(self) -> str | None:
        if self._bar is not None:
            self._bar.refresh()
            return None
        parts = [f"{self.title}: {self.done}/{self.total} {plural(self.unit)}"]
        parts += [f"{self._rate:.3g} {self.unit}/s"] if self._rate else []
        parts += [f"{duration(self.seconds_left)} left"]
        parts += [f"{name} {value}" for name, value in self._figures.items()]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.0f} s so far"])


def show_progress(items: Items[Item], title: str, unit: str) -> Iterator[Item]:
    """Yield the items, and show how many of them the caller is done with."""
    with Progress(len(items), title, unit) as progress:
        for item in items:
            yield item
            progress.advance()


def duration(seconds: float) -> str:
    """Format seconds as `1 h 02 min`, `3 min 20 s` or `12 s`."""
    if seconds == float("inf"):
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def in_time(seconds: float) -> str:
    """Format seconds as ` in 3 min 20 s`; "" for 0, which means not measured."""
    return f" in {duration(seconds)}" if round(seconds) else ""
