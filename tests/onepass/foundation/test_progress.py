"""Progress is a bar on a terminal and plain lines elsewhere."""

import fcntl
import io
import os
import pty
import struct
import termios
import threading
import types

import pytest

from onepass.foundation import progress
from onepass.foundation.progress import Progress, duration, during, heartbeat, in_time


def on_a_terminal(show, columns=70):
    """Return what `show(stream)` writes to a pseudo-terminal; 0 columns is one of unknown width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        show(stream)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            part = b""
        if not part:
            os.close(ours)
            return written.decode()
        written += part


def counting(stream, line_seconds=10.0):
    with Progress(4, "training", "step", done=1, line_seconds=line_seconds, stream=stream) as bar:
        bar.advance(loss=2.0)
        bar.say("step 2: dev 1.5")
        bar.advance(2, loss=0.5)


@pytest.mark.parametrize("columns", [70, 120, 0])
def test_a_terminal_gets_a_bar_with_count_rate_time_and_figures(columns):
    text = on_a_terminal(counting, columns)
    last = text.rstrip().split("\r")[-1]
    assert last.startswith("training: 100%") and "4/4" in last
    assert "step/s" in last and "loss=0.5" in last
    assert len(last) <= (columns or 80)


def test_a_line_in_between_does_not_tear_the_bar():
    lines = on_a_terminal(counting).split("\r\n")
    assert lines[0].split("\r")[-1] == "step 2: dev 1.5"
    assert len(lines) == 3 and lines[2] == ""


def test_without_a_terminal_a_short_job_says_only_what_it_has_to_say():
    stream = io.StringIO()
    counting(stream)
    assert stream.getvalue() == "step 2: dev 1.5\n"


def test_the_plural_of_batch_is_batches():
    stream = io.StringIO()
    with Progress(2, "evaluating", "batch", line_seconds=0.0, stream=stream) as bar:
        bar.advance()
    assert "evaluating: 1/2 batches, " in stream.getvalue()


def test_without_a_terminal_a_long_job_writes_plain_lines():
    stream = io.StringIO()
    counting(stream, line_seconds=0.0)
    first, said, second = stream.getvalue().splitlines()
    assert first == "training: 2/4 steps, unknown time left, loss 2"  # nothing to tell a rate by
    assert said == "step 2: dev 1.5"
    assert second.startswith("training: 4/4 steps, ") and " step/s, 0 s left, loss 0.5" in second
    assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (float("inf"), "unknown time"),
    ],
)
def test_durations_are_read_at_a_glance(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(("seconds", "said"), [(0, ""), (0.4, ""), (1, " in 1 s")])
def test_a_time_that_nobody_measured_is_not_said(seconds, said):
    assert in_time(seconds) == said


@pytest.fixture
def clock(monkeypatch):
    """A clock that only this test moves: `clock.now`, in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def last_line(clock, seconds, until=None):
    """Return the line after the last of steps that took so many seconds each."""
    stream = io.StringIO()
    with Progress(18_000, "training", "step", 0, 0.0, stream, until) as shown:
        for each in seconds:
            clock.now += each
            shown.advance()
    return stream.getvalue().splitlines()[-1]


def test_the_time_left_is_that_of_the_steady_rate_without_the_first_step(clock):
    line = last_line(clock, [60.0, 0.5, 0.5, 0.5])
    assert line == "training: 4/18000 steps, 2 step/s, 2 h 29 min left"


def test_the_time_left_is_not_more_than_the_limit_leaves(clock):
    assert last_line(clock, [60.0, 0.5, 0.5, 0.5], until=280.0).endswith(", 1 min 58 s left")
    assert last_line(clock, [60.0], until=461.5) == "training: 1/18000 steps, 4 min 00 s left"
    assert last_line(clock, [500.0, 1.0], until=500.0).endswith(", 0 s left")


def test_the_bar_shows_the_time_that_the_limit_leaves(clock):
    def show(stream):
        with Progress(18_000, "training", "step", stream=stream, until=190.0) as shown:
            for each in (60.0, 0.5, 0.5, 0.5):
                clock.now += each
                shown.advance()

    assert "<28 s, " in on_a_terminal(show, 120).rstrip().split("\r")[-1]


class Heard(io.StringIO):
    """A stream that tells when it was written to."""

    def __init__(self):
        super().__init__()
        self.is_heard = threading.Event()

    def write(self, text):
        count = super().write(text)
        self.is_heard.set()
        return count

    def next_line(self):
        self.is_heard.clear()
        assert self.is_heard.wait(60.0)
        return self.getvalue().splitlines()[-1]


def test_a_job_that_says_nothing_gives_a_sign_of_life(monkeypatch):
    stream = Heard()
    monkeypatch.setattr("sys.stderr", stream)
    with heartbeat("onepass export", 0.01, stream):
        assert stream.next_line().startswith("onepass export: ")
        with during("compiling"):
            while not (line := stream.next_line()).startswith("compiling: "):
                pass
            assert line.endswith(" s so far")
        with Progress(3, "evaluating", "image") as shown:
            shown.advance()
            while not (line := stream.next_line()).startswith("evaluating: "):
                pass
            assert line.startswith("evaluating: 1/3 images, ") and line.endswith(" s so far")
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
