"""`onepass launch`: a cluster of processes on this machine, or commands for other machines."""

import contextlib
import dataclasses
import functools
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from onepass.foundation.interrupt import StopRequest
from onepass.foundation.rules import UserError, require
from onepass.replicator.launch import reaper as reaper
from onepass.replicator.launch import tf_config

MAX_LINE_BYTES = 1 << 20  # longer lines are split
POLL_SECONDS = 0.05
SETTLE_SECONDS = 3.0  # time for tasks to end on their own after a failure
SHELL_SIGNAL = 128  # a shell's exit status for signal N is 128 + N
WORKERS = 2
DESCRIPTION = """Run a command as a cluster of processes, each with its TF_CONFIG. The command, any
program, follows ` -- `. `--strategy` is added to an onepass training command that lacks it.

  onepass launch --workers 2 -- onepass train wavenet-cpu-16k --data speech --workdir run
  onepass launch --workers 2 --servers 1 --restarts 20 -- onepass train ...
  onepass launch --hosts a:2222,b:2222 -- onepass train ...    # prints each machine's command

Every line of output starts with the task's name. The first failure ends all tasks and determines
the exit status. Ctrl-C, SIGTERM and SIGHUP are forwarded, so training saves and exits."""


@dataclasses.dataclass(frozen=True)
class LaunchArguments:
    """The number of processes and their machines."""

    workers: int | None = None
    """Number of processes that train; None: 2, or as many as --hosts implies."""
    servers: int = 0
    """Number of parameter servers; if above 0, a chief is added, and workers run steps without
    waiting for each other."""
    restarts: int = 0
    """Maximum number of restarts after a signal ends a process or a process hangs: of all
    processes, or only of the worker if there are servers."""
    grace_seconds: float = 30.0
    """Seconds between asking a process to end and killing it."""
    log_dir: Path | None = None
    """Folder for a copy of each task's output, such as worker-1.log."""
    hosts: str = ""
    """HOST:PORT,... of other machines, one per task: the task that writes to disk, then workers,
    then servers. Print the command for each machine instead of starting anything."""

    @property
    def addresses(self) -> list[str]:
        """Addresses in `hosts`, HOST:PORT each."""
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


def check(given: LaunchArguments) -> None:
    """Raise UserError if an argument is invalid; `task_counts` checks the numbers of tasks."""
    require(given.grace_seconds > 0, "--grace-seconds", "above 0", f"{given.grace_seconds:g}")
    require(given.restarts >= 0, "--restarts", "at least 0", given.restarts)
    for host in given.addresses:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"`--hosts` must be HOST:PORT, separated by commas, got {host!r}.")


class _Process:
    """The process that runs a task's command, with TF_CONFIG and `environment` around it."""

    def __init__(
        self,
        task: tf_config.Task,
        command: Sequence[str],
        environment: Mapping[str, str],
        given: LaunchArguments,
    ):
        self.task = task
        # Exit status after the end: 0 to 255, or minus the number of the signal that ended it.
        self.status: int | None = None
        self.environment, self._unfinished = environment, b""
        name = f"{task.name.replace(' ', '-')}.log"
        path = Path(os.devnull) if given.log_dir is None else given.log_dir / name
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        variables = {"TF_CONFIG": task.tf_config, "PYTHONUNBUFFERED": "1", **environment}
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(given.grace_seconds), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C reaches it only through this process
        )
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        """Return the file descriptor of the process's output, for `select`."""
        return self._reaper.stdout.fileno()  # type: ignore[union-attr]

    @property
    def is_running(self) -> bool:
        return self.status is None

    def has_ended(self) -> bool:
        """Return whether the process has ended since the last call, and set `status`."""
        if self.is_running and self._reaper.poll() is not None:
            self.status = self._reaper.returncode
            return True
        return False

    def send_signal(self, number: int) -> None:
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
        self.kill()
        self._reaper.wait()
        for pipe in (self._reaper.stdin, self._reaper.stdout):
            pipe.close()  # type: ignore[union-attr]
        os.close(self._log)


