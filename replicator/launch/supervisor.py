"""Runs the tasks of a cluster on this machine: their output together, one end for all of them."""

import contextlib
import dataclasses
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from replicator.launch.supervised_process import Guarded
from replicator.launch.tasks import Task, gpu_shares
from replicator.runs.errors import UserError
from replicator.runs.interrupt import StopRequest

LOOK_SECONDS = 0.05
SETTLE_SECONDS = 3.0  # for those who notice by themselves that another one is gone
SHELL_SIGNAL = 128  # a shell's status for a signal is this and its number


@dataclasses.dataclass(frozen=True)
class Orders:
    """What to run, and how patiently.

    command: the words that every task runs.
    grace_seconds: between asking a process to end and killing it.
    restarts: how often tasks that a signal has ended are started again.
    log_folder: where each task's output is kept as well.
    """

    command: Sequence[str]
    grace_seconds: float = 30.0
    restarts: int = 0
    log_folder: Path | None = None

    def __post_init__(self):
        """Raises UserError for a number out of range."""
        if not self.grace_seconds > 0:
            raise UserError(f"`--grace-seconds` must be above 0, got {self.grace_seconds:g}.")
        if self.restarts < 0:
            raise UserError(f"`--restarts` must be 0 or more, got {self.restarts}.")


@dataclasses.dataclass
class _Course:
    """How one run of the cluster is going.

    failed: the first task that ended as it should not.
    stubborn: those that had to be killed.
    signal_name: what this process was asked to end with.
    ask_at, kill_at: on the monotonic clock, when the rest will be asked to end, and killed.
    """

    processes: list[Guarded]
    failed: Guarded | None = None
    stubborn: list[Guarded] = dataclasses.field(default_factory=list)
    signal_name: str | None = None
    ask_at: float | None = None
    kill_at: float | None = None
    serving_ends: bool = False

    @property
    def is_done(self) -> bool:
        """Whether all that end by themselves have done their work."""
        return all(p.status == 0 for p in self.processes if not p.task.serves)

    @property
    def running(self) -> list[Guarded]:
        """Those that still run, and end by themselves."""
        return [p for p in self.processes if p.runs and not p.task.serves]

    @property
    def serving(self) -> list[Guarded]:
        """Those that still run, and serve until they are ended."""
        return [p for p in self.processes if p.runs and p.task.serves]


