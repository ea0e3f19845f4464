"""Train the exported step in this folder with only JAX and NumPy, without TensorFlow.

    python run.py --minutes 55

It resumes from the newest checkpoint, samples the batches of the exported run, divides their rows
among all devices of all processes (or follows `--mesh` and `--layout`), and writes checkpoints that
`--adopt` copies to a run directory. In Python, `load(folder, name)` returns an exported function.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib.machinery
import json
import os
import sys
import time
import types
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.export
import numpy as np

from onepass.foundation.files import Arrays, read_npz
from onepass.foundation.interrupt import SIGNALS, StopRequest
from onepass.foundation.rules import UserError, exit_status
from onepass.foundation.run_directory import Checkpoints, check_arrays
from onepass.replicator.portable.layouts import devices
from onepass.replicator.portable.manifest import read_manifest

SLOT, AVERAGE = "slot/", "average/"
STEPS_AHEAD, BATCHES_AHEAD = 8, 4  # steps dispatched before the first one's metrics are read
LINE_SECONDS = 10.0
CONTINUE, SAVE, TIME = "", "save", "time"
REQUESTS = (CONTINUE, SAVE, TIME, *(number.name for number in SIGNALS))
Options = argparse.Namespace
OPTIONS = (
    ("--steps", int, None, "total updates, including earlier ones; default: as exported"),
    ("--minutes", float, 0.0, "minutes after which to save and stop; 0: no limit"),
    ("--save-minutes", float, 5.0, "minutes between two checkpoints"),
    ("--devices", int, None, "devices that share a batch; default: as many as divide its rows"),
    ("--mesh", str, None, "ROWSxMODEL devices for which to search for a layout, as in 4x2"),
    ("--layout", str, None, "auto: search for a layout and write layout.json; or a layout file"),
    ("--memory", float, None, "GiB per device; default: as the device reports"),
    ("--link", float, None, "Gbit/s between devices, for --layout auto; default: by their kind"),
    ("--coordinator", str, None, "HOST:PORT of process 0; auto: from Slurm or Open MPI"),
    ("--processes", int, None, "processes that train; default: one, or from the environment"),
    ("--process", int, None, "index of this process, from 0"),
    ("--wait-seconds", int, 300, "seconds within which all processes must connect"),
    ("--keep", int, 2, "number of newest checkpoints to keep"),
    ("--report-steps", int, 20, "steps between two lines of metrics.jsonl"),
    ("--folder", Path, Path(__file__).resolve().parent, "folder of manifest.json"),
)


def load(
    folder: Path | str, name: str, weights: dict | None = None, device: jax.Device | None = None
) -> Callable[..., dict]:
    """Return the exported function NAME of inputs by keyword; `weights` replace its variables."""
    described = read_manifest(folder)["functions"][name]
    weights = read_weights(folder, described) | (weights or {})
    captured = [weights[variable["name"]] for variable in described["captured"]]
    captured_values = on_device(captured, device)
    call = load_exported(folder, described).call
    compiled = jax.jit(lambda captured_values, inputs: call(*inputs, *captured_values))

    def function(**inputs: np.ndarray | jax.Array) -> dict[str, jax.Array]:
        ordered = on_device([inputs[spec["name"]] for spec in described["inputs"]], device)
        results = compiled(captured_values, ordered)
        return {spec["name"]: v for spec, v in zip(described["outputs"], results, strict=True)}

    return function


def load_exported(folder: Path | str, described: dict) -> jax.export.Exported:
    """Return the exported function; its `call`, for `jax.jit`, takes inputs and captures."""

    def stub(*_: jax.Array) -> list[jax.Array]:
        return [jax.numpy.zeros(spec["shape"], spec["dtype"]) for spec in described["outputs"]]

    arguments = [
        jax.ShapeDtypeStruct(tuple(spec["shape"]), np.dtype(spec["dtype"]))
        for spec in (*described["inputs"], *described["captured"])
    ]
    signature = jax.export.export(jax.jit(stub, keep_unused=True))(*arguments)
    artifact = (Path(folder) / described["artifact"]).read_bytes()
    # With the stub's gradient, `jax.grad` would return zeros; without one, it raises an error.
    return dataclasses.replace(
        signature, fun_name="exported", mlir_module_serialized=artifact, _get_vjp=None
    )


def read_weights(folder: Path | str, described: dict) -> dict[str, np.ndarray]:
    """Return the variables that were exported with a function, by name."""
    arrays = read_npz(Path(folder) / described["weights"])
    dtypes = {variable["name"]: variable["dtype"] for variable in described["captured"]}
    return {name: array.view(dtypes[name]) for name, array in arrays.items()}  # bfloat16 as uint16


def on_device(arrays: Any, device: jax.Device | None = None) -> Any:
    """Commit arrays to a device (None: the first), like results, so jit compiles only once."""
    return jax.device_put(arrays, device or jax.devices()[0])


def averages(folder: Path | str) -> dict[str, np.ndarray]:
    """Return the averaged weights of the newest checkpoint, by name, for `load`."""
    arrays = newest(Checkpoints(Path(folder) / "checkpoints"))
    return {n.removeprefix(AVERAGE): v for n, v in arrays.items() if n.startswith(AVERAGE)}


def open_batches(folder: Path | str, settings: dict) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function from a step to its batch, from batches.py; raise UserError if it fails."""
    module, path = types.ModuleType("batches"), Path(folder) / "batches.py"
    try:
        importlib.machinery.SourceFileLoader("batches", str(path)).exec_module(module)
        return module.open_batches(Path(folder), settings)
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        raise UserError(f"The batches of {folder} cannot be sampled: {error}.") from error