@dataclasses.dataclass
class _ClusterRun:
    """The state of one run of the cluster, with a process per task."""

    processes: list[_Process]
    failed: _Process | None = None
    killed: list[_Process] = dataclasses.field(default_factory=list)
    signal_name: str | None = None
    term_at: float = math.inf  # monotonic time at which running tasks get SIGTERM
    kill_at: float = math.inf  # ... and SIGKILL
    is_ending_servers: bool = False

    @property
    def running(self) -> list[_Process]:
        """Running tasks that end on their own."""
        return [p for p in self.processes if p.is_running and not p.task.serves]

    @property
    def serving(self) -> list[_Process]:
        """Running tasks that serve until they are ended."""
        return [p for p in self.processes if p.is_running and p.task.serves]


@dataclasses.dataclass
class _Supervisor:
    """Runs the cluster of `make_tasks()`, chief first, until it has finished, with restarts."""

    _make_tasks: Callable[[], list[tf_config.Task]]
    _command: Sequence[str]
    _given: LaunchArguments
    _restarts: int = 0
    _is_output_open: bool = True

    def run(self) -> int:
        """Run the cluster; return 0, the status of the first failed task, or 128 + a signal.

        SIGINT, SIGTERM and SIGHUP are forwarded once; a second signal kills all tasks.
        """
        with StopRequest() as stop:
            while True:
                run = _ClusterRun([])
                try:
                    tasks = self._make_tasks()
                    for task, environment in zip(tasks, tf_config.gpu_shares(tasks), strict=True):
                        run.processes.append(
                            _Process(task, self._command, environment, self._given)
                        )
                    while run.running or run.serving:
                        self._poll(run, stop)
                finally:
                    for process in run.processes:
                        process.close()
                if not self._shall_restart(run):
                    return _exit_status(run)

    def _poll(self, run: _ClusterRun, stop: StopRequest) -> None:
        running = [process for process in run.processes if process.is_running]
        for process in select.select(running, [], [], POLL_SECONDS)[0]:
            self._write(process.lines())
        ended = [p for p in run.processes if p.has_ended()]
        # Causes before consequences: tasks that a signal ended first, servers last.
        for process in sorted(ended, key=lambda p: ((p.status or 0) >= 0, p.task.serves)):
            self._write(process.lines(is_last=True))
            self._note(run, process)
        requested = stop.signal_name or (None if self._is_output_open else "SIGTERM")
        if requested and not run.signal_name:
            self._forward(run, requested)
        if not run.running and not run.is_ending_servers:
            run.is_ending_servers = True
            run.kill_at = min(run.kill_at, time.monotonic() + self._given.grace_seconds)
            _send(run.serving, signal.SIGTERM)
        self._end_in_time(run)

    def _note(self, run: _ClusterRun, process: _Process) -> None:
        task, status = process.task, process.status or 0
        expected = status == 0
        if task.serves:
            are_done = all(p.status == 0 for p in run.processes if not p.task.serves)
            expected = run.is_ending_servers or are_done
        was_signalled = run.signal_name is not None and _signal_of(status) is not None
        if expected or was_signalled or run.failed is not None or process in run.killed:
            return
        if task.serves and task.kind == "worker" and self._may_restart(run):
            self._log(f"{_describe_exit(process)}; it restarts ({self._count()}).")
            process.close()
            fresh = _Process(task, self._command, process.environment, self._given)
            run.processes[run.processes.index(process)] = fresh
            return
        run.failed, grace_seconds = process, self._given.grace_seconds
        rest = f"; the others are ended within {grace_seconds:g} s"
        self._log(f"{_describe_exit(process)}{rest if run.running or run.serving else ''}.")
        if run.signal_name is None:
            run.term_at = time.monotonic() + min(SETTLE_SECONDS, grace_seconds / 2)
            run.kill_at = time.monotonic() + grace_seconds

    def _forward(self, run: _ClusterRun, signal_name: str) -> None:
        run.signal_name = signal_name
        run.kill_at = time.monotonic() + self._given.grace_seconds
        self._log(
            f"{signal_name} forwarded; tasks that still run after "
            f"{self._given.grace_seconds:g} s, or after a second Ctrl-C, are killed."
        )
        _send(run.running, signal.Signals[signal_name])

    def _end_in_time(self, run: _ClusterRun) -> None:
        now = time.monotonic()
        if now >= run.term_at:
            run.term_at = math.inf
            _send(run.running, signal.SIGTERM)
        if now >= run.kill_at:
            run.kill_at = math.inf
            within = f"within {self._given.grace_seconds:g} s"
            for process in run.running:
                run.killed.append(process)
                self._log(f"{process.task.name} did not end {within} and was killed.")
            for process in [*run.running, *run.serving]:
                process.kill()

    def _may_restart(self, run: _ClusterRun) -> bool:
        return run.signal_name is None and self._restarts < self._given.restarts

    def _shall_restart(self, run: _ClusterRun) -> bool:
        by_signal = run.failed is not None and _signal_of(run.failed.status or 0) is not None
        if not (by_signal or run.killed) or not self._may_restart(run):
            return False
        self._log(f"all tasks restart ({self._count()}).")
        return True

    def _count(self) -> str:
        self._restarts += 1
        return f"restart {self._restarts} of {self._given.restarts}"

    def _write(self, lines: Iterable[bytes]) -> None:
        data = b"".join(lines)
        try:
            while data and self._is_output_open:
                data = data[os.write(sys.stdout.fileno(), data) :]
        except BrokenPipeError:
            self._is_output_open = False

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"onepass launch: {text}", file=sys.stderr, flush=True)


