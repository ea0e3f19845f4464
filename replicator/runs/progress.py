"""Progress: a bar with rate and remaining time on a terminal, plain lines elsewhere."""

import os
import sys
import time

from tqdm import tqdm

COLUMNS = 80  # of a terminal of unknown width


class Progress:
    """The progress of a long job; `with Progress(total, "training", "step") as progress`.

    Without a terminal it prints a line every `line_seconds`, so none for a shorter job.
    """

    def __init__(
        self,
        total: int,
        title: str,
        unit: str,
        done: int = 0,
        line_seconds: float = 10.0,
        stream=None,
    ):
        self.stream = stream if stream is not None else sys.stderr
        self.total, self.title, self.unit, self.done = total, title, unit, done
        self._first_done, self._start = done, time.monotonic()
        self._line_seconds, self._next_line = line_seconds, self._start + line_seconds
        self._bar = None
        if self.stream.isatty():
            known = os.get_terminal_size(self.stream.fileno()).columns > 0
            self._bar = tqdm(
                total=total,
                initial=done,
                desc=title,
                unit=unit,
                file=self.stream,
                dynamic_ncols=known,
                ncols=None if known else COLUMNS,
                smoothing=0.1,
            )

    def __enter__(self) -> "Progress":
        """Itself."""
        return self

    def __exit__(self, *exception) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1, **figures: float) -> None:
        """Counts `count` more units, and shows the figures beside the count."""
        self.done += count
        if self._bar is not None:
            self._bar.set_postfix({k: f"{v:.4g}" for k, v in figures.items()}, refresh=False)
            self._bar.update(count)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + self._line_seconds
            self._line(figures)

    def say(self, text: str) -> None:
        """Prints a line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def _line(self, figures: dict[str, float]) -> None:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._first_done) / elapsed
        left = (self.total - self.done) / rate if rate else float("inf")
        shown = "".join(f", {name} {value:.4g}" for name, value in figures.items())
        print(
            f"{self.title}: {self.done}/{self.total} {self.unit}s, {rate:.3g} {self.unit}/s, "
            f"{duration(left)} left{shown}",
            file=self.stream,
            flush=True,
        )


def duration(seconds: float) -> str:
    """Seconds as `1 h 02 min`, `3 min 20 s` or `12 s`."""
    if seconds == float("inf"):
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
