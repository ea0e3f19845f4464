"""Steps on several devices as `onepass plan` predicts them, beside the same steps as they are."""

import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onepass.bench.report import Row, find
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.models import trainable
from onepass.bench.scaling.rows import (
    COMPUTE,
    FITTED_BANDWIDTH,
    FITTED_LATENCY,
    PAIR,
    RATE,
    REPLICAS_OF,
    SINGLE,
    STRONG,
    TIME,
    WEAK,
    bytes_title,
)
from onepass.bench.worker_group import started
from replicator.layouts.network import Network, sent_bytes
from replicator.layouts.simulation import (
    asynchronous_rate,
    sharing_scale,
    simulate,
    synchronous,
)
from replicator.planning.arguments import PlanArguments
from replicator.planning.measurement import Run, Store
from replicator.planning.plan import Planner
from replicator.planning.programs import ModelPrograms
from replicator.runs.progress import Progress

MEASURED, PREDICTED = "measured", "predicted"
MEMORY = "MB/device"
ONE = "single"
# Name, strategy, processes and replicas of those that TensorFlow runs.
SYNCHRONOUS = {
    "local:2": ("local:2", 1, 2),
    "local:4": ("local:4", 1, 4),
    "2 processes": ("multi_worker", 2, 2),
}
ASYNCHRONOUS = {"1 worker": 1, "2 workers": 2}
JAX_DEVICES = (1, 2, 4)
AT_ONCE = Network(0.0, math.inf)  # logical CPUs of a process share its memory


def validated(given: BenchArguments, rows: list[Row]) -> list[Row]:
    """Time and memory of every model and strategy, measured and predicted.

    rows: where the latency and the bandwidth between two processes are fitted.
    """
    network = _network(rows)
    made: list[Row] = []
    with Progress(len(given.models), "validating", "model") as progress:
        for model in given.models:
            made += _tensorflow(given, model, network)
            made += _jax(given, model)
            progress.advance()
    return made


def replica_predictions(rows: list[Row]) -> list[Row]:
    """What strong and weak scaling should be, from the rows of one device and of all_sums."""
    alone = {row.batch: 1e-3 * row.value for row in rows if row.what == COMPUTE}
    made = []
    for row in [row for row in rows if row.what.startswith((STRONG, WEAK))]:
        kind, name = row.what.split(", ")
        replicas = REPLICAS_OF[name]
        share = row.batch if kind == WEAK else row.batch // replicas
        sent = find(rows, bytes_title(name), row.size, row.batch)
        count = find(rows, f"collectives, {name}", row.size, row.batch)
        if name == SINGLE or share not in alone or sent is None or count is None:
            continue
        seconds = sharing_scale(replicas) * alone[share]
        # Half of what two send is what each gives, and so on: see `sent_bytes`.
        given = sent.value / sent_bytes("all-reduce", 1.0, replicas) / count.value
        program = synchronous(seconds, [given] * round(count.value), replicas)
        timeline = simulate(program, _network(rows) if name == PAIR else AT_ONCE)
        title, values = f"{row.what}, {PREDICTED}", [1 / timeline.seconds] * len(row.values)
        made.append(Row(title, row.size, row.batch, RATE, row.what, values=values))
    return made


def _network(rows: list[Row]) -> Network:
    """Between two processes, as fitted; one that takes no time where nothing was."""
    known = {row.what: row.value for row in rows}
    latency, bandwidth = known.get(FITTED_LATENCY, 0.0), known.get(FITTED_BANDWIDTH, math.inf)
    return Network(1e-6 * latency, bandwidth / 8e-9)


