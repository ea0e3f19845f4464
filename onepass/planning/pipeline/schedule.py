"""Pipeline schedules: made of building blocks, and their simulated time and memory.

The passes of a stage and a microbatch are F, the forward pass, B, the gradient of its input, and W,
that of its weights (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv
2405.15362). If the backward pass is not split, W follows B immediately, and stage s - 1 waits for
both. docs/pipelines.md explains how blocks become schedules, and compares them.

A simulation has

    start(p) = max(end of the pass before p on its device,
                   end(q) + communication(q, p) for every q that p needs)
    bubble   = 1 - work of all devices / (devices * makespan)

where communication takes time only between different devices, and overlaps with the passes.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onepass.foundation.rules import UserError, must_be, require
from onepass.replicator.portable.layouts.simulation import COMPUTE, Event, Network, Timeline

KINDS = ("F", "B", "W")
# Names in exported stages: tensors kept for a later pass, gradients, the loss, the weights file.
KEPT, GRADIENT, LOSS, WEIGHTS = "kept/", "gradient/", "loss", "weights.npz"
Times = dict[tuple[str, int], int]
V_INTERVAL = 6  # F, B and W of two stages
LIVING = "temporaries"  # the compiler's term for memory that is live only within a step


class Pass(NamedTuple):
    """One pass (F, B or W) of a stage and a microbatch, which takes one slot."""

    kind: str
    stage: int
    microbatch: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The slots of passes and the devices of stages; if `fused`, B and W are one backward pass."""

    name: str
    devices: tuple[int, ...]
    slots: Mapping[Pass, int]
    fused: bool = False

    @property
    def num_devices(self) -> int:
        """Number of devices that hold stages."""
        return max(self.devices) + 1

    @property
    def num_chunks(self) -> int:
        """Number of stages per device."""
        return len(self.devices) // self.num_devices

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches per step."""
        return 1 + max(each.microbatch for each in self.slots)

    def needs(self, each: Pass) -> Iterator[Pass]:
        """Yield the passes that must end before this one starts."""
        kind, stage, microbatch = each
        if kind == "W":
            yield Pass("B", stage, microbatch)
        elif kind == "B":
            yield Pass("F", stage, microbatch)
            if stage + 1 < len(self.devices):
                yield Pass("W" if self.fused else "B", stage + 1, microbatch)
        elif stage:
            yield Pass("F", stage - 1, microbatch)

    def in_order(self) -> list[Pass]:
        """Return all passes, sorted by slot and then by device."""
        return sorted(self.slots, key=lambda each: (self.slots[each], self.devices[each.stage]))

    def rows(self) -> list[tuple[int, int, Pass]]:
        """Return (device, slot, pass) for every pass, in the order of `in_order`."""
        return [(self.devices[p.stage], self.slots[p], p) for p in self.in_order()]

    def peaks(self, shares: Sequence[float] | None = None) -> list[float]:
        """Return each device's peak of live activations, weighted by `shares` per stage (or 1)."""
        live, peaks = [0.0] * self.num_devices, [0.0] * self.num_devices
        for device, _, (kind, stage, _) in self.rows():
            share = shares[stage] if shares else 1
            live[device] += share * (kind == "F")
            peaks[device] = max(peaks[device], live[device])
            live[device] -= share * (kind == "W")
        return peaks

    def check(self) -> None:
        """Raise ValueError unless every pass runs once, in its own slot, after those it needs."""
        stages, numbers = range(len(self.devices)), range(self.num_microbatches)
        every = itertools.starmap(Pass, itertools.product(KINDS, stages, numbers))
        if missing := set(every) ^ set(self.slots):
            raise ValueError(f"`slots` must hold every pass once, got {min(missing)} wrong.")
        taken: dict[tuple[int, int], Pass] = {}
        for device, slot, each in self.rows():
            other = taken.setdefault((device, slot), each)
            if other != each:
                raise ValueError(f"`slots` must differ on a device, got {slot}: {other}, {each}.")
            late = [need for need in self.needs(each) if self.slots[need] >= slot]
            if late:
                raise ValueError(f"`slots` must put {each} after {late[0]}.")


