"""Runs a command so that nothing of it is left when it has ended or its launcher is gone.

    python guard.py GRACE_SECONDS COMMAND ...    a program of its own: the standard library alone

Standard input is a pipe whose other end the launcher alone holds. A byte in it kills everything
that the command has started; its end (the launcher is gone, even by SIGKILL) asks with SIGTERM,
and kills GRACE_SECONDS later. Other signals are handed on to the command's process group. What
the command leaves running is ended in the same way. The guard ends as the command ended, by the
same signal if it was one.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALL_SIGNALS = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
LOOK_SECONDS = 0.05
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # of Linux's prctl
CANNOT_RUN = 127


class Guard:
    """One running command.

    Args:
      grace_seconds: between asking and killing.
      command: words, the first a program.
    """

    def __init__(self, grace_seconds: float, command: list[str]):
        self._grace_seconds = grace_seconds
        self._status: int | None = None
        self._kill_at: float | None = None
        self._was_asked = False
        self._wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        _prctl(ADOPT_ORPHANS, 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        caught = [n for n in HANDED_ON if signal.getsignal(n) != signal.SIG_IGN]
        self._pid = _started(command, [*caught, signal.SIGPIPE, signal.SIGXFSZ])
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in caught:
            signal.signal(number, self._hand_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)

    def wait(self) -> int:
        """The command's exit status, minus the signal if one ended it, when nothing is left."""
        launcher: list[int] = [sys.stdin.fileno()]
        while self._reap() is None or descendants():
            self._kill_in_time()
            timeout = None if self._status is None and self._kill_at is None else LOOK_SECONDS
            ready, _, _ = select.select([self._wakes, *launcher], [], [], timeout)
            if self._wakes in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes, 4096)
            if launcher and launcher[0] in ready:
                self._obey(os.read(launcher.pop(), 1))
        return os.waitstatus_to_exitcode(self._status or 0)

    def _hand_on(self, number, frame) -> None:
        self._was_asked = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def _obey(self, word: bytes) -> None:
        if word:
            self._kill_at = time.monotonic()
        else:
            self._end()

    def _end(self) -> None:
        """Asks, unless somebody did, and sets the time at which asking is over."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_seconds
        if not self._was_asked:
            self._was_asked = True
            for process in descendants():
                _send(process, signal.SIGTERM)

    def _kill_in_time(self) -> None:
        if self._status is not None:
            self._end()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for process in descendants():
                _send(process, signal.SIGKILL)

    def _reap(self) -> int | None:
        """The wait status of the command, once it has ended; buries orphans on the way."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == self._pid:
                    self._status = status
                if process == 0:
                    break
        return self._status


def descendants() -> list[int]:
    """The processes below this one that still run."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found = children.get(os.getpid(), [])
    for process in found:
        found.extend(children.get(process, []))
    return found


def _started(command: list[str], given_back: list[signal.Signals]) -> int:
    """The process of the command, in a group of its own, with its signals as they were."""
    guard, process = os.getpid(), os.fork()
    if process:
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(process, process)
        return process
    try:
        os.setpgid(0, 0)
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(CANNOT_RUN)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in given_back:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _prctl(option: int, value: int) -> None:
    """Does nothing where there is no such call, on other systems than Linux."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_as(status: int) -> NoReturn:
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped its own
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    _end_as(Guard(float(sys.argv[1]), sys.argv[2:]).wait())
