"""Devices of JAX, predicted from one device and measured, both anew in every round."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onepass.bench.report import Row
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.models import trainable
from onepass.bench.scaling.validation import AT_ONCE, Pairs, pair_rows
from onepass.bench.worker_group import Group
from replicator.planning.arguments import PlanArguments
from replicator.planning.measurement import Run, Store, device_environment
from replicator.planning.plan import Planner
from replicator.planning.programs import ModelPrograms

JAX_DEVICES = (1, 2, 4)
MODULE = "onepass.bench.scaling.jax_worker"


def jax_rows(given: BenchArguments, model: str) -> list[Row]:
    """All of `JAX_DEVICES`, as `Planner` predicts them."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        programs = ModelPrograms(trainable(model, given.clip_samples), given.clips, 1, folder)
        store = Store(Path(folder) / "profiles", rounds=1, seconds=given.least_seconds)
        # Logical devices share the memory of a process, as those of local:N do.
        planner = Planner(PlanArguments(model, JAX_DEVICES[-1]), programs, store, AT_ONCE)
        for devices in JAX_DEVICES:
            whole, share = (programs.folder(given.clips // n, 1) for n in (1, devices))
            prediction, profiled = planner.predicted(devices, 1, 1), store.profiled(share).run
            if profiled is None:
                raise ValueError("`profiled` must have run.")
            times: Pairs = []
            memory: Pairs = []
            with _group(given, share, 1) as one, _group(given, whole, devices) as several:
                for _ in range(given.rounds):
                    alone, run = _profile(given, one), _profile(given, several)
                    slower = _shared_seconds(alone, devices) / _shared_seconds(profiled, devices)
                    times.append((run.step_seconds, slower * prediction.step_seconds))
                    memory.append((run.memory_bytes or 0, prediction.memory_bytes))
            found += pair_rows(given, f"JAX on {devices}", model, times, memory)
    return found


def _shared_seconds(run: Run, devices: int) -> float:
    return run.step_seconds * run.sharing_scale(devices)


@contextlib.contextmanager
def _group(given: BenchArguments, folder: Path, devices: int) -> Iterator[Group]:
    """A process with an exported step compiled for so many devices."""
    environment = {**device_environment(devices), "JAX_PLATFORMS": "cpu"}
    group = Group(f"JAX on {devices}", [environment], given.limit_seconds, MODULE)
    try:
        group.ask(folder=str(folder), devices=devices)
        yield group
    finally:
        group.stop()


def _profile(given: BenchArguments, group: Group) -> Run:
    answer: dict = dict(group.ask(do="profile", rounds=1, seconds=given.least_seconds)[0])
    return Run(**answer)