def squeeze(schedule: Schedule) -> Schedule:
    """Return a schedule with passes as early as dependencies and the order on devices allow."""
    slots: dict[Pass, int] = {}
    idle = [0] * schedule.num_devices
    for each in schedule.in_order():
        device = schedule.devices[each.stage]
        slots[each] = max([idle[device], *(slots[need] + 1 for need in schedule.needs(each))])
        idle[device] = slots[each] + 1
    return dataclasses.replace(schedule, slots=slots)


def fill(schedule: Schedule) -> Schedule:
    """Return a schedule with passes moved to idle slots at both ends; the peak is unchanged.

    The cool-down is the mirror image of the warm-up: lifetimes start with W and end with F.
    """
    limit, last = max(schedule.peaks()), max(schedule.slots.values())
    needs = {each: list(schedule.needs(each)) for each in schedule.slots}
    needed_by: dict[Pass, list[Pass]] = {each: [] for each in schedule.slots}
    for each, before in needs.items():
        for need in before:
            needed_by[need].append(each)
    slots = _earlier(schedule, schedule.slots, needs, ("F", "W"), limit)
    mirrored = {each: last - slot for each, slot in slots.items()}
    mirrored = _earlier(schedule, mirrored, needed_by, ("W", "F"), limit)
    slots = {each: last - slot for each, slot in mirrored.items()}
    return squeeze(dataclasses.replace(schedule, slots=slots))


def _earlier(
    schedule: Schedule,
    slots: Mapping[Pass, int],
    needs: Mapping[Pass, list[Pass]],
    ends: tuple[str, str],
    limit: float,
) -> dict[Pass, int]:
    """Return the slots after moving each pass to the first idle slot after those it needs.

    The `ends` kinds of passes start and end activations, of which at most `limit` live.
    """
    begin, end = ends
    # Live activations per device and slot; those that end in a slot still count.
    changes = [[0] * (max(slots.values()) + 2) for _ in range(schedule.num_devices)]
    for each, slot in slots.items():
        changes[schedule.devices[each.stage]][slot] += each.kind == begin
        changes[schedule.devices[each.stage]][slot + 1] -= each.kind == end
    live = [list(itertools.accumulate(device)) for device in changes]
    taken = {(schedule.devices[each.stage], slot) for each, slot in slots.items()}
    moved: dict[Pass, int] = {}
    for each in sorted(slots, key=lambda each: slots[each]):
        device, slot = schedule.devices[each.stage], slots[each]
        first = max([0, *(moved[need] + 1 for need in needs[each])])
        if each.kind == begin:
            # It adds an activation to all slots up to its old one, so it stays after the last full
            # slot.
            full = (t for t in range(slot - 1, first - 1, -1) if live[device][t] >= limit)
            first = next(full, first - 1) + 1
        idle = (t for t in range(first, slot) if (device, t) not in taken)
        moved[each] = earlier = next(idle, slot)
        taken ^= {(device, earlier), (device, slot)} if earlier < slot else set()
        if each.kind == begin:
            live[device][earlier:slot] = [n + 1 for n in live[device][earlier:slot]]
        elif each.kind == end:
            after = slice(earlier + 1, slot + 1)
            live[device][after] = [n - 1 for n in live[device][after]]
    return moved


def function_name(stage: int, kind: str) -> str:
    """Return the name of a pass's function in an exported folder."""
    return f"stage_{stage}_{kind}"


class Block(NamedTuple):
    """The passes of one microbatch, and how they are repeated.

    `times` has the slot of each pass of microbatch 0, by (kind, stage). Microbatches of one `group`
    follow after an `interval` of slots, groups after a `period`.
    """

    devices: tuple[int, ...]
    times: Times
    interval: int
    group: int = 1
    period: int = 0
    fused: bool = False


