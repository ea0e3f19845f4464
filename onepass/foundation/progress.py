"""Show progress: a bar on a terminal, plain lines elsewhere, and a line in long silences."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TextIO, TypeVar

from onepass.foundation.folders import plural

Item = TypeVar("Item", covariant=True)


class Items(Sized, Iterable[Item], Protocol):
    """What can be counted before it is read."""


SECONDS = 10.0  # silence before a status line

# Functions that return a status line, or None to print nothing; the innermost block's is last.
_telling: list[Callable[[], str | None]] = []
_lock = threading.RLock()  # a source of status lines may itself print one
_spoke = 0.0  # monotonic time at which the last line was printed
_last_status = -math.inf  # monotonic time at which the last status line was printed


def spoke() -> None:
    """Record that a line was printed just now."""
    global _spoke
    _spoke = time.monotonic()


def report_status() -> None:
    """Record that a status line was printed just now, by whomever: the next one waits for it."""
    global _last_status
    spoke()
    _last_status = _spoke


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
            _break_silence(seconds, stream)

    spoke()
    with during(what):
        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _break_silence(seconds: float, stream: TextIO | None) -> None:
    """Print a status line if no line was printed in the last `seconds`, by any thread."""
    with _lock:
        if time.monotonic() - _spoke < seconds:
            return
        line = _telling[-1]()
        spoke()
        if line is not None:
            report_status()
    if line is not None:
        with contextlib.suppress(OSError, ValueError):  # the stream was closed
            print(line, file=sys.stderr if stream is None else stream, flush=True)


COLUMNS = 80  # if the width of the terminal is unknown
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{left}, {rate_fmt}{postfix}]"


class Progress:
    """The progress of a long job, as in `with Progress(total, "training", "step") as progress`.

    Without a terminal, it prints a line every `line_seconds`, and none for a shorter job. Inside a
    `heartbeat`, a line also appears when no unit has been completed for a while. A status line of
    any other job or of the heartbeat postpones the next one.

    Args:
      until: monotonic time by which the job ends at the latest; None: no limit.
    """

    def __init__(
        self,
        total: int,
        title: str,
        unit: str,
        done: int = 0,
        line_seconds: float = SECONDS,
        stream: TextIO | None = None,
        until: float | None = None,
    ):
        self.stream = stream if stream is not None else sys.stderr
        self.total, self.title, self.unit, self.done = total, title, unit, done
        self._line_seconds = line_seconds
        self._until, self._start = until, time.monotonic()
        # Units and time at the first count; the rate excludes the compilation before it.
        self._first: tuple[int, float] | None = None
        self._figures: dict[str, float] = {}
        self._stack = contextlib.ExitStack()
        self._bar = self._make_bar() if self.stream.isatty() else None

    def _make_bar(self) -> Any:
        from tqdm import tqdm  # which takes as long to import as the rest of a help text

        progress = self

        class Bar(tqdm):
            @property
            def format_dict(self) -> dict[str, Any]:
                return {**super().format_dict, "left": duration(progress.seconds_left)}

        known = os.get_terminal_size(self.stream.fileno()).columns > 0
        return Bar(
            total=self.total,
            initial=self.done,
            desc=self.title,
            unit=self.unit,
            file=self.stream,
            dynamic_ncols=known,
            ncols=None if known else COLUMNS,
            smoothing=0.1,
            bar_format=BAR,
        )

    def __enter__(self) -> "Progress":
        """Register with the heartbeat, and return this object."""
        self._stack.enter_context(telling(self._sign_of_life))
        return self

    def __exit__(self, *exception: object) -> None:
        """Unregister from the heartbeat, and close the bar."""
        self._stack.close()
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, **figures: float) -> None:
        """Add `count` completed units, and show the given values next to the count."""
        self.done += count
        self._figures = figures
        if self._bar is not None and self._first is None:
            self._bar.unpause()
        self._first = self._first or (self.done, time.monotonic())
        if self._bar is not None:
            self._bar.set_postfix({k: f"{v:.4g}" for k, v in figures.items()}, refresh=False)
            self._bar.update(count)
            spoke()
        elif self._claim_line():
            print(self._line(), file=self.stream, flush=True)

    def _claim_line(self) -> bool:
        """Return whether a status line is due; if so, count it as printed."""
        with _lock:
            is_due = time.monotonic() - max(self._start, _last_status) >= self._line_seconds
            if is_due:
                report_status()
            return is_due

    def say(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)
        spoke()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Say now and then that work without units goes on inside the block."""
        start = time.monotonic()

        def say() -> None:
            self.say(f"{what}, {time.monotonic() - start:.0f} s so far")
            report_status()

        with heartbeat(what), telling(say):
            yield

    @property
    def rate(self) -> float:
        """Units per second since the first call of `advance`; 0 before the second call."""
        if self._first is None:
            return 0.0
        done, start = self._first
        return (self.done - done) / max(time.monotonic() - start, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Seconds to the end at the current rate, or to `until` if sooner; infinite if unknown."""
        rate = self.rate
        left = (self.total - self.done) / rate if rate else math.inf
        at_most = math.inf if self._until is None else self._until - time.monotonic()
        return max(0.0, min(left, at_most))

    def _sign_of_life(self) -> str | None:
        if self._bar is not None:
            self._bar.refresh()
        if self._bar is not None or self.stream is not sys.stderr:
            return None
        return f"{self._line()}, {time.monotonic() - self._start:.0f} s so far"

    def _line(self) -> str:
        rate = self.rate
        shown = "".join(f", {name} {value:.4g}" for name, value in self._figures.items())
        return (
            f"{self.title}: {self.done}/{self.total} {plural(self.unit)}, "
            + (f"{rate:.3g} {self.unit}/s, " if rate else "")
            + f"{duration(self.seconds_left)} left{shown}"
        )


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
