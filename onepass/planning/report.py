"""Present predictions as a table, JSON, a Chrome trace or a plot."""

import json
from pathlib import Path
from typing import Any

from onepass.foundation.atomic_files import replacing, write_text
from onepass.planning.plan import GIB, Prediction, cheapest, describe_prediction, fastest, layout
from onepass.planning.process_use import this_machine
from onepass.replicator.portable.layouts.simulation import Timeline

MB = 1e6
HEADER = (
    f"{'devices':>7s} {'mesh':>11s} {'micro':>5s} {'step':>11s} {'rows/s':>9s} {'memory':>10s} "
    f"{'sent':>10s} {'efficiency':>10s} {'network':>8s} {'bubble':>7s}"
)


def lines(predictions: list[Prediction], fitting: list[Prediction]) -> list[str]:
    """Return the table's lines, starred where memory is short, and the cheapest and fastest."""
    table = [f"{_line(each)}{'' if each in fitting else ' *'}" for each in predictions]
    starred = [] if len(fitting) == len(predictions) else ["* does not fit in --memory"]
    best, quickest = cheapest(fitting), fastest(fitting)
    return [
        HEADER,
        *table,
        *starred,
        "",
        f"cheapest that fits: {describe_prediction(best)} ({_choice(best)})",
        f"fastest that fits: {describe_prediction(quickest)} ({_choice(quickest)})",
    ]


def _line(each: Prediction) -> str:
    bubble = f"{100 * each.bubble:6.1f}%" if each.schedule else f"{'-':>7s}"
    return (
        f"{each.devices:7d} {layout(each).split()[1]:>11s} {each.microbatches:5d} "
        f"{1e3 * each.step_seconds:8,.1f} ms {each.rows_per_second:9.4g} "
        f"{each.memory_bytes / GIB:6.3f} GiB {each.sent_bytes / MB:7,.2f} MB "
        f"{100 * each.efficiency:9.1f}% {100 * each.network_share:7.1f}% {bubble}"
    )


def _choice(each: Prediction) -> str:
    return f"{each.rows_per_second:.4g} rows/s, {each.device_seconds:.3g} device-seconds per row"


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


def write_trace(path: Path, timeline: Timeline) -> None:
    """Write a step as Chrome trace events, with one row per resource."""
    threads = list(dict.fromkeys(event.resource for event in timeline.events))
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
        for i, name in enumerate(threads)
    ]
    events = [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.kind,
            "pid": 0,
            "tid": threads.index(event.resource),
            "ts": 1e6 * event.start_seconds,
            "dur": 1e6 * event.seconds,
        }
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
