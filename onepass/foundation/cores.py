"""Count the processor cores of this process, and use them by threads."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onepass.foundation.errors import require
from onepass.foundation.progress import Progress

Result = TypeVar("Result")

_HAS_AFFINITY = hasattr(os, "sched_setaffinity")


@functools.cache
def _core_of_thread() -> Callable[[], int]:
    return ctypes.CDLL(None).sched_getcpu


def cores(threads: int | None = None) -> int:
    """Return the number of cores to use, by default all that this process may run on."""
    if threads is not None:
        require(threads >= 1, "threads", "at least 1", threads)
        return threads
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Apart:
    """A group of threads that work at the same time, each started on a different core.

    A woken thread often starts on the core of the thread that woke it, and the system moves it to a
    free core only after milliseconds, longer than a short task takes. Threads are moved once, when
    they start, but not bound to a core. On systems without `sched_setaffinity`, nothing is moved.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Return `function(*arguments)`, computed here, on a core where no other thread began."""
        if _HAS_AFFINITY:
            self._move()
        return function(*arguments)

    def _move(self) -> None:
        core = _core_of_thread()()
        if core in self._taken:
            allowed = os.sched_getaffinity(0)
            if free := allowed - self._taken:
                with contextlib.suppress(OSError):  # forbidden in some containers
                    os.sched_setaffinity(0, free)
                    os.sched_setaffinity(0, allowed)
                core = _core_of_thread()()
        self._taken.add(core)


Item = TypeVar("Item")


def in_threads(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    what: str,
    unit: str,
    workers: int | None = None,
) -> list[Result]:
    """Return [function(item) for item in items], computed in threads, and show progress.

    The error of the first item that fails is raised; items that no thread has started by then are
    skipped.
    """
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        results = []
        with Progress(len(items), what, unit) as progress:
            for result in pool.map(function, items):
                results.append(result)
                progress.advance()
        return results
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
