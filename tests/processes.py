"""Processes of a test: Python files side by side, with a time limit that none outlives."""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tiers

ROOT = Path(__file__).resolve().parent.parent
FORK_SERVER = Path(__file__).with_name("fork_server.py")
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}


class Process:
    """A Python file that runs in a process group of its own, its output in a file next to it."""

    def __init__(self, script, log, *words, environment=None):
        self._log = Path(log)
        with self._log.open("wb") as output:
            self._popen = self._started(
                [str(script), *map(str, words)],
                {**os.environ, **SETTINGS, **(environment or {})},
                output,
            )

    def _started(self, words, environment, output):
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self):
        return self._popen.pid

    def signal(self, number):
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


class TensorflowProcess(Process):
    """A Process that need not import TensorFlow, which takes seconds, before it begins."""

    def _started(self, words, environment, output):
        return Forked(words, environment, output)


class Forked:
    """Popen's interface to a process that the fork server started."""

    def __init__(self, words, environment, output):
        sys.audit(tiers.FORKED)
        self._answers, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = json.dumps({"words": words, "environment": environment}).encode()
        socket.send_fds(fork_server().requests, [request], [theirs.fileno(), output.fileno()])
        theirs.close()
        self.pid, self._status = int(self._answers.recv(32)), None

    def poll(self):
        if self._status is None and select.select([self._answers], [], [], 0)[0]:
            self.wait()
        return self._status

    def wait(self, timeout=None):
        if self._status is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout)
            self._status = int(self._answers.recv(32))
            self._answers.close()
        return self._status


class ForkServer:
    """The process of fork_server.py, and the socket for `requests`; it ends when this one does."""

    def __init__(self):
        self.requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, str(FORK_SERVER), str(theirs.fileno())],
                env={**os.environ, **SETTINGS},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self):
        self.requests.close()
        self._popen.wait()


fork_server = functools.cache(ForkServer)


def wait_until(condition, seconds=120):
    """Returns when the condition holds, or fails; the default is for a start of TensorFlow."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Started(contextlib.ExitStack):
    """Processes whose logs are in a folder; those left at the end of a block are killed."""

    def __init__(self, folder):
        super().__init__()
        self._folder, self._count = Path(folder), 0

    def start(self, script, *words, kind=TensorflowProcess, **environment):
        log = self._folder / f"process{self._count}.log"
        self._count += 1
        process = kind(script, log, *words, environment=environment)
        self.callback(process.kill)
        return process

    def start_tasks(self, tasks, script, *words, **environment):
        """Starts a process for every task of a cluster."""
        given = [{"TF_CONFIG": task.tf_config, **environment} for task in tasks]
        return [self.start(script, *words, **each) for each in given]


def run_together(script, folder, environments, timeout_seconds, words=()):
    """Runs the script once for each environment; returns [(exit status, output)]."""
    with Started(folder) as group:
        processes = [group.start(script, *words, **environment) for environment in environments]
        deadline = time.monotonic() + timeout_seconds
        statuses = [p.ended(max(deadline - time.monotonic(), 0.1)) for p in processes]
        return [(s, p.output()) for s, p in zip(statuses, processes, strict=True)]
