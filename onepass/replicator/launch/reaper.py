"""Run a command, and end all its processes that are left over or outlive the launcher.

    python reaper.py GRACE_SECONDS COMMAND ...    a program: the standard library only

Standard input is a pipe whose other end only the launcher has open. A byte in it kills every
process that the command has started. End of file, which occurs when the launcher ends, even by
SIGKILL, sends them SIGTERM and, GRACE_SECONDS later, SIGKILL, as do processes that the command
leaves running, which this process adopts (prctl(2), PR_SET_CHILD_SUBREAPER). Other signals are
forwarded to the command's process group. The exit status, or the signal, is the command's.
"""

import contextlib
import ctypes
import math
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALL_SIGNALS = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
POLL_SECONDS = 0.05
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # options of Linux's prctl
CANNOT_RUN = 127


class Reaper:
    """A running command whose processes are killed `grace_seconds` after SIGTERM."""

    def __init__(self, grace_seconds: float, command: list[str]):
        self._grace_seconds = grace_seconds
        self._status: int | None = None
        self._kill_at = math.inf
        self._was_signalled = False
        self._wakeups, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup)
        _prctl(ADOPT_ORPHANS, 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
        caught = [n for n in FORWARDED if signal.getsignal(n) != signal.SIG_IGN]
        self._pid = _start_process(command, [*caught, signal.SIGPIPE, signal.SIGXFSZ])
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in caught:
            signal.signal(number, self._forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)

    def wait(self) -> int:
        """Wait until all processes have ended; return the command's status, or -N for signal N."""
        launcher: list[int] = [sys.stdin.fileno()]
        while self._reap() is None or descendants():
            self._kill_in_time()
            is_waiting = self._status is None and self._kill_at == math.inf
            timeout = None if is_waiting else POLL_SECONDS
            ready, _, _ = select.select([self._wakeups, *launcher], [], [], timeout)
            if self._wakeups in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeups, 4096)
            if launcher and launcher[0] in ready:
                if os.read(launcher.pop(), 1):
                    self._kill_at = time.monotonic()
                else:
                    self._terminate()
        return os.waitstatus_to_exitcode(self._status or 0)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._was_signalled = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def _terminate(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_seconds)
        if not self._was_signalled:
            self._was_signalled = True
            for process in descendants():
                _send(process, signal.SIGTERM)

    def _kill_in_time(self) -> None:
        if self._status is not None:
            self._terminate()
        if time.monotonic() >= self._kill_at:
            for process in descendants():
                _send(process, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Return the wait status of the command once it has ended; also reap adopted orphans."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == self._pid:
                    self._status = status
                if process == 0:
                    break
        return self._status


def descendants() -> list[int]:
    """Return the ids of running processes that descend from this one."""
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


def _start_process(command: list[str], restored: list[signal.Signals]) -> int:
    reaper, process = os.getpid(), os.fork()
    if process:
        with contextlib.suppress(OSError):  # the child may have done so already
            os.setpgid(process, process)
        return process
    try:
        os.setpgid(0, 0)
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(CANNOT_RUN)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in restored:
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
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_as(status: int) -> NoReturn:
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command wrote its own core dump
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    _end_as(Reaper(float(sys.argv[1]), sys.argv[2:]).wait())
