"""A network's stages on devices: which schedule, what a step takes, what a device holds.

Of a step that takes T seconds on one device, in m microbatches, a device's mean share of the d
devices takes T / (d m) a microbatch, a third each for F, B and W; stages differ by their work. What
lives between the passes is the compiled step's temporaries, divided in the same way.
"""

import dataclasses
import itertools
from collections.abc import Iterator

from replicator.layouts.network import Network
from replicator.layouts.program import COMPUTE
from replicator.layouts.simulation import Event, Timeline
from replicator.pipeline.building_blocks import BLOCKS
from replicator.pipeline.building_blocks import schedule as schedule_of
from replicator.pipeline.schedule import Schedule
from replicator.pipeline.simulation import Durations, Simulation, simulate

LIVING = "temporaries"  # what the compiler calls memory that lives within a step


@dataclasses.dataclass(frozen=True)
class Stages:
    """The natural stages of a network, as a manifest's "pipeline" has them.

    work: of each, in any one unit. passed_bytes: from a stage to the next, for one row.
    """

    work: tuple[float, ...]
    passed_bytes: float

    def joined(self, count: int) -> list[float]:
        """The work of `count` runs of consecutive stages, the largest as small as can be."""
        ends = [0, *itertools.accumulate(self.work)]
        cuts = itertools.combinations(range(1, len(self.work)), count - 1)
        runs = ([0, *cut, len(self.work)] for cut in cuts)
        shares = ([ends[b] - ends[a] for a, b in itertools.pairwise(run)] for run in runs)
        return min(shares, key=max)


@dataclasses.dataclass(frozen=True)
class PipelineStep:
    """What a schedule comes to: seconds of a step, bytes of the device that holds or sends most."""

    schedule: str
    microbatches: int
    bubble: float
    memory_bytes: float
    timeline: Timeline


def pipeline_steps(
    stages: Stages,
    devices: int,
    rows: int,
    seconds: float,
    memory: dict[str, int],
    network: Network,
) -> Iterator[PipelineStep]:
    """Yields every schedule that the stages are enough for, with each number of microbatches.

    Args:
      stages: of the network. devices: to put them on, at least 2.
      rows: of the batch, which microbatches divide.
      seconds: of a step on one device.
      memory: bytes of that step, by use.
      network: between two devices.
    """
    for name in BLOCKS:
        for count in (m for m in range(2, rows + 1) if rows % m == 0):
            made = schedule_of(name, devices, count)
            if len(made.devices) <= len(stages.work):
                yield _step(made, stages, rows // count, seconds, memory, network)


def _step(
    schedule: Schedule,
    stages: Stages,
    rows: int,
    seconds: float,
    memory: dict[str, int],
    network: Network,
) -> PipelineStep:
    devices, count = schedule.num_devices, schedule.num_microbatches
    work, passed = stages.joined(len(schedule.devices)), rows * stages.passed_bytes
    shares = [devices * each / sum(work) for each in work]
    third = seconds / (devices * count) / 3
    message = network.latency_seconds + passed / network.bytes_per_second
    found = simulate(schedule, Durations(third, third, third, message), shares)
    loads = [0.0] * devices
    for device, share in zip(schedule.devices, shares, strict=True):
        loads[device] += share
    kept = sum(size for use, size in memory.items() if use != LIVING)
    held = [
        (kept * load + memory.get(LIVING, 0) * peak / count) / devices
        for load, peak in zip(loads, found.peaks, strict=True)
    ]
    return PipelineStep(schedule.name, count, found.bubble, max(held), _timeline(found, passed))


def _timeline(found: Simulation, passed_bytes: float) -> Timeline:
    """The passes as events, a resource a device."""
    events = [
        Event(f"{each.kind}{each.stage}.{each.microbatch}", each.kind, f"{COMPUTE} {device}",
              found.spans[each][0], found.spans[each][1] - found.spans[each][0])
        for device, _, each in found.schedule.rows()
    ]  # fmt: skip
    return Timeline(events, passed_bytes * _messages(found.schedule))


def _messages(schedule: Schedule) -> int:
    """The most that a device sends in a step: forwards and backwards to its neighbours."""
    sent = [0] * schedule.num_devices
    for here, there in itertools.pairwise(schedule.devices):
        if here != there:
            sent[here] += schedule.num_microbatches
            sent[there] += schedule.num_microbatches
    return max(sent)
