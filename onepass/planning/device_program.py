"""A JAX process that compiles an exported step for a mesh of devices, and may run it.

python -m onepass.planning.device_program REQUEST.json, of `measurement.ask`
"""

import collections
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from onepass.planning.measurement import needed_bytes, paired_seconds, time_rounds
from onepass.replicator.portable import run
from onepass.replicator.portable.layouts.devices import Devices
from onepass.replicator.portable.layouts.layout import MODEL, ROWS, Layout, Step
from onepass.replicator.portable.layouts.simulation import compiled_memory, read_program

TRACED_STEPS = 3  # for short steps


def compile_folder(folder: str, rows: int, model: int, runs: bool) -> tuple[Any, tuple]:
    """Return an exported step compiled for a mesh of `rows` and `model`, and its arguments' shapes.

    If `model` is above 1, every array of the state is cut along the last of its axes whose size is
    divisible by `model`.
    """
    manifest = run.read_manifest(folder)
    described = manifest["functions"][manifest["training"]["step"]]
    step = Step.read(Path(folder))
    devices = Devices(step, _cut_last(step, rows, model))
    advance = run.advance_function(run.load_exported(folder, described).call, described)
    # Neither operations nor memory depend on the quality of the machine code.
    is_plain = not runs and jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": 0} if is_plain else None
    return devices.compile_step(advance, options), devices.arguments()


def _cut_last(step: Step, rows: int, model: int) -> Layout:
    cuts: list[list[tuple[str, ...]]] = [[()] * len(tensor.shape) for tensor in step.arguments]
    for index, tensor in enumerate(step.arguments):
        if index < len(step.batch) and tensor.shape and rows > 1:
            cuts[index][0] = (ROWS,)
        dividing = [i for i, size in enumerate(tensor.shape) if model > 1 and size % model == 0]
        if tensor.name in step.slots and index >= len(step.batch) and dividing:
            cuts[index][dividing[-1]] = (MODEL,)
    return Layout({ROWS: rows, MODEL: model}, tuple(map(tuple, cuts)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the step's memory and operations as compiled, and measurements if it was run."""
    rows, model, rounds = request["rows"], request["model"], request["rounds"]
    compiled, arguments = compile_folder(request["folder"], rows, model, bool(rounds))
    program = [(o.name, o.kind, o.size_bytes, o.inputs, o.devices, o.resource)
               for o in read_program(compiled.as_text() or "", rows * model)]  # fmt: skip
    found = {"memory": compiled_memory(compiled), "program": program, "run": None}
    if rounds:
        found["run"] = Running(compiled, arguments).profile(rounds, request["seconds"])
    return found


class Running:
    """A step for one device that can be run repeatedly; the constructor runs it once."""

    def __init__(self, compiled: Any, arguments: tuple):
        self._compiled, self._arguments = compiled, arguments
        self._values = list(jax.tree.map(_constant, arguments))
        self.advance()

    def advance(self) -> None:
        """Run one step to completion."""
        state, alive, frozen, batch = self._values
        state, alive, metrics = self._compiled(state, alive, frozen, batch)
        self._values = [state, alive, frozen, batch]
        jax.block_until_ready((state, metrics))

    def profile(self, rounds: int, seconds: float) -> dict[str, Any]:
        """Measure the step, and return the fields of a `measurement.Run`."""
        found = time_rounds(self.advance, rounds, seconds)
        memory_bytes = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        if memory_bytes is None:
            held = sum(leaf.nbytes for leaf in jax.tree.leaves(self._values))
            memory_bytes = needed_bytes(self.advance, held)
        if jax.default_backend() == "cpu":
            steps = (self.advance, Running(self._compiled, self._arguments).advance)
            found["paired_seconds"] = paired_seconds(steps, seconds)
        traced_steps = TRACED_STEPS if min(found["seconds"]) < seconds else 1
        return {
            **found,
            "device": jax.devices()[0].device_kind,
            "memory_bytes": memory_bytes,
            "operations": _trace_seconds(self.advance, traced_steps),
        }


def _constant(shape: jax.ShapeDtypeStruct) -> jax.Array:
    fill = 0.01 if np.issubdtype(shape.dtype, np.floating) else shape.dtype == np.bool_
    return jax.device_put(np.full(shape.shape, fill, shape.dtype), shape.sharding)


def _trace_seconds(advance: Callable[[], None], steps: int) -> dict[str, float]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    seconds: dict[str, float] = collections.defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(steps):
                advance()
        (path,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        for event in (e for plane in planes for line in plane.lines for e in line.events):
            name = dict(event.stats).get("hlo_op")
            if name is not None:
                seconds[name] += 1e-9 * event.duration_ns / steps
    return seconds


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(asked["answer"]).write_text(json.dumps(answer(asked)))
