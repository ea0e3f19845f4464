"""Measure compiled and executed steps, and this process's use of the machine."""

import collections
import contextlib
import ctypes
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.files import make_folder, write_text
from onepass.foundation.model_folders import ROOT
from onepass.foundation.rules import UserError
from onepass.foundation.runtime import processor
from onepass.replicator.portable.layouts.layout import Step
from onepass.replicator.portable.layouts.simulation import Operation, sharing_scale

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_STAT, _GPUS = Path("/proc/stat"), Path("/proc/driver/nvidia/gpus")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt(3)
_SMALL_BYTES, _LARGE_BYTES = 2**16, 2**25
LIMIT_SECONDS = 3600.0


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
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "none"


def time_rounds(step: Callable[[], object], rounds: int, least_seconds: float) -> dict[str, Any]:
    """Time a step in rounds, and measure the share of cores that it keeps busy.

    The dict has `seconds`, the median step time of each round; `busy_share`, the share of the
    processor time left free by others that the step uses; and `free_share`, that time's share of
    all. Both are 1 if the system does not count.
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
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")


def needed_bytes(step: Callable[[], object], held_bytes: float) -> float | None:
    """Return the bytes of a step, `held_bytes` of them for arguments; None if not measurable."""
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


@dataclasses.dataclass(frozen=True)
class Run:
    """Timings and memory of a step that was executed; see `time_rounds`."""

    seconds: list[float]
    busy_share: float
    memory_bytes: float | None  # None if it cannot be measured
    operations: dict[str, float]  # seconds by name, which overlap
    device: str = "CPU"
    free_share: float = 1.0
    paired_seconds: float | None = None  # while an identical step runs on the same cores

    @property
    def step_seconds(self) -> float:
        """Median step time over the rounds."""
        return statistics.median(self.seconds)

    def sharing_scale(self, replicas: int) -> float:
        """Return the factor by which a step is slower if `replicas` replicas share these cores."""
        paired = self.paired_seconds and self.paired_seconds / self.step_seconds
        return sharing_scale(replicas, self.busy_share, paired)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One device's program: operations, memory in bytes by use, and timings if it was run."""

    program: list[Operation]
    memory: dict[str, int]
    run: Run | None

    @property
    def memory_bytes(self) -> int:
        """Memory of a device: arguments, new results and temporaries."""
        return sum(self.memory.values())

    @property
    def done(self) -> Run:
        """The run; ValueError: there was none."""
        if self.run is None:
            raise ValueError("`profile` must have run.")
        return self.run

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "Measurement":
        """Return the measurement in an answer from device_program.py."""
        program = [
            Operation(name, kind, size, tuple(inputs), devices, resource)
            for name, kind, size, inputs, devices, resource in stored["program"]
        ]
        run = stored["run"]
        return cls(program, stored["memory"], Run(**run) if run else None)


