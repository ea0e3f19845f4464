"""Predict the costs of device configurations, choose among them, and present the choice."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.foundation.files import count_noun, replacing, write_text
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError
from onepass.planning.arguments import PORTABLE, SERVERS, PlanArguments
from onepass.planning.measurement import Run, Store, assign_durations, this_machine
from onepass.planning.pipeline.schedule import Stages, pipeline_steps
from onepass.replicator.portable.layouts import simulation
from onepass.replicator.portable.layouts.layout import Step
from onepass.replicator.portable.manifest import read_manifest

if TYPE_CHECKING:
    from onepass.planning.trainable import Trainable

GIB, MIB = 2**30, 2**20
ACCELERATOR_BUCKET_MIB = 30.0  # up to which XLA combines all-reduces on a GPU
MB = 1e6
HEADER = (
    f"{'devices':>7s} {'mesh':>11s} {'micro':>5s} {'step':>11s} {'rows/s':>9s} {'memory':>10s} "
    f"{'sent':>10s} {'efficiency':>10s} {'network':>8s} {'bubble':>7s}"
)
ENOUGH_FREE = 0.9  # share of processor time that a reliable profile needs


class ModelPrograms:
    """The training step of a model, by default for `batch` rows in `microbatches`."""

    is_fixed = False
    stages: Stages | None = None  # of a pipeline; None: the network cannot be cut

    def __init__(self, model: "Trainable", batch: int, microbatches: int, scratch: Path | str):
        self.batch, self.microbatches, self.model = batch, microbatches, model
        self._scratch = Path(scratch)

    def folder(self, rows: int, microbatches: int) -> Path:
        """Return a folder with the step for these sizes, which is exported on first use."""
        folder = self._scratch / f"{rows}x{microbatches}"
        if not folder.exists():
            self.model.resize_batches(rows, microbatches).export(folder)
        return folder

    def run(self, store: Store, rows: int, compiles: bool = True) -> Run:
        """Return the step's timings for `rows` on one device, with XLA if set and `compiles`."""
        digest = Step.read(self.folder(rows, self.microbatches)).digest
        model = self.model.resize_batches(rows, self.microbatches)
        model = dataclasses.replace(model, jit_compile=model.jit_compile and compiles)
        engine = "xla" if model.jit_compile else "tensorflow"
        found = store.load_or_measure(
            f"{digest}-{engine}", lambda: model.run(store.rounds, store.seconds)
        )
        return Run(**found)