def _signal_of(status: int) -> signal.Signals | None:
    """Return the signal that ended a process, for a shell status 128 + N, or None."""
    number = -status if status < 0 else status - SHELL_SIGNAL
    return signal.Signals(number) if number in set(signal.Signals) else None


def _shell_status(status: int) -> int:
    return status if status >= 0 else SHELL_SIGNAL - status


def _describe_exit(process: _Process) -> str:
    status = process.status or 0
    number = _signal_of(status)
    cause = f"was ended by {number.name} (status {_shell_status(status)})" if number else ""
    return f"{process.task.name} {cause or f'exited with status {status}'}"


def _send(processes: Iterable[_Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def _exit_status(run: _ClusterRun) -> int:
    if run.failed is not None:
        return _shell_status(run.failed.status or 1)  # 0: a server ended unexpectedly
    if run.killed:
        return SHELL_SIGNAL + signal.SIGKILL
    statuses = [p.status for p in run.processes if not p.task.serves]
    if run.signal_name is None or not any(statuses):
        return 0
    return SHELL_SIGNAL + signal.Signals[run.signal_name]


def run(
    arguments: list[str], parse: Callable[..., LaunchArguments], own_program: Sequence[str]
) -> int:
    """Run `onepass launch ARGUMENTS`; `own_program` is the command of this installation."""
    middle = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:middle], arguments[middle + 1 :]
    given = parse(LaunchArguments, own, "onepass launch", description=DESCRIPTION)
    if not command:
        raise UserError(
            "The command must follow ` -- `, as in onepass launch --workers 2 -- onepass train ... "
            "(see onepass launch --help)."
        )
    check(given)
    counts = _counts(given)
    command = tf_config.with_strategy(command, counts)
    if given.hosts:
        for task in tf_config.tasks_at(counts, given.addresses):
            print(f"# on {task.address}: {task.name}")
            print(f"TF_CONFIG={shlex.quote(task.tf_config)} {shlex.join(command)}")
        return 0
    command = _runnable(command, own_program)
    if given.log_dir is not None:
        given.log_dir.mkdir(parents=True, exist_ok=True)
    gpus = tf_config.visible_gpus()
    if 0 < len(gpus) < (workers := counts["worker"]):
        fewer = f"{len(gpus)} GPU(s) for {workers} workers: all workers run on the CPU."
        print(f"onepass launch: {fewer}", file=sys.stderr)
    make_tasks = functools.partial(tf_config.local_tasks, **counts)
    return _Supervisor(make_tasks, command, given).run()


def _counts(given: LaunchArguments) -> dict[str, int]:
    workers, hosts = given.workers, given.addresses
    if workers is None and hosts:
        workers = len(hosts) - (given.servers + 1 if given.servers else 0)
    counts = tf_config.task_counts(WORKERS if workers is None else workers, given.servers)
    if given.hosts and len(hosts) != (size := sum(counts.values())):
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        rule = f"have {size} addresses HOST:PORT ({kinds})"
        raise UserError(f"`--hosts` must {rule}, got {len(hosts)}.")
    return counts


def _runnable(command: list[str], own_program: Sequence[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        raise UserError("`onepass launch` runs processes on Linux only; --hosts works everywhere.")
    if command[0] == tf_config.OWN_PROGRAM:
        return [*own_program, *command[1:]]
    if shutil.which(command[0]) is None:
        raise UserError(f"There is no program `{command[0]}`.")
    return command