def one_forward_one_backward(devices: int) -> Block:
    """Return the block of 1F1B, a stage per device (Harlap et al. 2018, arXiv 1806.03377)."""
    forward = [(("F", stage), stage) for stage in range(devices)]
    backward = [(("B", stage), devices + 2 * (devices - 1 - stage)) for stage in range(devices)]
    return _fused_block(tuple(range(devices)), dict(forward + backward))


def interleaved(devices: int, chunks: int = 2) -> Block:
    """Return the block of interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473)."""
    stages = devices * chunks
    times: Times = {("F", stage): 3 * stage for stage in range(stages)}
    times |= {("B", stage): 3 * (2 * stages - 2 - stage) + 1 for stage in range(stages)}
    return _fused_block(tuple(range(devices)) * chunks, times, devices, 3 * stages)


def _fused_block(devices: tuple[int, ...], times: Times, group: int = 1, period: int = 3) -> Block:
    weights = {("W", stage): slot + 1 for (kind, stage), slot in times.items() if kind == "B"}
    return Block(devices, times | weights, 3, group, period, fused=True)


def v_shape(devices: int, offsets: tuple[int, int, int, int]) -> Block:
    """Return a block of two stages per device, down the devices and back up.

    The waits at the turning points and the order of W are chosen so that the block repeats without
    collisions, keeps the fewest activations and, among such blocks, is the shortest. `offsets` are
    the numbers of slots between stages of F on the way down and up, and of B.
    """
    down, up, back_down, back_up = ([offset] * (devices - 1) for offset in offsets)
    found: list[tuple[int, int, int, Times]] = []
    for first, second, third in itertools.product(range(1, V_INTERVAL + 1), repeat=3):
        steps = [0, *down, first, *up, second, *back_down, third, *back_up]
        slots = list(itertools.accumulate(steps))
        times: Times = {("F", stage): slots[stage] for stage in range(2 * devices)}
        times |= {("B", stage): slots[-1 - stage] for stage in range(2 * devices)}
        held = _add_weights(times, devices)
        if held is not None:
            found.append((held, max(times.values()), len(found), times))
    holders = (*range(devices), *reversed(range(devices)))
    return Block(holders, min(found)[-1], V_INTERVAL, period=V_INTERVAL)


def _add_weights(times: Times, devices: int) -> int | None:
    """Add W in free slots; return the peak of live activations, or None if passes collide."""
    most = 0
    for device in range(devices):
        stages = device, 2 * devices - 1 - device
        left = set(range(V_INTERVAL)) - {
            times[kind, s] % V_INTERVAL for kind in "FB" for s in stages
        }
        if len(left) != len(stages):
            return None
        held, *ends = min(_ends(times, stages, phases) for phases in itertools.permutations(left))
        times.update({("W", stage): end for stage, end in zip(stages, ends, strict=True)})
        most = max(most, held)
    return most


