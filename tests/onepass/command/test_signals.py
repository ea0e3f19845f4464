"""Signals that can be caught end every verb as Ctrl-C does; what SIGKILL leaves is removed."""

import os
import signal
import subprocess
import sys

import pytest
from processes import ROOT

from onepass.command import verbs as command
from onepass.command.verbs import ENDING
from onepass.foundation.files import beside, replacing, replacing_folder, sweep


def ended(monkeypatch, verb, work):
    """The status of a verb whose work is replaced."""
    monkeypatch.setitem(command.RUN, verb, lambda rest: work())
    return command.main([verb])


@pytest.mark.parametrize("verb", command.RUN)
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_leaves_no_file_and_is_said_in_one_line(
    tmp_path, monkeypatch, capsys, verb, number
):
    before = signal.signal(number, signal.SIG_DFL)  # a test runner may have one of its own

    def work():
        with replacing(tmp_path / "out.wav") as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), number)
        return 0

    try:
        assert ended(monkeypatch, verb, work) == 128 + number
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []
    line = f"onepass: interrupted by {signal.Signals(number).name}.\n"
    assert capsys.readouterr().err == line


def test_the_same_signal_once_more_does_not_stop_the_cleaning(tmp_path, monkeypatch):
    cleaned = []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends it to the process and its group
            os.kill(os.getpid(), signal.SIGHUP)
            cleaned.append(True)

    assert ended(monkeypatch, "compress", work) == 143 and cleaned


def test_a_verb_that_keeps_what_it_has_ends_by_the_signal_too(monkeypatch):
    def work():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except KeyboardInterrupt:
            return command.INTERRUPTED
        return 0

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    try:
        assert ended(monkeypatch, "sample", work) == 129
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        assert ended(monkeypatch, "sample", lambda: os.kill(os.getpid(), signal.SIGHUP) or 0) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


HOLDING = """
import sys
from pathlib import Path
from onepass.foundation.files import beside

out = Path(sys.argv[1])
with beside(out / "a.wav") as file, beside(out / "1", is_folder=True) as folder:
    file.write_bytes(bytes(1000))
    (folder / "weights").write_bytes(bytes(1000))
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.integration
def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    mine = {".onepass-notes", ".0123456789abcdef.wav", "x.wav"}
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    left = {path.name for path in tmp_path.iterdir()} - mine
    assert len(left) == 2
    with beside(tmp_path / "a.wav") as file, beside(tmp_path / "1", is_folder=True) as folder:
        with replacing_folder(tmp_path / "b") as made:
            (made / "weights").write_bytes(b"new")
        there = {path.name for path in tmp_path.iterdir()}
        assert there == mine | {file.name, folder.name, "b"}
        assert sweep(tmp_path) == []  # what is being written
