"""Progress is a bar on a terminal and plain lines elsewhere."""

import contextlib
import fcntl
import io
import itertools
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
    monkeypatch.setattr(progress, "_spoke", clock.now)
    monkeypatch.setattr(progress, "_last_status", clock.now)
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


class HeldEvent:
    """A stand-in of an event: the thread that waits for it waits until `take` lets it go on."""

    def __init__(self):
        self.waits, self._go, self.is_over = threading.Event(), threading.Event(), False

    def wait(self, seconds):
        self._go.clear()
        self.waits.set()
        assert self._go.wait(60.0)
        return self.is_over

    def set(self):
        self.is_over = True
        self._go.set()

    def take(self):
        """Let the waiting thread look once at the time, and return when it waits again."""
        self.waits.clear()
        self._go.set()
        assert self.waits.wait(60.0)


@pytest.fixture
def beats(monkeypatch):
    """The heartbeats that were begun, each of which looks at the time when a test says so."""
    made = []

    def event():
        made.append(HeldEvent())
        return made[-1]

    stand_in = types.SimpleNamespace(Event=event, Thread=threading.Thread)
    monkeypatch.setattr(progress, "threading", stand_in)
    return made


def subjects(written):
    """Return what each line tells of, up to its first colon or comma."""
    return [line.replace(",", ":").split(":")[0] for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("seconds_apart", [0.3, 0.5, 3.0, 10.0, 11.0])
@pytest.mark.parametrize("late", [0.0, 0.25])
def test_steps_and_silences_give_one_line_in_ten_seconds(
    clock, beats, monkeypatch, seconds_apart, late
):
    written, times = io.StringIO(), []
    monkeypatch.setattr("sys.stderr", written)
    with heartbeat("onepass train"):
        assert beats[0].waits.wait(60.0)
        clock.now += late  # the two begin at different times
        with Progress(700, "training", "step") as shown:
            while clock.now < 200.0:
                clock.now += seconds_apart
                before = len(subjects(written))
                beats[0].take()
                shown.advance()
                times += [clock.now] * (len(subjects(written)) - before)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) >= 100.0 / (10.0 + seconds_apart) - 1.0
    assert min(gaps) >= 9.99 and max(gaps) < 10.01 + seconds_apart


def test_a_job_inside_another_postpones_the_line_of_the_outer_one(clock, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with Progress(9, "training", "step") as outer:
        with Progress(9, "evaluating", "image") as inner:
            clock.now += 10.0
            inner.advance()
        clock.now += 9.0
        outer.advance()
        assert subjects(written) == ["evaluating"]
        clock.now += 1.0
        outer.advance()
    assert subjects(written) == ["evaluating", "training"]


def test_work_without_units_postpones_the_line_of_its_job(clock, beats, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with heartbeat("onepass train"), Progress(9, "training", "step") as shown:
        with shown.busy("scoring"):
            for beat in beats:
                assert beat.waits.wait(60.0)
            clock.now += 10.0
            for beat in beats:  # two heartbeats wake at one moment
                beat.take()
        shown.advance()
        assert subjects(written) == ["scoring"]
        clock.now += 10.0
        shown.advance()
    assert subjects(written) == ["scoring", "training"]


def test_two_heartbeats_that_wake_at_one_moment_say_one_line(clock, monkeypatch):
    written, asked = io.StringIO(), threading.Barrier(2)

    def line():
        with contextlib.suppress(threading.BrokenBarrierError):
            asked.wait(0.2)  # a second thread that asks before the first has said it is let through
        return "compiling"

    clock.now += 10.0
    with progress.telling(line):
        threads = [
            threading.Thread(target=progress._break_silence, args=(10.0, written)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert written.getvalue() == "compiling\n"


def test_lines_that_a_job_says_do_not_postpone_its_progress(clock):
    stream = io.StringIO()
    with Progress(9, "training", "step", stream=stream) as shown:
        for _ in range(4):
            clock.now += 5.0
            shown.say("saved")
            shown.advance()
    assert subjects(stream) == ["saved", "saved", "training", "saved", "saved", "training"]


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