def _ends(times: Times, stages: tuple[int, ...], phases: tuple[int, ...]) -> tuple[int, ...]:
    """Return the peak of live activations for given phases of W, and the slots of W."""
    T, lives = V_INTERVAL, []
    for stage, phase in zip(stages, phases, strict=True):
        backward = times["B", stage]
        lives.append((times["F", stage], backward + 1 + (phase - backward - 1) % T))
    # Microbatches live from F + jT to W + jT: at slot t, (t - F) // T + (W - t) // T + 1 of them.
    held = max(sum((t - f) // T + (w - t) // T + 1 for f, w in lives) for t in range(T))
    return held, *(end for _, end in lives)


BLOCKS: dict[str, Callable[[int], Block]] = {
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "v-half": lambda devices: v_shape(devices, (2, 1, 2, 1)),
    "v-min": lambda devices: v_shape(devices, (1, 1, 1, 1)),
    "v-zb": lambda devices: v_shape(devices, (4, 2, 4, 2)),
}


def schedule(name: str, devices: int, microbatches: int) -> Schedule:
    """Return the named schedule for given numbers of devices and microbatches, squeezed, filled."""
    require(name in BLOCKS, "schedule", f"one of {', '.join(BLOCKS)}", name)
    for what, count in (("devices", devices), ("microbatches", microbatches)):
        require(count >= 1, what, "at least 1", count)
    repeated = repeat(name, BLOCKS[name](devices), microbatches)
    return squeeze(repeated) if repeated.fused else fill(squeeze(repeated))


def repeat(name: str, block: Block, microbatches: int) -> Schedule:
    """Return a schedule that repeats a block for all microbatches, neither squeezed nor filled."""
    starts = [
        number % block.group * block.interval + number // block.group * block.period
        for number in range(microbatches)
    ]
    slots = {
        Pass(kind, stage, number): slot + start
        for number, start in enumerate(starts)
        for (kind, stage), slot in block.times.items()
    }
    return Schedule(name, block.devices, slots, block.fused)


@dataclasses.dataclass(frozen=True)
class Durations:
    """Durations for a device's mean share of the network and one microbatch, in any unit of time.

    `communication` is the time to send a stage's output from one device to another.
    """

    forward: float = 1.0
    backward: float = 1.0
    weights: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        """Raise UserError for an infinite or non-positive duration; communication may be 0."""
        for name, value in dataclasses.asdict(self).items():
            if not (0 <= value < math.inf and (value or name == "communication")):
                least = "at least 0" if name == "communication" else "above 0"
                raise UserError(f"`{name}` must be {least} and finite, got {value}.")

    def of(self, kind: str) -> float:
        """Return the duration of a pass of kind F, B or W."""
        return {"F": self.forward, "B": self.backward, "W": self.weights}[kind]


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The result of simulating a schedule.

    `peaks` are the largest amounts of activations live at the same time on each device; 1 is the
    amount of a device's mean share of the network for one microbatch.
    """

    schedule: Schedule
    spans: Mapping[Pass, tuple[float, float]]  # start and end of every pass
    peaks: tuple[float, ...]
    makespan: float  # the last end
    bubble: float  # share of the devices' time that they spend waiting


def simulate(
    schedule: Schedule, durations: Durations = Durations(), shares: Sequence[float] | None = None
) -> Simulation:
    """Simulate a schedule, with the passes on every device in the schedule's order.

    `shares` has the work and activations of each stage, 1 being a device's mean share of the
    network; by default all stages are equal.
    """
    shares = shares or [1.0 / schedule.num_chunks] * len(schedule.devices)
    if len(shares) != len(schedule.devices):
        raise ValueError(must_be("shares", str(len(schedule.devices)), len(shares)))
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
    devices: int, microbatches: int, durations: Durations = Durations()
) -> list[Simulation]:
    """Simulate every kind of schedule for one network, 1F1B first."""
    return [simulate(schedule(name, devices, microbatches), durations) for name in BLOCKS]


@dataclasses.dataclass(frozen=True)
class Stages:
    """The smallest stages of a network, with work in any unit, and bytes passed on per row."""

    work: tuple[float, ...]
    passed_bytes: float

    def join_stages(self, count: int) -> list[float]:
        """Return the work of `count` groups of consecutive stages, the largest one minimal."""
        ends, total = [0.0, *itertools.accumulate(self.work)], len(self.work)
        if not 1 <= count <= total:
            raise ValueError(must_be("count", f"between 1 and {total}", count))

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

        # The first cut from which the rest can reach the best bound: earlier groups are shorter.
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
        made = schedule(name, devices, count)
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
    sent = [0] * found.schedule.num_devices  # messages of each device
    for here, there in itertools.pairwise(found.schedule.devices):
        if here != there:
            sent[here] += found.schedule.num_microbatches
            sent[there] += found.schedule.num_microbatches
    return Timeline(events, passed_bytes * max(sent))
