"""Simulated schedules as an image and as a Chrome trace."""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from replicator.pipeline.simulation import Simulation
from replicator.runs.atomic_files import replacing, write_text

COLOURS = {"F": ("#9ecae1", "#3182bd"), "B": ("#a1d99b", "#31a354"), "W": ("#fdd0a2", "#e6550d")}
MICROSECONDS = 1000  # in a trace per unit of time


def write_plot(path: Path, simulations: Sequence[Simulation]) -> None:
    """Write an image: for every simulation one row per device, and its peak activations."""
    height = sum(1.0 + 0.22 * each.schedule.num_devices for each in simulations)
    figure = Figure(figsize=(14.0, height), layout="constrained")
    FigureCanvasAgg(figure)
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


def _draw_passes(axes, simulation: Simulation, latest: float) -> None:
    schedule = simulation.schedule
    for kind, shades in COLOURS.items():
        for device in range(schedule.num_devices):
            of_device = [
                (each, span)
                for each, span in simulation.spans.items()
                if each.kind == kind and schedule.devices[each.stage] == device
            ]
            bars = [(start, end - start) for _, (start, end) in of_device]
            later = [each.stage >= schedule.num_devices for each, _ in of_device]
            shown = [shades[chunk] for chunk in later]
            axes.broken_barh(
                bars, (device - 0.45, 0.9), facecolors=shown, edgecolor="white", lw=0.3
            )
    title = f"{schedule.name}: bubble {simulation.bubble:.1%}, peak {max(simulation.peaks):g}"
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, latest)
    axes.set_ylabel("device")
    axes.invert_yaxis()


def write_trace(path: Path, simulations: Sequence[Simulation]) -> None:
    """Write a Chrome trace: one process per simulation, thread per device, event per pass.

    Perfetto and chrome://tracing show it, with live activations as counters.
    """
    events = [event for each in enumerate(simulations) for event in _events(*each)]
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
