"""Progress is a bar on a terminal and plain lines elsewhere."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from replicator.runs.progress import Progress, duration


def on_a_terminal(show, columns=70):
    """What `show(stream)` writes to a pseudo-terminal; 0 columns is one of unknown width."""
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


def test_without_a_terminal_a_long_job_writes_plain_lines():
    stream = io.StringIO()
    counting(stream, line_seconds=0.0)
    first, said, second = stream.getvalue().splitlines()
    assert first.startswith("training: 2/4 steps, ") and first.endswith(" left, loss 2")
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
