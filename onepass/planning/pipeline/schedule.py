"""Pipeline schedules: the device and the time slot of every pass of every microbatch.

A network is cut into S stages, each on one device. For every microbatch, a stage runs

    F  the forward pass,               after F of stage s - 1
    B  the gradient of its input,      after F of stage s and B of stage s + 1
    W  the gradient of its weights,    after B of stage s

(Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362). A stage's
activations for a microbatch are live from the start of F to the end of W. If the backward pass is
not split, W follows B immediately, and stage s - 1 waits for both.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

KINDS = ("F", "B", "W")
# Names in exported stages: tensors kept for a later pass, gradients, the loss, the weights file.
KEPT, GRADIENT, LOSS, WEIGHTS = "kept/", "gradient/", "loss", "weights.npz"


class Pass(NamedTuple):
    """One pass (F, B or W) of a stage and a microbatch, which takes one slot."""

    kind: str
    stage: int
    microbatch: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The slots of all passes.

    Attributes:
      name: name of the kind of schedule.
      devices: the device of each stage.
      slots: the time slot of each pass, all of equal length.
      fused: whether B and W are one backward pass.
    """

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
        missing = set(
            itertools.starmap(
                Pass,
                itertools.product(KINDS, range(len(self.devices)), range(self.num_microbatches)),
            )
        ) ^ set(self.slots)
        if missing:
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

    Idle slots of the warm-up take passes from later slots. The cool-down is the mirror image: with
    time reversed, lifetimes start with W and end with F. There, a W that can wait leaves its slot
    to a B that other devices need.
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
    live = _live(schedule, slots, begin, end)
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


def _live(schedule: Schedule, slots: Mapping[Pass, int], begin: str, end: str) -> list[list[int]]:
    """Return the live activations per device and slot; those that end in a slot still count."""
    changes = [[0] * (max(slots.values()) + 2) for _ in range(schedule.num_devices)]
    for each, slot in slots.items():
        changes[schedule.devices[each.stage]][slot] += each.kind == begin
        changes[schedule.devices[each.stage]][slot + 1] -= each.kind == end
    return [list(itertools.accumulate(device)) for device in changes]


def function_name(stage: int, kind: str) -> str:
    """Return the name of a pass's function in an exported folder."""
    return f"stage_{stage}_{kind}"
