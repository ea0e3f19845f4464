"""Predict step time and memory per device of a network's pipeline schedules.

If a step takes T seconds on one device, each of m microbatches takes T / (d m) on each of d devices
on average, a third of it for each of F, B and W; stages differ in their work. The memory between
passes is the memory of the compiled step's temporaries, divided in the same way.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from onepass.planning.pipeline.schedule import BLOCKS, Durations, Schedule, Simulation, simulate
from onepass.planning.pipeline.schedule import schedule as schedule_of
from onepass.replicator.portable.layouts.program import COMPUTE
from onepass.replicator.portable.layouts.simulation import Event, Network, Timeline

LIVING = "temporaries"  # the compiler's term for memory that is live only within a step


@dataclasses.dataclass(frozen=True)
class Stages:
    """The smallest stages of a network, with work in any unit, and bytes passed on per row."""

    work: tuple[float, ...]
    passed_bytes: float

    def join_stages(self, count: int) -> list[float]:
        """Return the work of each of `count` groups of consecutive stages.

        The largest is as small as possible and, if several are, earlier groups are short.
        """
        ends, total = [0.0, *itertools.accumulate(self.work)], len(self.work)
        if not 1 <= count <= total:
            raise ValueError(f"`count` must be from 1 to {total}, got {count}.")

        @functools.cache
        def largest(first: int, runs: int) -> float:
            """Return the smallest maximum for `runs` groups of the stages starting at `first`."""
            if runs == 1:
                return ends[-1] - ends[first]
            lasts = range(first + 1, total - runs + 2)
            return min(
                (max(ends[last] - ends[first], largest(last, runs - 1)) for last in lasts),
                default=math.inf,
            )

        # Choose the first cut from which the rest can reach the best bound: earlier groups are
        # shorter.
        bound, cuts = largest(0, count), [0]
        for left in range(count - 1, 0, -1):
            lasts = (n for n in range(cuts[-1] + 1, total) if largest(n, left) <= bound)
            cuts.append(next(last for last in lasts if ends[last] - ends[cuts[-1]] <= bound))
        return [ends[b] - ends[a] for a, b in itertools.pairwise([*cuts, total])]


@dataclasses.dataclass(frozen=True)
class PipelineStep:
    """A simulated schedule: its timeline, and the memory of the device that needs the most."""

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
    """Yield a step for every schedule that the stages allow and every number of microbatches.

    That number divides `rows` and is at least 2; `seconds` and `memory`, bytes by use, are those of
    a step on one device.
    """
    counts = [count for count in range(2, rows + 1) if rows % count == 0]
    for name, count in itertools.product(BLOCKS, counts):
        made = schedule_of(name, devices, count)
        if len(made.devices) > len(stages.work):
            continue
        work, passed = stages.join_stages(len(made.devices)), rows // count * stages.passed_bytes
        shares = [devices * each / sum(work) for each in work]
        third = seconds / (devices * count) / 3
        message = network.latency_seconds + passed / network.bytes_per_second
        found = simulate(made, Durations(third, third, third, message), shares)
        loads = [0.0] * devices
        for device, share in zip(made.devices, shares, strict=True):
            loads[device] += share
        kept = sum(size for use, size in memory.items() if use != LIVING)
        # Weights, gradients and moments are divided like stages, temporaries by live microbatches.
        held = [
            (kept * load + memory.get(LIVING, 0) * peak / count) / devices
            for load, peak in zip(loads, found.peaks, strict=True)
        ]
        yield PipelineStep(name, count, found.bubble, max(held), _timeline(found, passed))


def _timeline(found: Simulation, passed_bytes: float) -> Timeline:
    events = [
        Event(f"{each.kind}{each.stage}.{each.microbatch}", each.kind, f"{COMPUTE} {device}",
              found.spans[each][0], found.spans[each][1] - found.spans[each][0])
        for device, _, each in found.schedule.rows()
    ]  # fmt: skip
    return Timeline(events, passed_bytes * _messages(found.schedule))


def _messages(schedule: Schedule) -> int:
    sent = [0] * schedule.num_devices
    for here, there in itertools.pairwise(schedule.devices):
        if here != there:
            sent[here] += schedule.num_microbatches
            sent[there] += schedule.num_microbatches
    return max(sent)