def _tensorflow(given: BenchArguments, model: str, network: Network) -> Iterator[Row]:
    alone = _runs(given, model, ONE, (ONE, 1), {given.clips // n for n in (1, 2, 4)})
    for name, (strategy, processes, replicas) in SYNCHRONOUS.items():
        share = given.clips // replicas
        (found,) = _runs(given, model, name, (strategy, processes), {share}).values()
        run, one = found[0], alone[share][0]
        seconds = one.step_seconds * sharing_scale(replicas, one.busy_share)
        program = synchronous(seconds, [found[1]["reduced_bytes"]], replicas)
        timeline = simulate(program, network if processes > 1 else AT_ONCE)
        yield from _pair(given, name, model, TIME, _milliseconds(run), 1e3 * timeline.seconds)
        if run.memory_bytes and one.memory_bytes:
            measured = [1e-6 * run.memory_bytes] * given.rounds
            yield from _pair(given, name, model, MEMORY, measured, 1e-6 * one.memory_bytes)
    one = alone[given.clips][0]
    for name, workers in ASYNCHRONOUS.items():
        chosen = ("parameter_server", workers)
        ((run, answer),) = _runs(given, model, name, chosen, {given.clips}).values()
        seconds = one.step_seconds * sharing_scale(workers, one.busy_share)
        rate, _ = asynchronous_rate(seconds, answer["state_bytes"], workers, 1, network)
        yield from _pair(given, name, model, TIME, _milliseconds(run), 1e3 / rate)


def _runs(
    given: BenchArguments, model: str, name: str, chosen: tuple[str, int], shares: set[int]
) -> dict[int, tuple[Run, dict[str, float]]]:
    """A strategy's runs and answers, by rows of a replica; its processes end with them."""
    settings = {"preset": model, "clip_samples": given.clip_samples}
    with started({name: chosen}, given.limit_seconds, **settings) as groups:
        group = groups[name]
        group.received()
        found = {}
        for rows in sorted(shares):
            asked = {"rows": rows, "rounds": given.rounds, "seconds": given.least_seconds}
            answer: dict[str, Any] = dict(group.ask(do="profile", **asked)[0])
            sizes = {key: answer.pop(key) for key in ("state_bytes", "reduced_bytes")}
            found[rows] = Run(**answer), sizes
        return found


def _jax(given: BenchArguments, model: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        programs = ModelPrograms(trainable(model, given.clip_samples), given.clips, 1, folder)
        store = Store(Path(folder) / "profiles", rounds=given.rounds, seconds=given.least_seconds)
        # Logical devices share the memory of a process, as those of local:N do.
        planner = Planner(PlanArguments(model, JAX_DEVICES[-1]), programs, store, AT_ONCE)
        for devices in JAX_DEVICES:
            name = f"JAX on {devices}"
            found = store.executed(programs.folder(given.clips, 1), devices)
            if found.run is None:
                raise ValueError("`executed` must have run.")
            prediction = planner.predicted(devices, 1, 1)
            predicted = 1e3 * prediction.step_seconds
            yield from _pair(given, name, model, TIME, _milliseconds(found.run), predicted)
            if found.run.memory_bytes:
                measured = [1e-6 * found.run.memory_bytes] * given.rounds
                predicted = 1e-6 * prediction.memory_bytes
                yield from _pair(given, name, model, MEMORY, measured, predicted)


def _milliseconds(run: Run) -> list[float]:
    return [1e3 * seconds for seconds in run.seconds]


def _pair(
    given: BenchArguments, name: str, model: str, unit: str, measured: list[float], value: float
) -> list[Row]:
    """What was measured, and what was predicted held against it."""
    kind = "" if unit == TIME else "memory of "
    titles = [f"{kind}{name}, {word}" for word in (MEASURED, PREDICTED)]
    return [
        Row(titles[0], short(model), given.clips, unit, values=measured),
        Row(titles[1], short(model), given.clips, unit, titles[0], values=[value] * given.rounds),
    ]


def short(model: str) -> str:
    """What rows call a model: a preset's name, or the last word of a module's."""
    return model.partition(":")[0].rpartition(".")[2]


def pairs(rows: list[Row], unit: str) -> list[tuple[Row, Row]]:
    """What was measured and what was predicted, of a unit."""
    by_name = {(row.what, row.size, row.batch): row for row in rows if row.unit == unit}
    return [
        (by_name[row.against or "", row.size, row.batch], row)
        for row in by_name.values()
        if row.what.endswith(f", {PREDICTED}")
    ]


def median_error(rows: list[Row], *units: str) -> float | None:
    """The median of |predicted / measured - 1|; None where nothing was validated."""
    found = [pair for unit in units for pair in pairs(rows, unit)]
    errors = [abs(predicted.value / measured.value - 1) for measured, predicted in found]
    return statistics.median(errors) if errors else None
