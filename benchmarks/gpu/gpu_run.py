"""Time the functions of this folder and their peers in PyTorch on the device that JAX finds.

    python FOLDER/gpu_run.py --json results.json --seconds 270

It compiles what it can in a share of the time, times row after row, hands over to gpu_peers.py,
and writes the JSON after every row, so that what is cut short still counts; rows without a time are
left out with the reason. A value is a median over calls after one that warms up, the device
synchronised. The bandwidth is that of a copy, bytes read and written, and a row's share of it is
what its steps must read over what a copy could have moved meanwhile.
"""

import argparse
import concurrent.futures
import importlib
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PLAN = "benchmarks.gpu.plan" if __package__ else "plan"
plan: Any = importlib.import_module(PLAN)

CALLS, ROW_SECONDS = 5, 2.0
COMPILE_SHARE, BEGUN_SHARE = 0.4, 0.2  # of all seconds: no compilation begins, and none is awaited
PEERS_SHARE = 0.3  # of all seconds, which the peers have at least
COPY_FLOATS = 2**30
WEIGHT = 0.02  # standard deviation of random weights
JOBS = "jobs.json"


class Results:
    """The seconds of every row's calls, and the reasons of those without."""

    def __init__(self, jobs: list[plan.Job], quick: bool, machine: dict[str, Any]):
        self.jobs, self.quick, self.machine = jobs, quick, machine
        self.seconds: dict[tuple, list[float]] = {}
        self.reasons: dict[tuple, str] = {}

    def values(self, job: plan.Job) -> list[float]:
        """Return the values of a row, in its unit."""
        seconds = self.seconds.get(job.key, [])
        return [1000 * s if job.latency else job.units / s for s in seconds]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield an object per row, or per row and peer, as benchmarks/tables.py reads them."""
        known = {job.key: job for job in self.jobs}
        for job in self.jobs:
            named = [known.get((name, job.size, job.batch)) for name in job.against]
            others: list[Any] = [other for other in named if other is not None]
            for other in others or [None]:
                yield self._row(job, other)

    def _row(self, job: plan.Job, other: plan.Job | None) -> dict[str, Any]:
        values, peer = self.values(job), self.values(other) if other else []
        value = statistics.median(values) if values else None
        bandwidth, share = self.machine.get("copy_bytes_per_second"), None
        if value and job.step_bytes and bandwidth:
            steps = job.steps / statistics.median(self.seconds[job.key])
            share = steps * job.step_bytes / bandwidth
        return {
            "bench": plan.BENCH,
            "what": job.what,
            "size": job.size,
            "batch": job.batch,
            "value": value,
            "unit": job.unit,
            "against": other.what if other else None,
            "ratio": value / statistics.median(peer) if value and peer else None,
            "spread": (max(values) - min(values)) / value if value else None,
            "share": share,
        }

    def text(self) -> str:
        """Return the JSON."""
        reasons = {f"{what}, {size}, {batch}": r for (what, size, batch), r in self.reasons.items()}
        left_out = [{"bench": plan.BENCH, "what": k, "reason": r} for k, r in reasons.items()]
        found = {"machine": self.machine, "quick": self.quick, "rows": list(self.rows())}
        return json.dumps({**found, "left_out": left_out}, indent=1) + "\n"


class Weights:
    """Weights on the device: of a file, or random, the same array for the same name and size."""

    def __init__(self, folder: Path, on_device: Callable):
        self._folder, self._on_device = folder, on_device
        self._files: dict[str, dict] = {}
        self._made: dict[tuple, Any] = {}
        self._draws = np.random.default_rng(0)
        self._lock = threading.Lock()

    def of(self, job: plan.Job, captured: list[dict]) -> dict[str, Any]:
        """Return the arrays that a function captures, by name, constants apart."""
        wanted = [spec for spec in captured if not spec["name"].startswith("constant/")]
        with self._lock:
            return {spec["name"]: self._array(job, spec) for spec in wanted}

    def _array(self, job: plan.Job, spec: dict) -> Any:
        random = job.weights == "random"
        key = (job.size if random else job.weights, spec["name"], *spec["shape"])
        if key not in self._made:
            if random:
                array = WEIGHT * self._draws.standard_normal(spec["shape"], np.float32)
            else:
                array = self._file(job.weights)[spec["name"]]
            self._made[key] = self._on_device(array.astype(spec["dtype"]))
        return self._made[key]

    def _file(self, name: str) -> dict:
        if name not in self._files:
            with np.load(self._folder / name, allow_pickle=False) as file:
                self._files[name] = dict(file)
        return self._files[name]


def example(spec: dict) -> Any:
    """Return a value of an input: a seed, rows, labels or tokens, no keys, or random frames."""
    if spec["name"].startswith(plan.KEYS):
        import jax

        return jax.numpy.zeros(spec["shape"], spec["dtype"])
    if spec["dtype"] == "float32":
        return np.random.default_rng(0).random(spec["shape"], np.float32)
    count = int(np.prod(spec["shape"]))
    return (np.arange(count) % 10).reshape(spec["shape"]).astype(spec["dtype"])


class Functions:
    """The exported functions, compiled in threads."""

    def __init__(self, folder: Path, jobs: list[plan.Job], workers: int):
        import jax

        run = importlib.import_module("run")
        self._jax, self._run, self._folder = jax, run, folder
        self._weights = Weights(folder, run.on_device)
        self._functions = run.read_manifest(folder)["functions"]
        self._pool = concurrent.futures.ThreadPoolExecutor(workers)
        # The largest first, so that none is waited for at the end.
        order = sorted(jobs, key=lambda job: -(folder / f"{job.function}.stablehlo").stat().st_size)
        self._futures = {job.key: self._pool.submit(self._compiled, job) for job in order}

    def _compiled(self, job: plan.Job) -> Callable[[], Any]:
        described = self._functions[job.function]
        constants = self._run.read_weights(self._folder, described)
        values = self._weights.of(job, described["captured"])
        values |= {name: self._run.on_device(array) for name, array in constants.items()}
        captured = [values[spec["name"]] for spec in described["captured"]]
        inputs = self._run.on_device([example(spec) for spec in described["inputs"]])
        call = self._run.load_exported(self._folder, described).call
        function = self._jax.jit(lambda captured, inputs: call(*inputs, *captured))
        compiled = function.lower(captured, inputs).compile()
        return lambda: self._jax.block_until_ready(compiled(captured, inputs))

    def wait(self, seconds: float, begun_seconds: float) -> int:
        """Wait until all are compiled, or so long; give up those that have not begun.

        For those that have begun it waits longer, up to `begun_seconds`: as it compiles, XLA tries
        kernels on the device, and rows that are timed meanwhile are far apart. Return the number of
        functions that still compile.
        """
        concurrent.futures.wait(self._futures.values(), seconds)
        begun = [future for future in self._futures.values() if not future.cancel()]
        return len(concurrent.futures.wait(begun, begun_seconds).not_done)

    def call(self, job: plan.Job) -> Callable[[], Any]:
        """Return the compiled function of a row; raise if it is none."""
        future = self._futures.pop(job.key)
        if future.cancelled() or not future.done():
            raise TimeoutError("the time for compiling was over")
        return future.result()

    def close(self) -> None:
        """Release what is compiled."""
        self._futures.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def seconds_of(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of some calls, after one that is not counted."""
    call()
    found: list[float] = []
    begin = time.perf_counter()
    while len(found) < CALLS and (not found or time.perf_counter() - begin < ROW_SECONDS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def copy_bandwidth(floats: int) -> float:
    """Return the bytes per second, read and written, of a pass over an array on the device."""
    import jax

    copy = jax.jit(lambda x: x + 1.0)
    array = jax.numpy.ones([floats], jax.numpy.float32)
    seconds = statistics.median(seconds_of(lambda: copy(array).block_until_ready()))
    return 8.0 * floats / seconds


class PeerProcess:
    """gpu_peers.py in a process of its own, which imports while this one compiles."""

    def __init__(self, folder: Path):
        self._process = subprocess.Popen(
            [sys.executable, str(folder / "gpu_peers.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def lines(self, deadline: float) -> Iterator[dict]:
        """Yield what the process writes until it ends or the time is over; it is ended then."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
            while line := self._lines.get(timeout=max(deadline - time.monotonic(), 0.01)):
                if line.startswith("{"):
                    yield json.loads(line)
        except (queue.Empty, BrokenPipeError):
            pass
        finally:
            self._process.kill()


def main(words: list[str] | None = None) -> int:
    """Time all rows, write the JSON, and return 0."""
    given = _parsed(words)
    begin, folder = time.monotonic(), given.folder
    described = json.loads((folder / JOBS).read_text(encoding="utf-8"))
    jobs = [plan.Job(**job) for job in described["jobs"]]
    sys.path.insert(0, str(folder))  # run.py and its package
    peers = None if given.only else PeerProcess(folder)
    results = Results(jobs, described["quick"], _machine())

    def record(key: tuple, seconds: list[float] | None = None, reason: str = "") -> None:
        if seconds:
            results.seconds[key] = seconds
        else:
            results.reasons[key] = reason
        given.json.write_text(results.text(), encoding="utf-8")
        shown = f"{statistics.median(seconds):.5f} s" if seconds else reason
        print(f"{time.monotonic() - begin:6.1f} s  {key}: {shown}", flush=True)

    exported = [job for job in jobs if job.function and given.only in f"{job.what}, {job.size}"]
    for job in jobs:
        if not job.function and job.what not in plan.PEERS:
            record(job.key, reason=job.reason)
    functions = Functions(folder, exported, given.workers)
    results.machine["compiling"] = functions.wait(
        COMPILE_SHARE * given.seconds, BEGUN_SHARE * given.seconds
    )
    print(f"{time.monotonic() - begin:6.1f} s  compiled", flush=True)
    floats = 2**20 if described["quick"] else COPY_FLOATS
    results.machine["copy_bytes_per_second"] = copy_bandwidth(floats)
    for job in exported:
        if time.monotonic() - begin > (1 - PEERS_SHARE) * given.seconds:
            record(job.key, reason="the time for the exported functions was over")
            continue
        try:
            record(job.key, seconds_of(functions.call(job)))
        except Exception as error:  # the next row may do better
            record(job.key, reason=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    functions.close()
    if peers is None:
        return 0
    asked = {job.key for job in jobs if job.what in plan.PEERS}
    for line in peers.lines(begin + given.seconds):
        if "row" not in line:
            results.machine |= line
            continue
        key = tuple(line["row"])
        asked.discard(key)
        record(key, line.get("seconds"), line.get("reason", ""))
    for key in sorted(asked):
        record(key, reason="the time was over, or the process of the peers ended")
    print(f"{time.monotonic() - begin:6.1f} s  done", flush=True)
    return 0


def _machine() -> dict[str, Any]:
    import jax

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "accelerator": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "load": os.getloadavg()[0],
    }


def _parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="file for the rows")
    parser.add_argument("--seconds", type=float, default=270.0, help="after which to end")
    parser.add_argument("--only", default="", help="only functions with this in `WHAT, SIZE`")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="that compile")
    return parser.parse_args(words)


if __name__ == "__main__":
    # JAX leaves memory to the peers.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    main()
    os._exit(0)  # without waiting for what still compiles