class FolderPrograms(ModelPrograms):
    """The single program of an exported folder, which cannot be timed in TensorFlow."""

    is_fixed, microbatches = True, 1

    def __init__(self, folder: Path):
        self._folder = Path(folder)
        self.batch = max(each.shape[0] for each in Step.read(folder).batch if each.shape)
        found = read_manifest(folder).get("pipeline")
        self.stages = found and Stages(tuple(found["work"]), found["passed_bytes"])

    def folder(self, rows: int, microbatches: int) -> Path:
        """Return the exported folder."""
        return self._folder

    def run(self, store: Store, rows: int, compiles: bool = True) -> Run:
        """Raise UserError, because TensorFlow cannot run an exported step."""
        raise UserError(f"{self._folder} is an exported step: `--strategy` must be portable.")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted step of a configuration."""

    rows: int
    model: int
    microbatches: int  # of a device's rows
    step_seconds: float  # duration of a step or, for asynchronous workers, of an update of any
    batch_rows: int
    memory_bytes: float  # of each device
    sent_bytes: float  # by each device, per step
    alone_seconds: float  # duration of a step on a single device
    timeline: simulation.Timeline
    schedule: str = ""
    bubble: float = 0.0  # share of a pipeline's device time spent waiting

    @property
    def devices(self) -> int:
        """Number of devices in the mesh."""
        return self.rows * self.model

    @property
    def efficiency(self) -> float:
        """Rows per second and device, relative to a single device."""
        return self.alone_seconds / self.step_seconds / self.devices

    @property
    def rows_per_second(self) -> float:
        """Rows of the batch per second, over all devices."""
        return self.batch_rows / self.step_seconds

    @property
    def network_share(self) -> float:
        """Share of the step in which a device only waits for the network."""
        timeline = self.timeline
        links = {each.resource for each in timeline.events if simulation.LINK in each.resource}
        busy = sum(map(timeline.busy_seconds, links))
        waits = timeline.seconds - timeline.busy_seconds(simulation.COMPUTE)
        return max(min(waits, busy), 0.0) / timeline.seconds

    @property
    def device_seconds(self) -> float:
        """Cost of a row in device-seconds."""
        return self.devices / self.rows_per_second


class Planner:
    """Makes predictions for a model from measurements, which are taken on first use."""

    def __init__(self, given: PlanArguments, programs: ModelPrograms, store: Store):
        self._given, self._programs, self._store = given, programs, store
        self._network = simulation.Network(1e-6 * given.latency_us, given.link / 8e-9)
        self.free_share = 1.0

    def predictions(self, advance: Callable[[], object] = lambda: None) -> list[Prediction]:
        """Return predictions for all meshes and pipelines; call `advance` after every mesh.

        If no configuration fits in memory, try more microbatches, then cuts of the state.
        """
        microbatches, found = self._programs.microbatches, []
        for rows, _ in self._given.meshes:
            if self._given.strategy != SERVERS and self._programs.batch % (rows * microbatches):
                raise UserError(
                    f"A batch of {self._programs.batch} rows cannot be divided by {rows} devices "
                    f"with {microbatches} microbatches each: change `--devices`, `--mesh` or "
                    "`--batch`."
                )
        for rows, model in self._given.meshes:
            found.append(self.predict_cost(rows, model, microbatches))
            advance()
        found += self._pipelines()
        if any(map(self.fits, found)):
            return found
        for rows, model, microbatches in self._smaller():
            found.append(self.predict_cost(rows, model, microbatches))
            if self.fits(found[-1]):
                return found
        least = min(found, key=lambda prediction: prediction.memory_bytes)
        raise UserError(
            f"No configuration of {self._given.devices} devices fits in {self._given.memory:g} GiB:"
            f" the smallest needs {least.memory_bytes / GIB:.3g} GiB per device "
            f"({describe_prediction(least)})."
        )

    def fits(self, prediction: Prediction) -> bool:
        """Return whether the configuration fits in a device's memory."""
        given = self._given.memory
        return given is None or prediction.memory_bytes <= given * GIB

    def predict_cost(self, rows: int, model: int, microbatches: int) -> Prediction:
        """Return the prediction for one configuration."""
        if self._given.strategy == SERVERS:
            return self._asynchronous(rows)
        if self._given.strategy == PORTABLE:
            return self._portable(rows, model, microbatches)
        return self._replicas(rows)

    def _portable(self, rows: int, model: int, microbatches: int) -> Prediction:
        programs, store = self._programs, self._store
        whole = programs.folder(programs.batch, microbatches)
        # A program of fixed size is profiled with the whole batch.
        profile = store.measure_profiled(programs.folder(programs.batch // rows, microbatches))
        alone = store.measure_profiled(whole).done
        compiled = store.measure_compiled(whole, rows, model) if rows * model > 1 else profile
        bucket_mib = self._given.bucket_mib
        if bucket_mib is None:
            bucket_mib = float("inf") if _is_processor(alone) else ACCELERATOR_BUCKET_MIB
        timed = assign_durations(compiled.program, profile)
        program = simulation.combine_collectives(timed, bucket_mib * MIB)
        scale = self._scale(profile.done, rows * model)
        timeline = simulation.simulate(program, self._network, scale)
        return Prediction(
            rows, model, microbatches, timeline.seconds, programs.batch, compiled.memory_bytes,
            timeline.sent_bytes, alone.step_seconds, timeline,
        )  # fmt: skip

    def _pipelines(self) -> Iterator[Prediction]:
        given, programs = self._given, self._programs
        if programs.stages is None or given.strategy != PORTABLE or given.mesh is not None:
            return
        alone = self._store.measure_profiled(programs.folder(programs.batch, programs.microbatches))
        run = alone.done
        for devices in (rows for rows, _ in given.meshes if rows > 1):
            seconds = self._scale(run, devices) * run.step_seconds
            steps = pipeline_steps(
                programs.stages, devices, programs.batch, seconds, alone.memory, self._network
            )
            for name, several in itertools.groupby(steps, lambda step: step.schedule):
                found = [
                    Prediction(
                        devices, 1, step.microbatches, step.timeline.seconds, programs.batch,
                        step.memory_bytes, step.timeline.sent_bytes, run.step_seconds,
                        step.timeline, name, step.bubble,
                    )
                    for step in several
                ]  # fmt: skip
                yield min(found, key=lambda each: (not self.fits(each), each.step_seconds))

    def _replicas(self, rows: int) -> Prediction:
        programs = self._programs
        alone = programs.run(self._store, programs.batch)
        share = programs.run(self._store, programs.batch // rows)
        seconds = self._scale(share, rows) * share.step_seconds
        reduced, held = programs.model.reduced_bytes, programs.model.state_bytes
        step = simulation.synchronous(seconds, [reduced], rows)
        timeline = simulation.simulate(step, self._network)
        exchanged = 2 * reduced if rows > 1 else 0  # the gradients and their sums
        return Prediction(
            rows, 1, programs.microbatches, timeline.seconds, programs.batch,
            (share.memory_bytes or held) + exchanged, timeline.sent_bytes, alone.step_seconds,
            timeline,
        )  # fmt: skip

    def _asynchronous(self, workers: int) -> Prediction:
        programs = self._programs
        alone = programs.run(self._store, programs.batch, compiles=False)
        scale, held = self._scale(alone, workers), programs.model.state_bytes
        handling = 1e-6 * self._given.message_us * programs.model.num_variables
        rate, timeline = simulation.asynchronous_rate(
            scale * alone.step_seconds, held, workers, self._given.servers, self._network,
            scale * handling,
        )  # fmt: skip
        return Prediction(
            workers, 1, programs.microbatches, 1 / rate, programs.batch,
            alone.memory_bytes or held, 2.0 * held, alone.step_seconds, timeline,
        )  # fmt: skip

    def _scale(self, run: Run, replicas: int) -> float:
        self.free_share = min(self.free_share, run.free_share)
        shared = self._given.shared_cores
        if shared == "no" or (shared == "auto" and not _is_processor(run)):
            return 1.0
        return run.sharing_scale(replicas)

    def _smaller(self) -> Iterator[tuple[int, int, int]]:
        given, programs = self._given, self._programs
        if given.strategy != PORTABLE:
            return
        rows, model = given.meshes[-1]
        most = 1 if programs.is_fixed else programs.batch // rows
        counts = [m for m in range(2, most + 1) if most % m == 0]
        yield from ((rows, model, m) for m in counts if m > programs.microbatches)
        if given.mesh is None:
            cuts = [n for n in range(2, given.devices + 1) if given.devices % n == 0]
            yield from ((given.devices // n, n, programs.microbatches) for n in cuts)


def cheapest(predictions: list[Prediction]) -> Prediction:
    """Return the prediction with the fewest device-seconds per row."""
    return min(predictions, key=lambda each: (each.device_seconds, each.devices))


def fastest(predictions: list[Prediction]) -> Prediction:
    """Return the prediction with the most rows per second."""
    return max(predictions, key=lambda each: (each.rows_per_second, -each.devices))


def describe_prediction(prediction: Prediction) -> str:
    """Return a configuration as text, such as `4 devices, mesh 4x1, 2 microbatches`."""
    text = f"{count_noun(prediction.devices, 'device')}, {layout(prediction)}"
    many = prediction.microbatches > 1
    return f"{text}, {prediction.microbatches} microbatches" if many else text


def layout(prediction: Prediction) -> str:
    """Return the layout of a configuration as text: `mesh 4x1` or `pipeline v-half`."""
    if prediction.schedule:
        return f"pipeline {prediction.schedule}"
    return f"mesh {prediction.rows}x{prediction.model}"


def _is_processor(run: Run) -> bool:
    return run.device.lower() == "cpu"


def lines(predictions: list[Prediction], fitting: list[Prediction]) -> list[str]:
    """Return the table's lines, starred where memory is short, and the cheapest and fastest."""
    table = [f"{_line(each)}{'' if each in fitting else ' *'}" for each in predictions]
    starred = [] if len(fitting) == len(predictions) else ["* does not fit in --memory"]
    choices = [
        f"{name} that fits: {describe_prediction(each)} ({each.rows_per_second:.4g} rows/s, "
        f"{each.device_seconds:.3g} device-seconds per row)"
        for name, each in (("cheapest", cheapest(fitting)), ("fastest", fastest(fitting)))
    ]
    return [HEADER, *table, *starred, "", *choices]


def _line(each: Prediction) -> str:
    bubble = f"{100 * each.bubble:6.1f}%" if each.schedule else f"{'-':>7s}"
    return (
        f"{each.devices:7d} {layout(each).split()[1]:>11s} {each.microbatches:5d} "
        f"{1e3 * each.step_seconds:8,.1f} ms {each.rows_per_second:9.4g} "
        f"{each.memory_bytes / GIB:6.3f} GiB {each.sent_bytes / MB:7,.2f} MB "
        f"{100 * each.efficiency:9.1f}% {100 * each.network_share:7.1f}% {bubble}"
    )


def to_json(predictions: list[Prediction], fitting: list[Prediction]) -> dict[str, Any]:
    """Return JSON values: the machine, configurations, and indices of cheapest and fastest one."""
    names = ("rows", "model", "microbatches", "step_seconds", "batch_rows", "memory_bytes",
             "sent_bytes", "efficiency", "devices", "rows_per_second", "network_share",
             "device_seconds", "schedule", "bubble")  # fmt: skip
    return {
        "machine": this_machine(),
        "configurations": [
            {name: getattr(each, name) for name in names} | {"fits": each in fitting}
            for each in predictions
        ],
        "cheapest": predictions.index(cheapest(fitting)),
        "fastest": predictions.index(fastest(fitting)),
    }


def write_trace(path: Path, timeline: simulation.Timeline) -> None:
    """Write a step as Chrome trace events, with one row per resource."""
    threads = list(dict.fromkeys(event.resource for event in timeline.events))
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
        for i, name in enumerate(threads)
    ]
    events = [
        {"ph": "X", "pid": 0, "tid": threads.index(event.resource), "name": event.name}
        | {"cat": event.kind, "ts": 1e6 * event.start_seconds, "dur": 1e6 * event.seconds}
        for event in timeline.events
    ]
    write_text(path, json.dumps({"traceEvents": named + events}) + "\n")


def write_plot(path: Path, predictions: list[Prediction], memory_gib: float | None) -> None:
    """Plot rows per second and memory per device against the number of devices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rate, memory = figure.subplots(1, 2)
    ordered = sorted(predictions, key=lambda each: each.devices)
    devices = [each.devices for each in ordered]
    rate.plot(devices, [each.rows_per_second for each in ordered], "o-", label="simulated")
    one = ordered[0].rows_per_second / ordered[0].devices
    rate.plot(devices, [one * n for n in devices], ":", color="grey", label="linear scaling")
    memory.plot(devices, [each.memory_bytes / GIB for each in ordered], "o-")
    if memory_gib is not None:
        memory.axhline(memory_gib, color="C3", linestyle="--", label="memory of a device")
        memory.legend()
    rate.set(xlabel="devices", ylabel="rows per second", xscale="log", yscale="log")
    memory.set(xlabel="devices", ylabel="GiB per device", xscale="log")
    for axes in (rate, memory):
        axes.set_xticks(devices, [str(n) for n in devices], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    rate.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)


def run(given: PlanArguments, programs: ModelPrograms) -> int:
    """Predict a model's training step, print and write the results, and return the exit status."""
    with Progress(len(given.meshes), "planning", "configuration") as progress:
        store = Store(given.profiles, given.fresh, seconds=given.seconds, log=progress.say)
        planner = Planner(given, programs, store)
        predictions = planner.predictions(progress.advance)
    fitting = [each for each in predictions if planner.fits(each)]
    cores = {"yes": "devices share the cores", "no": "each device has its own cores"}
    print(
        f"simulated: {given.strategy}, {programs.batch} rows per step, {given.link:g} Gbit/s and "
        f"{given.latency_us:g} us between devices; "
        f"{cores.get(given.shared_cores, 'processors share their cores')}\n"
    )
    print("\n".join(lines(predictions, fitting)))
    if planner.free_share < ENOUGH_FREE:
        print(
            f"\nOther processes left {100 * planner.free_share:.0f}% of the processor time to a "
            "profile, so its times are too long. Repeat it with `--fresh` on a quiet machine."
        )
    if given.json:
        write_text(given.json, json.dumps(to_json(predictions, fitting), indent=1) + "\n")
    if given.trace:
        largest = max(predictions, key=lambda each: each.devices)
        write_trace(given.trace, largest.timeline)
    if given.plot:
        write_plot(given.plot, predictions, given.memory)
    return 0
