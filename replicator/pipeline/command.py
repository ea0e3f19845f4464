"""`onepass pipeline`: time and memory of each kind of schedule, before a pipeline exists."""

import dataclasses
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from replicator.pipeline.simulation import Durations, Simulation, compare
from replicator.runs.errors import UserError

DESCRIPTION = """Compare pipeline schedules of one network: 1F1B, interleaved 1F1B, V-Half, V-Min,
V-ZB. Time is in the unit of the durations; the unit of activations is a device's share of the
network for one microbatch.

  onepass pipeline --devices 8 --microbatches 32 --plot schedules.png"""


@dataclasses.dataclass(frozen=True)
class PipelineArguments:
    """The size of the pipeline and the durations of its passes."""

    devices: int
    """Number of devices that hold the network."""
    microbatches: int
    """Number of parts of a batch."""
    forward: float = 1.0
    """Duration of the forward pass of a device's share of the network, any unit."""
    backward: float = 1.0
    """Duration of the gradient of its input, same unit."""
    weights: float = 1.0
    """Duration of the gradient of its weights, same unit."""
    communication: float = 0.0
    """Time from one device to the next, same unit."""
    json: Path | None = None
    """File for the table as JSON."""
    plot: Path | None = None
    """File for an image of all schedules: .png, .svg or .pdf."""
    trace: Path | None = None
    """File for a Chrome trace of all schedules."""


def run(arguments: list[str], parse) -> int:
    """Run `onepass pipeline ARGUMENTS` and return the exit status."""
    given = parse(PipelineArguments, arguments, "onepass pipeline", description=DESCRIPTION)
    if given.plot and given.plot.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"`--plot` must end in .png, .svg or .pdf, got {given.plot}.")
    durations = Durations(given.forward, given.backward, given.weights, given.communication)
    simulations = compare(given.devices, given.microbatches, durations)
    print(table(simulations))
    if given.json:
        given.json.write_text(json.dumps(to_json(simulations), indent=1) + "\n", encoding="utf-8")
    for path, write in ((given.plot, "write_plot"), (given.trace, "write_trace")):
        if path:
            getattr(importlib.import_module("replicator.pipeline.drawing"), write)(
                path, simulations
            )
    return 0


def table(simulations: Sequence[Simulation]) -> str:
    """Return a table, with throughput and memory as ratios to the first simulation."""
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
    """Return the table as one JSON object."""
    schedule = simulations[0].schedule
    return {
        "devices": schedule.num_devices,
        "microbatches": schedule.num_microbatches,
        "rows": [
            {
                "schedule": each.schedule.name,
                "time": each.makespan,
                "bubble": each.bubble,
                "peaks": each.peaks,
            }
            for each in simulations
        ],
    }
