"""The processes of a strategy, started together, asked together, and never left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

from replicator.launch.tf_config import local_tasks
from replicator.runs.errors import UserError

Answer = dict[str, float]
ROOT = Path(__file__).resolve().parents[2]
MODULE = "onepass.bench.scaling.worker"
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Group:
    """The processes that run one strategy; all get the same requests.

    Args:
      name: what messages call it.
      environments: for each process, what its environment has beside this one's.
      limit_seconds: how long an answer may take.
      module: what they run, see worker.py.
      answering: how many of them answer, the first ones; None: all. The others serve those.
    """

    def __init__(
        self,
        name: str,
        environments: Sequence[Mapping[str, str]],
        limit_seconds: float,
        module: str = MODULE,
        answering: int | None = None,
    ):
        self.name, self._limit_seconds = name, limit_seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed by `stop`
        self._processes: list[subprocess.Popen] = []
        self._answering = answering
        self._pipes: list[Connection] = []
        try:
            for environment in environments:
                self._start(environment, module)
        except BaseException:
            self.stop()
            raise

    def _start(self, environment: Mapping[str, str], module: str) -> None:
        ours, theirs = Pipe()
        self._pipes.append(ours)
        inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno())],
                    env={**inherited, **CPU_ONLY, **module_path(), **environment},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,  # Ctrl-C is for this process, which stops them
                )
            )

    def send(self, **request) -> None:
        """Asks all processes; `received` has their answers."""
        message = json.dumps(request).encode()
        for pipe in self._pipes:
            with contextlib.suppress(ConnectionError):  # `received` tells why
                pipe.send_bytes(message)

    def received(self) -> list[Answer]:
        """The answer of each process to what was sent.

        Raises:
          UserError: one failed, ended, or took too long.
        """
        deadline = time.monotonic() + self._limit_seconds
        asked = self._pipes[: self._answering]
        return [self._answer(pipe, max(deadline - time.monotonic(), 0)) for pipe in asked]

    def ask(self, **request) -> list[Answer]:
        """`send` and `received`."""
        self.send(**request)
        return self.received()

    def _answer(self, pipe: Connection, seconds: float) -> Answer:
        try:
            if not pipe.poll(seconds):
                raise UserError(
                    f"{self.name} gave no answer within {self._limit_seconds:g} s; a larger "
                    "`--limit-seconds` waits longer."
                )
            answer = json.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise UserError(f"A process of {self.name} ended: {last_line(self._log)}") from None
        if "error" in answer:
            raise UserError(f"{self.name} failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Ends the processes and all that they have started."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._log.close()


def last_line(log: IO[bytes]) -> str:
    """The last line that a process has written to its log."""
    log.seek(0)
    lines = map(str.strip, log.read().decode(errors="replace").split("\n"))
    return next(filter(None, reversed(list(lines))), "it said nothing.")


def module_path() -> dict[str, str]:
    """PYTHONPATH for a process that imports this very package, installed or not."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def environments_of(strategy: str, processes: int) -> list[dict[str, str]]:
    """What each of the processes of a strategy has in its environment."""
    if strategy == "parameter_server":  # the chief is first, beside so many workers
        tasks = local_tasks(chief=1, ps=1, worker=processes)
    elif strategy == "multi_worker":
        tasks = local_tasks(worker=processes)
    else:
        return [{} for _ in range(processes)]
    return [{"TF_CONFIG": task.tf_config} for task in tasks]


@contextlib.contextmanager
def started(
    strategies: Mapping[str, tuple[str, int]], limit_seconds: float, **settings
) -> Iterator[dict[str, Group]]:
    """A context with a group for each name, gone when it ends.

    Their first answer, to come, says that they are ready.

    Args:
      strategies: by name, the strategy's word and its number of processes.
      limit_seconds: how long an answer may take.
      settings: the other arguments of `Worker`.
    """
    with contextlib.ExitStack() as stack:
        groups: dict[str, Group] = {}
        for name, (strategy, processes) in strategies.items():
            answering = 1 if strategy == "parameter_server" else None
            environments = environments_of(strategy, processes)
            groups[name] = Group(name, environments, limit_seconds, answering=answering)
            stack.callback(groups[name].stop)
        for name, group in groups.items():
            group.send(strategy=strategies[name][0], limit_seconds=limit_seconds, **settings)
        yield groups
