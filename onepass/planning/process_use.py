"""Measure this process's use of the machine: time, busy cores and memory."""

import contextlib
import ctypes
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from onepass.foundation.provenance import processor

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_STAT, _GPUS = Path("/proc/stat"), Path("/proc/driver/nvidia/gpus")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt(3)
_SMALL_BYTES, _LARGE_BYTES = 2**16, 2**25


def this_machine() -> dict[str, Any]:
    """Return what identifies this machine in a profile: processor, accelerators, versions, ..."""
    gpus = [path.read_text() for path in sorted(_GPUS.glob("*/information"))]
    models = [line.split(":")[1].strip() for text in gpus for line in text.splitlines()[:1]]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "accelerators": models,
        "system": platform.system(),
        "jaxlib": _version("jaxlib"),
        "tensorflow": _version("tensorflow"),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def time_rounds(step: Callable[[], object], rounds: int, least_seconds: float) -> dict[str, Any]:
    """Time a step in rounds, and measure the share of cores that it keeps busy.

    A round runs steps until `least_seconds` have passed. No round starts after `rounds` times
    `least_seconds`, so long steps have fewer rounds.

    Returns:
      A dict with these entries:
        seconds: median step time of each round.
        busy_share: share that the step uses of the processor time that other processes leave free,
          from 0 to 1; 1 if the system does not count it.
        free_share: share of all processor time that other processes left free; 1 if not counted.
    """
    own, idle, start = time.process_time(), _idle_seconds(), time.perf_counter()
    seconds = [_median(step, least_seconds)]
    while len(seconds) < rounds and time.perf_counter() - start < rounds * least_seconds:
        seconds.append(_median(step, least_seconds))
    own = time.process_time() - own
    idle = max(_idle_seconds() - idle, 0.0)
    all_cores = (os.cpu_count() or 1) * (time.perf_counter() - start)
    counted = _idle_seconds() > 0 and own > 0
    return {
        "seconds": seconds,
        "busy_share": own / (own + idle) if counted else 1.0,
        "free_share": (own + idle) / all_cores if counted else 1.0,
    }


def _median(step: Callable[[], object], least_seconds: float) -> float:
    taken: list[float] = []
    while not taken or sum(taken) < least_seconds:
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def paired_seconds(calls: Sequence[Callable[[], object]], least_seconds: float) -> float:
    """Return the mean of the median step times of `calls` that run at once, a thread each."""
    together = threading.Barrier(len(calls))

    def repeat_step(step: Callable[[], object]) -> float:
        together.wait()
        return _median(step, least_seconds)

    with ThreadPoolExecutor(len(calls)) as threads:
        return statistics.fmean(threads.map(repeat_step, calls))


def _idle_seconds() -> float:
    """Return the idle time of all cores since the machine started, or 0 if it is not counted."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")


def needed_bytes(step: Callable[[], object], held_bytes: float) -> float | None:
    """Return the bytes that a step in this process needs; None if they cannot be measured.

    `held_bytes` is the size of the arguments, which are already allocated.
    """
    try:
        with _fresh_allocations():
            before = _status_bytes("VmRSS")
            _CLEAR.write_text("5")  # resets the peak
            step()
            return held_bytes + _status_bytes("VmHWM") - before
    except (OSError, AttributeError, StopIteration):
        return None


@contextlib.contextmanager
def _fresh_allocations() -> Iterator[None]:
    """Make glibc allocate all but small memory blocks from the system inside the block."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # returns freed memory to the system
    libc.mallopt(_MMAP_THRESHOLD, _SMALL_BYTES)
    try:
        yield
    finally:  # thresholds that glibc reaches after large allocations
        libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))
