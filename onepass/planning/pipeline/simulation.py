"""Simulate time and memory of a schedule, given the durations of its passes.

    start(p) = max(end of the pass before p on its device,
                   end(q) + communication(q, p) for every q that p needs)
    bubble   = 1 - work of all devices / (devices * makespan)

Communication takes time only between different devices, and overlaps with the passes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from onepass.foundation.errors import UserError
from onepass.planning.pipeline.building_blocks import BLOCKS
from onepass.planning.pipeline.building_blocks import schedule as schedule_of
from onepass.planning.pipeline.schedule import Pass, Schedule


@dataclasses.dataclass(frozen=True)
class Durations:
    """Durations for a device's mean share of the network and one microbatch, in any unit of time.

    Attributes:
      forward, backward, weights: durations of the passes F, B and W.
      communication: time to send a stage's output from one device to another.
    """

    forward: float = 1.0
    backward: float = 1.0
    weights: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        """Raise UserError for an infinite or non-positive duration; communication may be 0."""
        for name, value in dataclasses.asdict(self).items():
            if not (0 <= value < math.inf and (value or name == "communication")):
                least = "0 or more" if name == "communication" else "above 0"
                raise UserError(f"`{name}` must be {least} and finite, got {value}.")

    def of(self, kind: str) -> float:
        """Return the duration of a pass of kind F, B or W."""
        return {"F": self.forward, "B": self.backward, "W": self.weights}[kind]


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The result of simulating a schedule.

    Attributes:
      schedule: the schedule that was simulated.
      spans: start and end of every pass.
      peaks: largest amount of activations live at the same time on each device; 1 is the amount of
        a device's mean share of the network for one microbatch.
      makespan: end of the last pass.
      bubble: share of the devices' time that they spend waiting.
    """

    schedule: Schedule
    spans: Mapping[Pass, tuple[float, float]]
    peaks: tuple[float, ...]
    makespan: float
    bubble: float


def simulate(
    schedule: Schedule,
    durations: Durations = Durations(),
    shares: Sequence[float] | None = None,
) -> Simulation:
    """Simulate a schedule, with the passes on every device in the schedule's order.

    Args:
      schedule: a schedule, such as a result of `building_blocks.schedule`.
      durations: durations of the passes, and of the communication between them.
      shares: work and activations of each stage, 1 being a device's mean share of the network;
        by default all stages are equal.

    Raises:
      ValueError: `shares` does not have one entry per stage.
    """
    shares = shares or [1.0 / schedule.num_chunks] * len(schedule.devices)
    if len(shares) != len(schedule.devices):
        raise ValueError(f"`shares` must be {len(schedule.devices)}, got {len(shares)}.")
    spans: dict[Pass, tuple[float, float]] = {}
    idle, work = [0.0] * schedule.num_devices, 0.0
    for device, _, each in schedule.rows():
        ready = [
            spans[need][1] + durations.communication * (schedule.devices[need.stage] != device)
            for need in schedule.needs(each)
        ]
        start, duration = max([idle[device], *ready]), durations.of(each.kind) * shares[each.stage]
        idle[device], work = start + duration, work + duration
        spans[each] = start, idle[device]
    makespan = max(idle)
    bubble = 1.0 - work / (schedule.num_devices * makespan)
    return Simulation(schedule, spans, tuple(schedule.peaks(shares)), makespan, bubble)


def compare(
    devices: int,
    microbatches: int,
    durations: Durations = Durations(),
) -> list[Simulation]:
    """Simulate every kind of schedule for one network, 1F1B first.

    Raises:
      UserError: the number of devices or microbatches is below 1.
    """
    names = list(BLOCKS)
    return [simulate(schedule_of(name, devices, microbatches), durations) for name in names]
