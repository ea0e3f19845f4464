"""`onepass pipeline`: compare time and memory of schedules before building a pipeline."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.foundation.rules import UserError
from onepass.planning.pipeline.schedule import Durations, Simulation, compare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DESCRIPTION = """Compare pipeline schedules of one network: 1F1B, interleaved 1F1B, V-Half, V-Min,
V-ZB. Time is in the unit of the durations; the unit of activations is a device's share of the
network for one microbatch.

  onepass pipeline --devices 8 --microbatches 32 --plot schedules.png"""
COLOURS = {"F": ("#9ecae1", "#3182bd"), "B": ("#a1d99b", "#31a354"), "W": ("#fdd0a2", "#e6550d")}
MICROSECONDS = 1000  # in a trace, per unit of time


@dataclasses.dataclass(frozen=True)
class PipelineArguments:
    """The size of the pipeline, the durations of passes and transfers, and files to write."""

    devices: int
    """Number of devices that hold the network."""
    microbatches: int
    """Number of microbatches in a batch."""
    forward: float = 1.0
    """Duration of the forward pass of a device's share of the network, any unit."""
    backward: float = 1.0
    """Duration of computing the gradient of that share's input, in the same unit."""
    weights: float = 1.0
    """Duration of computing the gradient of that share's weights, in the same unit."""
    communication: float = 0.0
    """Transfer time from one device to the next, in the same unit."""
    json: Path | None = None
    """File to write the table to, as JSON."""
    plot: Path | None = None
    """File to draw all schedules in: .png, .svg or .pdf."""
    trace: Path | None = None
    """File to write a Chrome trace of all schedules to."""


def run(arguments: list[str], parse: Callable[..., PipelineArguments]) -> int:
    """Run `onepass pipeline ARGUMENTS` and return the exit status; raise UserError if invalid."""
    given = parse(PipelineArguments, arguments, "onepass pipeline", description=DESCRIPTION)
    if given.plot and given.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"`--plot` must end in .png, .svg or .pdf, got {given.plot}.")
    durations = Durations(given.forward, given.backward, given.weights, given.communication)
    simulations = compare(given.devices, given.microbatches, durations)
    print(table(simulations))
    if given.json:
        given.json.write_text(json.dumps(to_json(simulations), indent=1) + "\n", encoding="utf-8")
    if given.plot:
        write_plot(given.plot, simulations)
    if given.trace:
        write_trace(given.trace, simulations)
    return 0


def table(simulations: Sequence[Simulation]) -> str:
    """Return a table with throughput and memory relative to the first simulation."""
    head = (
        f"{'schedule':13s}{'time':>9s}{'bubble':>9s}{'throughput':>12s}{'peak':>7s}{'memory':>8s}"
    )
    lines, first = [head], simulations[0]
    for each in simulations:
        speed, peak = first.makespan / each.makespan, max(each.peaks)
        lines.append(
            f"{each.schedule.name:13s}{each.makespan:9.4g}{each.bubble:9.1%}{speed:12.3f}"
            f"{peak:7.3g}{peak / max(first.peaks):8.3f}"
        )
    return "\n".join(lines)


def to_json(simulations: Sequence[Simulation]) -> dict:
    """Return the simulations as a JSON object: time, bubble and each device's peak activations."""
    schedule = simulations[0].schedule
    names = ("schedule", "time", "bubble", "peaks")
    values = ((each.schedule.name, each.makespan, each.bubble, each.peaks) for each in simulations)
    rows = [dict(zip(names, row, strict=True)) for row in values]
    size = {"devices": schedule.num_devices, "microbatches": schedule.num_microbatches}
    return {**size, "rows": rows}


def write_plot(path: Path, simulations: Sequence[Simulation]) -> None:
    """Draw every simulation with one row per device, and its peak activations."""
    from matplotlib.figure import Figure

    from onepass.foundation.files import replacing  # imports NumPy

    height = sum(1.0 + 0.22 * each.schedule.num_devices for each in simulations)
    figure = Figure(figsize=(14.0, height), layout="constrained")
    ratios = [1.0 + each.schedule.num_devices / 4 for each in simulations]
    grid = figure.subplots(
        len(simulations), 2, squeeze=False, height_ratios=ratios, width_ratios=[6, 1]
    )
    latest = max(each.makespan for each in simulations)
    most = max(max(each.peaks) for each in simulations)
    for (time_axes, peak_axes), each in zip(grid, simulations, strict=True):
        _draw_passes(time_axes, each, latest)
        peak_axes.barh(range(len(each.peaks)), each.peaks, color="tab:grey")
        peak_axes.set_xlim(0, 1.05 * most)
        peak_axes.invert_yaxis()
    grid[-1][0].set_xlabel("time; blue forward, green input gradients, orange weight gradients")
    grid[-1][1].set_xlabel("peak activations")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:] or "png", dpi=110)


def _draw_passes(axes: "Axes", simulation: Simulation, latest: float) -> None:
    schedule = simulation.schedule
    for kind, shades in COLOURS.items():
        for device in range(schedule.num_devices):
            of_device = [
                (each, span)
                for each, span in simulation.spans.items()
                if each.kind == kind and schedule.devices[each.stage] == device
            ]
            bars = [(start, end - start) for _, (start, end) in of_device]
            shown = [shades[each.stage >= schedule.num_devices] for each, _ in of_device]
            rows = (device - 0.45, 0.9)
            axes.broken_barh(bars, rows, facecolors=shown, edgecolor="white", lw=0.3)
    title = f"{schedule.name}: bubble {simulation.bubble:.1%}, peak {max(simulation.peaks):g}"
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, latest)
    axes.set_ylabel("device")
    axes.invert_yaxis()


def write_trace(path: Path, simulations: Sequence[Simulation]) -> None:
    """Write a Chrome trace: a process per simulation, a thread per device, an event per pass."""
    from onepass.foundation.files import write_text

    events = [event for n, each in enumerate(simulations) for event in _events(n, each)]
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")


def _events(process: int, simulation: Simulation) -> list[dict]:
    schedule = simulation.schedule
    events: list[dict] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": schedule.name}}
    ]
    live = [0] * schedule.num_devices
    for device, _, each in schedule.rows():
        start, end = (MICROSECONDS * time for time in simulation.spans[each])
        row = {"pid": process, "tid": device}
        name = f"{each.kind}{each.microbatch}"
        about = {"stage": each.stage, "microbatch": each.microbatch}
        event = {"ph": "X", "name": name, "cat": each.kind, "ts": start, "dur": end - start}
        events.append({**event, **row, "args": about})
        if each.kind != "B":
            live[device] += 1 if each.kind == "F" else -1
            counter = {"ph": "C", "name": f"live on {device}", "pid": process}
            when = start if each.kind == "F" else end
            events.append({**counter, "ts": when, "args": {"stages": live[device]}})
    return events
