"""Progress is a bar on a terminal and plain lines elsewhere."""

import fcntl
import io
import itertools
import os
import pty
import struct
import termios
import threading

import pytest

from onepass.foundation import progress
from onepass.foundation.progress import Progress, duration, during, in_time, telling


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


def counting(stream):
    with Progress(4, "training", "step", done=1, stream=stream) as bar:
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


def test_without_a_terminal_a_short_job_says_only_what_it_has_to_say():
    stream = io.StringIO()
    counting(stream)
    assert stream.getvalue() == "step 2: dev 1.5\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3599.7, "1 h 00 min"),
     (3720, "1 h 02 min"), (float("inf"), "unknown time")],
)  # fmt: skip
def test_durations_are_read_at_a_glance_and_not_said_where_nobody_measured(seconds, shown):
    assert duration(seconds) == shown
    assert [in_time(measured) for measured in (0, 0.4, 1)] == ["", "", " in 1 s"]


class Clock:
    """A clock that only a test moves, in seconds; status lines are printed where it says."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def tick(self, seconds=10.0):
        """Move on, and let the thread of status lines look at the time once."""
        self.now += seconds
        with progress._changed:
            if progress._sources:
                progress._print_due()


@pytest.fixture
def clock(monkeypatch):
    """The clock of progress; the thread waits for a block to end, and is ticked by the test."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    wait = progress._changed.wait
    monkeypatch.setattr(progress._changed, "wait", lambda seconds: wait())
    return clock


def lines_of(stream):
    return stream.getvalue().splitlines()


def test_without_a_terminal_a_long_job_writes_plain_lines(clock):
    stream = io.StringIO()
    with Progress(4, "evaluating", "batch", done=1, stream=stream) as shown:
        clock.now += 5.0
        shown.advance(loss=2.0)
        clock.tick(5.0)  # nothing to tell a rate by
        shown.say("saved")
        shown.advance(2, loss=0.5)
        clock.tick()
    assert lines_of(stream) == [
        "evaluating: 2/4 batches, unknown time left, loss 2, 10 s so far",
        "saved",
        "evaluating: 4/4 batches, 0.133 batch/s, 0 s left, loss 0.5, 20 s so far",
    ]


def left(clock, seconds, until=None):
    """Return the time left after steps that took so many seconds each."""
    with Progress(18_000, "training", "step", 0, io.StringIO(), until) as shown:
        for each in seconds:
            clock.now += each
            shown.advance()
        return duration(shown.seconds_left)


def test_the_time_left_is_that_of_the_steady_rate_without_the_first_step(clock):
    assert left(clock, [60.0, 0.5, 0.5, 0.5]) == "2 h 29 min"


def test_the_time_left_is_not_more_than_the_limit_leaves(clock):
    assert left(clock, [60.0, 0.5, 0.5, 0.5], until=280.0) == "1 min 58 s"
    assert left(clock, [60.0], until=461.5) == "4 min 00 s"
    assert left(clock, [500.0, 1.0], until=500.0) == "0 s"


@pytest.mark.parametrize("seconds_apart", [0.3, 0.5, 3.0, 10.0, 11.0])
def test_whatever_is_done_there_is_one_line_in_ten_seconds(clock, monkeypatch, seconds_apart):
    written, times = io.StringIO(), []
    monkeypatch.setattr("sys.stderr", written)
    with during("onepass train"), Progress(700, "training", "step") as shown:
        while clock.now < 200.0:
            before = len(lines_of(written))
            clock.tick(seconds_apart)
            shown.advance()
            shown.say("said")
            times += [clock.now] * (len(lines_of(written)) - before - 1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) >= 100.0 / (10.0 + seconds_apart) - 1.0
    assert min(gaps) >= 9.99 and max(gaps) < 10.01 + seconds_apart


def test_the_innermost_job_has_the_line_and_gives_it_back(clock, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with during("onepass train"):
        clock.tick()
        with Progress(9, "training", "step"):
            clock.tick()
            with during("scoring"):
                clock.tick(9.0)
                clock.tick(1.0)
            with telling(lambda: None):
                clock.tick()
            clock.tick()
        clock.tick()
    subjects = [line.split(":")[0] for line in lines_of(written)]
    assert subjects == ["onepass train", "training", "scoring", "training", "onepass train"]


def test_a_closed_stream_does_not_stop_the_job(clock):
    stream = io.StringIO()
    with Progress(9, "training", "step", stream=stream) as shown:
        stream.close()
        clock.tick()
        shown.advance()
    assert shown.done == 1


def test_a_line_in_between_does_not_tear_the_bar(clock, monkeypatch):
    def working(stream):
        monkeypatch.setattr("sys.stderr", stream)
        with Progress(4, "training", "step") as shown:
            shown.advance()
            with during("scoring"):
                clock.tick()

    for show, line in ((counting, "step 2: dev 1.5"), (working, "scoring: 10 s so far")):
        lines = on_a_terminal(show).split("\r\n")
        assert lines[0].split("\r")[-1] == line
        assert len(lines) == 3 and lines[2] == ""


def test_the_bar_shows_the_time_that_the_limit_leaves(clock):
    def show(stream):
        with Progress(18_000, "training", "step", stream=stream, until=190.0) as shown:
            for each in (60.0, 0.5, 0.5, 0.5):
                clock.now += each
                shown.advance()

    assert "<28 s, " in on_a_terminal(show, 120).rstrip().split("\r")[-1]


class Heard(io.StringIO):
    """A stream that tells when a line was written to it."""

    def __init__(self):
        super().__init__()
        self.is_heard = threading.Event()

    def write(self, text):
        count = super().write(text)
        if text.endswith("\n"):
            self.is_heard.set()
        return count

    def next_line(self):
        self.is_heard.clear()
        assert self.is_heard.wait(60.0)
        return self.getvalue().splitlines()[-1]


def test_a_job_that_says_nothing_gives_a_sign_of_life(monkeypatch):
    stream = Heard()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    for _ in range(2):  # a thread ends with the outermost block, and another begins with the next
        with during("onepass export"):
            assert stream.next_line().startswith("onepass export: ")
            with Progress(3, "evaluating", "image") as shown:
                shown.advance()
                while not (line := stream.next_line()).startswith("evaluating: 1/3 images, "):
                    pass
                assert line.endswith(" s so far")
        assert "status lines" not in {thread.name for thread in threading.enumerate()}