class Supervisor:
    """Runs a cluster, again and again if need be, until it is done.

    Args:
      make_tasks: the tasks of the cluster, the one that writes first; called for every start.
      orders: what to run.
    """

    def __init__(self, make_tasks: Callable[[], list[Task]], orders: Orders):
        self._make_tasks, self._orders = make_tasks, orders
        self._restarts = 0
        self._is_heard = True

    def run(self) -> int:
        """The exit status: 0, that of the first task that failed, or 128 + a signal.

        SIGINT, SIGTERM and SIGHUP are handed on once; a second one kills all.
        """
        with StopRequest() as stop:
            while True:
                course = _Course([])
                try:
                    self._start(course)
                    while course.running or course.serving:
                        self._turn(course, stop)
                finally:
                    for process in course.processes:
                        process.close()
                if not self._starts_again(course):
                    return _exit_status(course)

    def _start(self, course: _Course) -> None:
        orders, tasks = self._orders, self._make_tasks()
        for task, environment in zip(tasks, gpu_shares(tasks), strict=True):
            course.processes.append(
                Guarded(task, orders.command, environment, orders.grace_seconds, orders.log_folder)
            )

    def _turn(self, course: _Course, stop: StopRequest) -> None:
        """Shows what there is to show, and reacts to what has happened."""
        ready, _, _ = select.select([p for p in course.processes if p.runs], [], [], LOOK_SECONDS)
        for process in ready:
            self._write(process.lines())
        ended = [p for p in course.processes if p.has_ended()]
        for process in sorted(ended, key=_likelihood_of_being_first):
            self._write(process.lines(is_last=True))
            self._note(course, process)
        wish = stop.signal_name or (None if self._is_heard else "SIGTERM")
        if wish and not course.signal_name:
            self._hand_on(course, wish)
        if not course.running and not course.serving_ends:
            self._end_serving(course)
        self._end_in_time(course)

    def _note(self, course: _Course, process: Guarded) -> None:
        """Takes in how a task has ended."""
        task, status = process.task, process.status or 0
        expected = status == 0
        if task.serves:
            expected = course.serving_ends or course.is_done
        asked = course.signal_name is not None and signal_of(status) is not None
        if expected or asked or course.failed is not None or process in course.stubborn:
            return
        if task.serves and task.kind == "worker" and self._may_start_again(course):
            self._say(f"{in_words(process)}; it starts again ({self._count()}).")
            process.close()
            course.processes[course.processes.index(process)] = process.again()
            return
        course.failed = process
        rest = f"; the others end within {self._orders.grace_seconds:g} s"
        self._say(f"{in_words(process)}{rest if course.running or course.serving else ''}.")
        if course.signal_name is None:
            patience = self._orders.grace_seconds
            course.ask_at = time.monotonic() + min(SETTLE_SECONDS, patience / 2)
            course.kill_at = time.monotonic() + patience

    def _hand_on(self, course: _Course, signal_name: str) -> None:
        """Servers are left in peace, so that the chief can save what they hold."""
        course.signal_name = signal_name
        course.kill_at = time.monotonic() + self._orders.grace_seconds
        self._say(
            f"{signal_name} is handed on; what runs after {self._orders.grace_seconds:g} s is "
            "killed, after a second Ctrl-C at once."
        )
        _ask(course.running, signal.Signals[signal_name])

    def _end_serving(self, course: _Course) -> None:
        course.serving_ends = True
        kill_at = time.monotonic() + self._orders.grace_seconds
        course.kill_at = kill_at if course.kill_at is None else min(kill_at, course.kill_at)
        _ask(course.serving, signal.SIGTERM)

    def _end_in_time(self, course: _Course) -> None:
        now = time.monotonic()
        if course.ask_at is not None and now >= course.ask_at:
            course.ask_at = None
            _ask(course.running, signal.SIGTERM)
        if course.kill_at is not None and now >= course.kill_at:
            course.kill_at = None
            for process in course.running:
                course.stubborn.append(process)
                self._say(
                    f"{process.task.name} still ran after {self._orders.grace_seconds:g} s and "
                    "was killed."
                )
            for process in [*course.running, *course.serving]:
                process.kill()

    def _may_start_again(self, course: _Course) -> bool:
        return course.signal_name is None and self._restarts < self._orders.restarts

    def _starts_again(self, course: _Course) -> bool:
        """Whether a signal, or the end of patience, has ended a task, and all shall start anew."""
        by_signal = course.failed is not None and signal_of(course.failed.status or 0) is not None
        if not (by_signal or course.stubborn) or not self._may_start_again(course):
            return False
        self._say(f"all start again ({self._count()}).")
        return True

    def _count(self) -> str:
        self._restarts += 1
        return f"restart {self._restarts} of {self._orders.restarts}"

    def _write(self, lines: Iterable[bytes]) -> None:
        """Writes to standard output; when nobody reads it any more, all are ended."""
        data = b"".join(lines)
        try:
            while data and self._is_heard:
                data = data[os.write(sys.stdout.fileno(), data) :]
        except BrokenPipeError:
            self._is_heard = False

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"onepass launch: {text}", file=sys.stderr, flush=True)


def signal_of(status: int) -> signal.Signals | None:
    """The signal that ended a process, or its shell, or with whose status it left."""
    number = -status if status < 0 else status - SHELL_SIGNAL
    return signal.Signals(number) if number in {s.value for s in signal.Signals} else None


def code_of(status: int) -> int:
    """What a shell calls the status of a process."""
    return status if status >= 0 else SHELL_SIGNAL - status


def in_words(process: Guarded) -> str:
    """How a task has ended."""
    status = process.status or 0
    number = signal_of(status)
    how = f"was ended by {number.name} (status {code_of(status)})" if number else ""
    return f"{process.task.name} {how or f'left with status {status}'}"


def _likelihood_of_being_first(process: Guarded) -> tuple[bool, bool]:
    """A key that sorts tasks that were seen to have ended at once: causes before effects."""
    return (process.status or 0) >= 0, process.task.serves


def _ask(processes: Iterable[Guarded], number: signal.Signals) -> None:
    for process in processes:
        process.ask(number)


def _exit_status(course: _Course) -> int:
    if course.failed is not None:
        return code_of(course.failed.status or 1)  # 0, of one that should go on serving
    if course.stubborn:
        return SHELL_SIGNAL + signal.SIGKILL
    left = [p.status for p in course.processes if not p.task.serves]
    if course.signal_name is None or not any(left):
        return 0
    return SHELL_SIGNAL + signal.Signals[course.signal_name]
