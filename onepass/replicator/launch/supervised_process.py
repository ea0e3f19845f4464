"""A cluster's task as a process on this machine, run under a reaper."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onepass.replicator.launch import reaper as reaper
from onepass.replicator.launch.tf_config import Task

MAX_LINE_BYTES = 1 << 20  # longer lines are split


class SupervisedProcess:
    """The process that runs a task's command, with TF_CONFIG and `environment` around it.

    When the launcher ends, the command has `grace_seconds` between SIGTERM and SIGKILL. Output is
    also appended to a file in `log_folder`, if given.
    """

    def __init__(
        self,
        task: Task,
        command: Sequence[str],
        environment: Mapping[str, str],
        grace_seconds: float,
        log_folder: Path | None,
    ):
        self.task = task
        # Exit status after the end: 0 to 255, or minus the number of the signal that ended it.
        self.status: int | None = None
        self._unfinished = b""
        self._settings = (command, environment, grace_seconds, log_folder)
        self._log = None
        if log_folder is not None:
            self._log = os.open(log_folder / f"{task.name.replace(' ', '-')}.log", *APPENDING)
        variables = {"TF_CONFIG": task.tf_config, "PYTHONUNBUFFERED": "1", **environment}
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(grace_seconds), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C reaches it only through this process
        )
        os.set_blocking(self.fileno(), False)

    def restart_task(self) -> "SupervisedProcess":
        """Start and return a new process for the same task."""
        return SupervisedProcess(self.task, *self._settings)

    def fileno(self) -> int:
        """Return the file descriptor of the process's output, for `select`."""
        return self._reaper.stdout.fileno()  # type: ignore[union-attr]

    @property
    def is_running(self) -> bool:
        """True until `has_ended` finds that the process has ended."""
        return self.status is None

    def has_ended(self) -> bool:
        """Return whether the process has ended since the last call, and set `status`."""
        if self.is_running and self._reaper.poll() is not None:
            self.status = self._reaper.returncode
            return True
        return False

    def send_signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        if self.is_running:
            self._reaper.send_signal(number)

    def kill(self) -> None:
        """Kill the command and every process that it has started."""
        with contextlib.suppress(OSError):
            os.write(self._reaper.stdin.fileno(), b"k")  # type: ignore[union-attr]

    def lines(self, is_last: bool = False) -> list[bytes]:
        """Return new lines, prefixed with the task's name, and if `is_last` an unfinished one."""
        data = self._unfinished
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.fileno(), 1 << 16):
                if self._log is not None:
                    os.write(self._log, piece)
                data += piece
                if not is_last:
                    break
        *lines, self._unfinished = data.split(b"\n")
        if self._unfinished and (is_last or len(self._unfinished) > MAX_LINE_BYTES):
            lines.append(self._unfinished)
            self._unfinished = b""
        prefix = f"[{self.task.name}] ".encode()
        return [prefix + line.rstrip(b"\r") + b"\n" for line in lines]

    def close(self) -> None:
        """Kill the process if it is running, and close its files."""
        self.kill()
        self._reaper.wait()
        for pipe in (self._reaper.stdin, self._reaper.stdout):
            pipe.close()  # type: ignore[union-attr]
        if self._log is not None:
            os.close(self._log)


APPENDING = (os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
