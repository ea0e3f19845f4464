"""What a process takes of its machine: the cores that it keeps busy, the memory that it needs."""

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

from replicator.runs.provenance import processor

_STATUS, _CLEAR, _STAT = (
    Path("/proc/self/status"),
    Path("/proc/self/clear_refs"),
    Path("/proc/stat"),
)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_SMALL_BYTES, _LARGE_BYTES = 2**16, 2**25
_GPUS = Path("/proc/driver/nvidia/gpus")


def this_machine() -> dict[str, Any]:
    """What a profile is of: processor, cores, accelerators and the compiler's version."""
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


def timed(
    step: Callable[[], object], rounds: int, least_seconds: float, steps: int = 1
) -> dict[str, Any]:
    """Seconds of a step, the median of each round, and the share of cores that it keeps busy.

    A round takes a step, and more until `least_seconds` are over; `rounds` times those are enough,
    so that of a long step there are fewer rounds.

    steps: of a round, at least. Processes that make a step together must all make as many: with
    `least_seconds` 0 there is one round, of so many.

    busy_share: of the processor time that other processes leave over, from 0 to 1; 1 where the
    system does not count. free_share: what they left over, of all.
    """
    own, idle, start = time.process_time(), _idle_seconds(), time.perf_counter()
    seconds = [_median(step, least_seconds, steps)]
    while len(seconds) < rounds and time.perf_counter() - start < rounds * least_seconds:
        seconds.append(_median(step, least_seconds, steps))
    own = time.process_time() - own
    idle = max(_idle_seconds() - idle, 0.0)
    all_cores = (os.cpu_count() or 1) * (time.perf_counter() - start)
    counted = _idle_seconds() > 0 and own > 0
    return {
        "seconds": seconds,
        "busy_share": own / (own + idle) if counted else 1.0,
        "free_share": (own + idle) / all_cores if counted else 1.0,
    }


def _median(step: Callable[[], object], least_seconds: float, steps: int) -> float:
    taken: list[float] = []
    while len(taken) < steps or sum(taken) < least_seconds:
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def beside_seconds(
    calls: Sequence[Callable[[], object]], least_seconds: float, steps: int = 1
) -> float:
    """Seconds of a step while others are made, the mean of their medians.

    Each call, a step, has a thread of its own, in which it is made until `least_seconds` are over,
    and so many times at least. They begin together.
    """
    together = threading.Barrier(len(calls))

    def repeated(step: Callable[[], object]) -> float:
        together.wait()
        return _median(step, least_seconds, steps)

    with ThreadPoolExecutor(len(calls)) as threads:
        return statistics.fmean(threads.map(repeated, calls))


def _idle_seconds() -> float:
    """Of all cores together, since the machine started; 0 where the system does not count."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")


def needed_bytes(step: Callable[[], object], held_bytes: float) -> float | None:
    """Memory of a step that runs in the memory of this process; None where the system cannot say.

    held_bytes: of the arguments that are there already.
    """
    try:
        with _fresh_allocations():
            before = _status_bytes("VmRSS")
            _CLEAR.write_text("5")  # the peak begins anew
            step()
            return held_bytes + _status_bytes("VmHWM") - before
    except (OSError, AttributeError, StopIteration):
        return None


@contextlib.contextmanager
def _fresh_allocations() -> Iterator[None]:
    """A context in which glibc takes all but small memory from the system, none that was freed."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # what was freed is given back
    libc.mallopt(_MMAP_THRESHOLD, _SMALL_BYTES)
    try:
        yield
    finally:  # what glibc itself comes to where much is allocated and freed
        libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))
