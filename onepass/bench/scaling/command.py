"""A step alone and on replicas, what replicas exchange, and how well a plan predicts both."""

from collections.abc import Mapping

from onepass.bench.report import Measures, Row, finished, measured
from onepass.bench.scaling import keras_fit as scaling_keras
from onepass.bench.scaling import rows as scaling_rows
from onepass.bench.scaling import wrapper_overhead as scaling_wrapper
from onepass.bench.scaling.arguments import KERAS, PLAN, WRAPPER, BenchArguments, check
from onepass.bench.scaling.keras_fit import Loops
from onepass.bench.scaling.paired_timing import PairedTiming
from onepass.bench.scaling.plot import write_plot
from onepass.bench.scaling.rows import Repeated, fitted_rows, strategies_of
from onepass.bench.scaling.targets import notes, verdicts
from onepass.bench.scaling.validated_jax import jax_rows
from onepass.bench.scaling.validated_replicas import (
    SYNCHRONOUS,
    asynchronous_rows,
    synchronous_rows,
)
from onepass.bench.scaling.validation import fitted_network, replica_predictions
from onepass.bench.worker_group import Group, started
from replicator.runs.progress import Progress

WRAPPER_CLIPS = 4
WRAPPER_TIMES = 4  # as long as another measurement, because percents are at stake


def run(given: BenchArguments) -> int:
    """Measures, prints table, targets and notes; the exit status of `onepass bench scaling`."""
    check(given)
    rows = all_measured(given)
    rows += fitted_rows(given, rows)
    rows += replica_predictions(rows)
    rows += validated(given, rows) if PLAN in given.parts else []
    targets = verdicts(rows, given.steps_per_call)
    return finished(given, rows, {"targets": targets, "notes": notes(given)}, write_plot)


def validated(given: BenchArguments, rows: list[Row]) -> list[Row]:
    """Time and memory of every model and strategy, measured and predicted.

    rows: where the latency and the bandwidth between two processes are fitted.
    """
    network = fitted_network(rows)
    made: list[Row] = []
    parts = len(SYNCHRONOUS) + 2
    with Progress(parts * len(given.models), "validating", "part") as progress:
        for model in given.models:
            for name in SYNCHRONOUS:
                made += synchronous_rows(given, model, name, network)
                progress.advance()
            for found in (asynchronous_rows, jax_rows):
                made += found(given, model)
                progress.advance()
    return made


def all_measured(given: BenchArguments) -> list[Row]:
    """The rows of everything asked for, measured; no process is left."""
    settings = {"preset": given.preset, "clip_samples": given.clip_samples}
    print("starting processes ...", flush=True)
    with started(strategies_of(given), given.limit_seconds, **settings) as groups:
        timings, measures = _here(given)
        repeated, more = scaling_rows.measures_of(given, groups)
        measures += more
        prepare(timings, repeated, groups)
        return measured(measures, given.rounds)


def _here(given: BenchArguments) -> tuple[list[PairedTiming | Loops], Measures]:
    """What is measured in this process."""
    timings: list[PairedTiming | Loops] = []
    measures: Measures = []
    if WRAPPER in given.parts:
        longer = WRAPPER_TIMES * given.least_seconds
        made, rows = scaling_wrapper.measures_of(
            given.preset, WRAPPER_CLIPS, given.clip_samples, longer
        )
        timings += made
        measures += rows
    if KERAS in given.parts:
        loops, rows = scaling_keras.measures_of(
            given.steps_per_call, given.fit_steps, given.least_seconds
        )
        timings += loops
        measures += rows
    return timings, measures


def prepare(
    timings: list[PairedTiming | Loops], repeated: list[Repeated], groups: Mapping[str, Group]
) -> None:
    """Makes the first call of everything, which compiles; each group on its own."""
    with Progress(len(timings) + len(repeated), "compiling", "program") as progress:
        for pair in timings:
            pair.prepare()
            progress.advance()
        for group in groups.values():
            group.received()  # they are ready
        waiting = {name: [r for r in repeated if r.group is groups[name]] for name in groups}
        while any(waiting.values()):
            asked = [each.pop(0) for each in waiting.values() if each]
            for each in asked:
                each.send_first()
            for each in asked:
                each.group.received()
                progress.advance()
