"""Processes of a test: Python files side by side, with a time limit that none outlives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Process:
    """A Python file that runs in a process group of its own, its output in a file beside it."""

    def __init__(self, script, log, *words, environment=None):
        settings = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
        }
        self._log = Path(log)
        with self._log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, str(script), *map(str, words)],
                env={**os.environ, **settings, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self._popen.pid

    def signal(self, number):
        """Sends a signal to the process and all that it has started."""
        os.killpg(self._popen.pid, number)

    def is_running(self):
        return self._popen.poll() is None

    def ended(self, timeout_seconds):
        """Returns the exit status, or kills the process and fails."""
        try:
            return self._popen.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {timeout_seconds} s:\n{self.output()[-3000:]}"
            ) from None

    def output(self):
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self):
        if self.is_running():
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()


def run_together(script, folder, environments, timeout_seconds, words=()):
    """Runs the script once for each environment; returns [(exit status, output)]."""
    processes = []
    try:
        for k, environment in enumerate(environments):
            log = Path(folder) / f"process{k}.log"
            processes.append(Process(script, log, *words, environment=environment))
        deadline = time.monotonic() + timeout_seconds
        statuses = [p.ended(max(deadline - time.monotonic(), 0.1)) for p in processes]
        return [(s, p.output()) for s, p in zip(statuses, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()
