"""One task of a cluster on this machine, under a guard, with what it writes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicator.launch import reaper as guard
from replicator.launch.tasks import Task

LONGEST_LINE = 1 << 20  # bytes, of a program that writes no line breaks


class Guarded:
    """A task's command, started.

    Args:
      task: which.
      command: the words that it runs.
      environment: variables beside TF_CONFIG.
      grace_seconds: between asking it to end and killing it, once this process is gone.
      log_folder: where a file keeps its output too, at the end of an older one.
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
        # Once it has ended: 0 to 255, or minus the signal that ended it.
        self.status: int | None = None
        self._unfinished = b""
        self._settings = (command, environment, grace_seconds, log_folder)
        self._log = None
        if log_folder is not None:
            self._log = os.open(log_folder / f"{task.name.replace(' ', '-')}.log", *APPENDING)
        variables = {"TF_CONFIG": task.tf_config, "PYTHONUNBUFFERED": "1", **environment}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(grace_seconds), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C comes through this process, once
        )
        os.set_blocking(self.fileno(), False)

    def again(self) -> "Guarded":
        """The same task, started anew."""
        return Guarded(self.task, *self._settings)

    def fileno(self) -> int:
        """The pipe with its output, to wait for."""
        return self._guard.stdout.fileno()  # type: ignore[union-attr]

    @property
    def runs(self) -> bool:
        """Whether it had not ended when last looked at."""
        return self.status is None

    def has_ended(self) -> bool:
        """Whether it has ended since the last look; `status` says how."""
        if self.runs and self._guard.poll() is not None:
            self.status = self._guard.returncode
            return True
        return False

    def ask(self, number: int) -> None:
        """Sends a signal to all that it has started."""
        if self.runs:
            self._guard.send_signal(number)

    def kill(self) -> None:
        """Ends all that it has started, at once."""
        with contextlib.suppress(OSError):
            os.write(self._guard.stdin.fileno(), b"k")  # type: ignore[union-attr]

    def lines(self, is_last: bool = False) -> list[bytes]:
        """The lines that it has written since the last call, each with its name in front.

        is_last: read to the end, and give the line that has no end too.
        """
        data = self._unfinished
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.fileno(), 1 << 16):
                self._keep(piece)
                data += piece
                if not is_last:
                    break
        *lines, self._unfinished = data.split(b"\n")
        if self._unfinished and (is_last or len(self._unfinished) > LONGEST_LINE):
            lines.append(self._unfinished)
            self._unfinished = b""
        prefix = f"[{self.task.name}] ".encode()
        return [prefix + line.rstrip(b"\r") + b"\n" for line in lines]

    def close(self) -> None:
        """Ends it at once if it runs, and closes its files."""
        self.kill()
        self._guard.wait()
        for pipe in (self._guard.stdin, self._guard.stdout):
            pipe.close()  # type: ignore[union-attr]
        if self._log is not None:
            os.close(self._log)

    def _keep(self, data: bytes) -> None:
        if self._log is not None:
            os.write(self._log, data)


APPENDING = (os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