class Store:
    """A folder of measurements of `rounds` of `seconds` each; if `fresh`, none is read."""

    def __init__(
        self,
        folder: Path,
        fresh: bool = False,
        rounds: int = 3,
        seconds: float = 0.5,
        log: Callable[[str], object] = lambda _: None,
    ):
        with _naming_the_option():
            self.folder = make_folder(folder)
        self._fresh, self._log = fresh, log
        self.rounds, self.seconds = rounds, seconds
        self._made: set[str] = set()

    def measure_profiled(self, folder: Path) -> Measurement:
        """Return a measurement of a folder's step, run on one device with traced operations."""
        return self.measure_compiled(folder, rounds=self.rounds)

    def load_or_measure(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the stored measurement of a key, unless `fresh`; else `measure` and store it."""
        path, machine = self.folder / f"{key}.json", this_machine()
        if path.exists() and (not self._fresh or key in self._made):
            stored = _read(path)
            if stored.get("machine") != machine:
                raise UserError(_another_machine(path, stored.get("machine"), machine))
            return stored["found"]
        found = measure()
        self._made.add(key)
        with _naming_the_option():
            write_text(path, json.dumps({"machine": machine, "found": found}) + "\n")
        return found

    def measure_compiled(
        self, folder: Path, rows: int = 1, model: int = 1, rounds: int = 0
    ) -> Measurement:
        """Return a measurement of a folder's step for a mesh; it runs if there are `rounds`."""
        request = {"rows": rows, "model": model, "rounds": rounds}
        key = f"{Step.read(folder).digest}-{rows}x{model}-{'run' if rounds else 'compiled'}"
        asked = {"folder": str(Path(folder).absolute()), "seconds": self.seconds, **request}
        action = "profiling" if rounds else "compiling"

        def measure() -> dict[str, Any]:
            self._log(f"planning: {action} the step, devices: {rows * model}")
            return ask(asked)

        return Measurement.read(self.load_or_measure(key, measure))


@contextlib.contextmanager
def _naming_the_option() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{error} Choose another folder with `--profiles`.") from error


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Run device_program.py in a new process, and return its answer."""
    devices = request["rows"] * request["model"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "XLA_FLAGS": flags.strip(), "PYTHONPATH": paths}
    if devices > 1:  # only CPUs can be simulated
        environment["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        file, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        file.write_text(json.dumps(request | {"answer": str(answer)}))
        command = [sys.executable, "-m", "onepass.planning.device_program", str(file)]
        limits: dict[str, Any] = {"env": environment, "timeout": LIMIT_SECONDS}
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **limits)
        except subprocess.TimeoutExpired as error:
            raise UserError(
                f"JAX did not compile and run the step on {devices} devices within "
                f"{LIMIT_SECONDS:g} seconds."
            ) from error
        if done.returncode:
            printed = done.stderr.strip().splitlines() or ["it printed nothing"]
            failed = f"JAX cannot compile or run the step on {devices} devices"
            raise UserError(f"{failed}: {printed[-1]}")
        return json.loads(answer.read_text())


def assign_durations(program: list[Operation], profile: Measurement) -> list[Operation]:
    """Return the program with a duration for each computation, from the profile of one device.

    The time of an operation is interpolated linearly between the sizes of profiled operations of
    its kind; below the smallest, it is proportional to the bytes. Beyond the largest, the excess
    takes at most the average time per byte of operations whose kinds differ only in their digests,
    since the time of small operations is mostly overhead. A kind that was not profiled takes the
    profile's average. All times are scaled so that the profiled program takes the measured step
    time.
    """
    times = _Times(profile)
    seconds = (0.0 if each.is_collective else times.scale * times.seconds(each) for each in program)
    pairs = zip(program, seconds, strict=True)
    return [dataclasses.replace(operation, seconds=taken) for operation, taken in pairs]


class _Times:
    def __init__(self, profile: Measurement):
        traced = profile.done.operations
        found: dict[str, dict[float, list[float]]] = {}
        taken: dict[str, float] = collections.defaultdict(float)
        moved: dict[str, float] = collections.defaultdict(float)
        for operation in profile.program:
            seconds, size = traced.get(operation.name, 0.0), operation.size_bytes
            found.setdefault(operation.kind, {}).setdefault(size, []).append(seconds)
            taken[_name(operation.kind)] += seconds
            moved[_name(operation.kind)] += size
        self._kinds = {
            kind: [(size, statistics.fmean(each)) for size, each in sorted(sizes.items())]
            for kind, sizes in found.items()
        }
        self._rates = {name: seconds / max(moved[name], 1.0) for name, seconds in taken.items()}
        self._total, step = sum(taken.values()), profile.done.step_seconds
        # If nothing was traced, the step time is divided by bytes.
        self._seconds_per_byte = (self._total or step) / max(sum(moved.values()), 1.0)
        self.scale = step / self._total if self._total else 1.0

    def seconds(self, operation: Operation) -> float:
        size, points = operation.size_bytes, self._kinds.get(operation.kind, [])
        if not points or not self._total:
            return self._seconds_per_byte * size
        largest, last = points[-1]
        if size > largest:
            rate = min(last / max(largest, 1.0), self._rates[_name(operation.kind)])
            return last + rate * (size - largest)
        origin = [(0.0, 0.0)] if points[0][0] else []
        sizes, means = zip(*origin, *points, strict=True)
        return float(np.interp(size, sizes, means))


def _name(kind: str) -> str:
    return kind.partition("-")[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text())
        return stored if "found" in stored else {}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"The profile {path} cannot be read: {error}. `--fresh` replaces it."
        ) from error


def _another_machine(path: Path, stored: Any, here: dict[str, Any]) -> str:
    known = stored if isinstance(stored, dict) else {}
    pairs = [(name, known.get(name), own) for name, own in here.items()]
    differ = [f"{name} {its}, this one {own}" for name, its, own in pairs if its != own]
    return (
        f"The profile {path} is from another machine ({'; '.join(differ)}): choose another folder "
        "with `--profiles`, or measure on this machine with `--fresh`."
    )
