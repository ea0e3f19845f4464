"""Exit status of a command: 2 for a mistake, 1 for a failure, and one line with the reason."""

import errno
import io
import os
import subprocess
import sys

import pytest
from processes import ROOT

import onepass
from onepass.command import verbs as command
from onepass.foundation.rules import UserError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def shell(line):
    """The status and the output of a line of shell, in which $ONEPASS is the command."""
    done = subprocess.run(
        ["sh", "-c", line],
        env={**ENVIRONMENT, "ONEPASS": f"{sys.executable} -m onepass"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


VERSION = f"onepass {onepass.__version__}\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("$ONEPASS --version 2>&-", (0, VERSION, "")),
        ("$ONEPASS trian 2>&-", (2, "", "")),
        (
            "$ONEPASS trian >&-",
            (2, "", "onepass: there is no verb `trian`; did you mean `train`?\n"),
        ),
        ("$ONEPASS --version >&- 2>&-", (1, "", "")),
        ("$ONEPASS --version <&- >&- 2>/dev/full", (1, "", "")),
    ],
)
def test_a_closed_stream_changes_no_status_but_of_what_is_lost(line, expected):
    assert shell(line) == expected


@pytest.mark.integration
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("$ONEPASS --version >&-", "Bad file descriptor"),
        ("$ONEPASS --version >/dev/full", "No space left on device"),
        ("$ONEPASS train --help >/dev/full", "No space left on device"),
    ],
)
def test_an_output_that_is_lost_is_said_in_one_line(line, reason, buffered):
    error = f"onepass: standard output cannot be written: {reason}.\n"
    assert shell(f"PYTHONUNBUFFERED={buffered} {line}") == (1, "", error)


def test_what_the_locale_cannot_write_is_escaped(monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    name = "caf\udce9 \u2013 caf\xe9"
    monkeypatch.setitem(command.RUN, "plan", lambda rest: print(name) or 0)
    assert command.main(["plan"]) == 0
    assert stream.detach().getvalue() == b"caf\\udce9 \\u2013 caf\xe9\n"


@pytest.mark.integration
def test_an_output_that_nobody_reads_any_more_ends_as_by_its_signal():
    error = "onepass: standard output cannot be written: Broken pipe.\n"
    assert without_a_reader("--version") == (141, error)
    assert without_a_reader("trian") == (2, shell("$ONEPASS trian")[2])


def without_a_reader(*words):
    """The status and the errors of the command where nobody reads its output any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "onepass", *words],
            env=ENVIRONMENT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "step.npz")
MISSING = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "git")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("`x` must be 1."), 2, "`x` must be 1."),
        (caused(UserError("No such folder."), MISSING), 2, "No such folder."),
        (caused(UserError("Cannot write."), FULL), 1, "Cannot write."),
        (caused(UserError("It ended."), caused(UserError("Cannot write."), FULL)), 1, "It ended."),
        (FULL, 1, "failed: No space left on device: step.npz"),
        (MISSING, 1, "failed: No such file or directory: git"),
        (ValueError("a shape\nof ours"), 1, "failed: ValueError: a shape of ours"),
        (KeyError("mel"), 1, "failed: KeyError: 'mel'"),
        (MemoryError(), 1, "failed: MemoryError"),
    ],
    ids=repr,
)
def test_only_what_the_user_can_do_otherwise_is_a_usage_error(
    mistake, monkeypatch, error, status, line
):
    def run(rest):
        raise error

    monkeypatch.setitem(command.RUN, "plan", run)
    hint = " (ONEPASS_TRACEBACK=1 prints the traceback)" if line.startswith("failed") else ""
    assert mistake("plan", status=status) == line + hint
    monkeypatch.setenv("ONEPASS_TRACEBACK", "1")
    with pytest.raises(type(error)):
        onepass.main(["plan"])


@pytest.mark.parametrize("seed", [-1, 2**64])
@pytest.mark.parametrize(
    "words",
    [["evaluate", "shipped"], ["train", "wavenet-smoke", "--data", "a", "--workdir", "b"]],
    ids=["evaluate", "train"],
)
def test_a_seed_that_names_no_noise_is_a_usage_error(mistake, words, seed):
    line = mistake(*words, "--seed", seed)
    assert line.startswith(f"--seed must be in [0, 2^64), got {seed} (see onepass ")


@pytest.mark.parametrize("option", [("--spoken", "0"), ("--seconds", "nan"), ("--seconds", "-1")])
def test_a_quickstart_that_could_measure_nothing_is_a_usage_error(mistake, option, tmp_path):
    line = mistake("quickstart", *option, "--out", tmp_path / "out")
    assert f"`{option[0].removeprefix('--')}` must be " in line
    assert line.endswith("(see onepass quickstart --help)") and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["report.md", "recorded.wav", "digits-growing.gif"])
def test_a_quickstart_does_not_write_over_a_file_unasked(mistake, tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    line = mistake("quickstart", "--out", tmp_path)
    assert line == f"{tmp_path / name} already exists; --overwrite replaces it."
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