def newest(checkpoints: Checkpoints) -> Arrays:
    """Return the newest readable arrays, or raise UserError; rename damaged newer files."""
    arrays, damaged = checkpoints.newest()
    for path in damaged:
        log(f"{path} is damaged and was renamed (.damaged).")
        path.rename(path.with_suffix(".damaged"))
    if arrays is None:
        raise UserError(f"There is no checkpoint in {checkpoints.folder}.")
    return arrays


class Training:
    """The training state on the devices, and the step that updates it."""

    def __init__(self, folder: Path, options: Options | None = None):
        manifest = read_manifest(folder)
        self.settings = manifest["training"]
        described = manifest["functions"][self.settings["step"]]
        program, options = load_exported(folder, described), options or parse_options([])
        advance = advance_function(program.call, described)
        choice = devices.choose_layout(folder, options, program.mlir_module, advance, log)
        self.devices, self._advance = choice
        devices.check_equal(manifest, self.devices.layout, options.steps)
        self.batch = self.devices.own_rows(open_batches(folder, self.settings["batches"]))
        self.checkpoints = Checkpoints(Path(folder) / "checkpoints", options.keep)
        start = devices.of_first(self._restore_slots, self.settings["slots"])
        frozen = read_weights(folder, described)
        self.state, self.alive, self._frozen = self.devices.put(start, frozen)

    def advance(self, batch: dict[str, np.ndarray]) -> dict:
        """Dispatch a step, unless one was nonfinite; return its metrics, still on the device."""
        self.state, self.alive, metrics = self._advance(
            self.state, self.alive, self._frozen, self.devices.shard(batch)
        )
        return metrics

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of the state, after waiting for the device and for other processes."""
        names = (slot["name"] for slot in self.settings["slots"])
        return {name: devices.gather_array(self.state[name]) for name in names}

    def save(self) -> int:
        """Write a checkpoint if this process is the first, and return its step."""
        arrays = self.arrays()
        if devices.is_first():
            self.checkpoints.save(int(arrays["step"]), arrays)
        return int(arrays["step"])

    def _restore_slots(self) -> dict[str, np.ndarray]:
        arrays, slots = newest(self.checkpoints), self.settings["slots"]
        check_arrays(arrays, {slot["name"]: (slot["shape"], slot["dtype"]) for slot in slots})
        return {slot["name"]: arrays[slot["name"]] for slot in slots}


def advance_function(call: Callable[..., Any], described: dict) -> Callable[..., tuple]:
    """Return the step: a function from (state, alive, frozen, batch) to (state, alive, metrics)."""
    kinds = ("inputs", "captured", "outputs")
    read, captured, names = ([spec["name"] for spec in described[kind]] for kind in kinds)

    def advance(state: dict, alive: jax.Array, frozen: dict, batch: dict) -> tuple:
        values = frozen | state
        given = [*(batch[name] for name in read), *(values[name] for name in captured)]
        results = dict(zip(names, call(*given), strict=True))
        new_slots = {name: results.pop(SLOT + name) for name in state}
        # A step with a non-finite loss ends the run; steps dispatched after it change nothing.
        alive = alive & (new_slots["step"] != state["step"])
        state = {name: jax.numpy.where(alive, new_slots[name], state[name]) for name in state}
        return state, alive, {**results, "alive": alive}

    return advance


class Report:
    """Writes metrics to metrics.jsonl and progress to stderr."""

    def __init__(self, path: Path, first_step: int, num_steps: int, every_steps: int):
        self.path, self.num_steps, self.every_steps = path, num_steps, every_steps
        self._reported = self._printed = (first_step, time.monotonic())
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.write_text("".join(f"{line}\n" for line in lines if _step_of(line) <= first_step))

    def step(self, step: int, metrics: dict) -> None:
        """Report the metrics of a step that the device has completed."""
        now, last = time.monotonic(), step == self.num_steps
        if step % self.every_steps == 0 or last:
            figures = {name: float(value) for name, value in metrics.items() if name != "alive"}
            figures["steps_per_second"] = _rate(self._reported, (step, now))
            self._reported = (step, now)
            plain = {name: v if np.isfinite(v) else None for name, v in figures.items()}
            line = json.dumps({"step": step, "time": round(time.time(), 3), **plain})
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        if now - self._printed[1] >= LINE_SECONDS or last:
            rate = _rate(self._printed, (step, now))
            self._printed = (step, now)
            left, loss = (self.num_steps - step) / rate / 60, float(metrics["loss"])
            done = f"training: {step}/{self.num_steps} steps, {rate:.3g} step/s"
            log(f"{done}, {left:.1f} min left, loss {loss:.4g}")


def _rate(before: tuple[int, float], now: tuple[int, float]) -> float:
    return (now[0] - before[0]) / max(now[1] - before[1], 1e-9)


def _step_of(line: str) -> float:
    """Return the step of a record, or infinity for the incomplete line of a killed process."""
    with contextlib.suppress(ValueError, KeyError):
        return json.loads(line)["step"]
    return np.inf


def train(folder: Path, options: Options, stop: StopRequest | None = None) -> str:
    """Train and save, and return why training ended: done, time or a stop signal."""
    training = Training(folder, options)
    first = int(training.state["step"])
    total = training.settings["num_steps"] if options.steps is None else options.steps
    log(f"{training.devices}: training from step {first} to {total}; the first step compiles.")
    path = Path(folder) / "metrics.jsonl" if devices.is_first() else Path(os.devnull)
    report = Report(path, first, total, options.report_steps)
    reason = _steps(training, first, report, options, stop or StopRequest())
    step = training.save()
    log(f"{reason}: step {step} is saved.")
    if reason == "diverged":
        raise UserError(f"Step {step + 1} gave a loss or gradient that is not finite.")
    return reason


def _steps(
    training: Training, first: int, report: Report, options: Options, stop: StopRequest
) -> str:
    pending: deque = deque()
    start = saved = time.monotonic()
    request, agreed = CONTINUE, devices.Agreement(REQUESTS)
    for step, batch in ahead(training.batch, first, report.num_steps):
        pending.append((step + 1, training.advance(batch)))
        if len(pending) >= STEPS_AHEAD and not _report_oldest(pending, report):
            return "diverged"
        now = time.monotonic()
        own = SAVE if now - saved > 60 * options.save_minutes else CONTINUE
        own = TIME if 0 < 60 * options.minutes < now - start else own
        request = agreed(stop.signal_name or own)
        if request == SAVE:
            training.save()
            saved = time.monotonic()
        elif request != CONTINUE:
            break
    if not all(_report_oldest(pending, report) for _ in range(len(pending))):
        return "diverged"
    done = int(training.state["step"]) >= report.num_steps
    return "done" if done else request


def _report_oldest(pending: deque, report: Report) -> bool:
    step, metrics = pending.popleft()
    if metrics["alive"]:
        report.step(step, metrics)
    return bool(metrics["alive"])


def ahead(make: Callable[[int], dict], first: int, last: int) -> Iterator[tuple[int, dict]]:
    """Yield (step, make(step)) for first <= step < last, preparing later batches in a thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending: deque = deque()
        for step in range(first, last):
            for later in range(step + len(pending), min(step + BATCHES_AHEAD, last)):
                pending.append(pool.submit(make, later))
            yield step, pending.popleft().result()


def log(text: str) -> None:
    """Print a line to stderr in the first process."""
    if devices.is_first():
        print(text, file=sys.stderr, flush=True)


def parse_options(arguments: list[str] | None) -> Options:
    """Parse command-line arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, kind, default, meaning in OPTIONS:
        shown = "" if default is None else " (default: %(default)s)"
        parser.add_argument(name, type=kind, default=default, help=meaning + shown)
    options = parser.parse_args(arguments)
    if min(options.keep, options.report_steps, options.wait_seconds) < 1:
        parser.error("--keep, --report-steps and --wait-seconds must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, and return 0 on success, 2 for a user's mistake, or 1 for a system error."""
    options = parse_options(arguments)
    try:
        with devices.together(options), StopRequest() as stop:
            train(options.folder, options, stop)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
