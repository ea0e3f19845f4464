"""Build schedules by repeating a block, the passes of one microbatch, at an interval.

A block contains the slots of the passes F, B and W (explained in schedule.py) of microbatch 0 on
each stage; microbatch j runs j intervals later. Repeated without collisions, it gives a schedule,
which is then squeezed (Qi et al. 2024, arXiv 2405.15362, sections 2 and 3). If an activation lives
for l slots, those of l / T microbatches are live at once, where T is the interval, so the offsets
between stages determine the memory. With d devices:

    1f1b         one stage per device; F 1 slot after the previous stage's, fused backward 2 slots
                 after it
    interleaved  stages s, s + d, ... on device s; groups of d microbatches take turns
    v-*          stages s and 2d - 1 - s on device s, T = 6: the lifetimes of the two have the same
                 sum on every device, and d w / 6 microbatches of a device's share are live at once,
                 where w, offset of F + offset of B, is 2 (v-min), 3 (v-half) or 6 (v-zb)
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

from onepass.foundation.errors import UserError
from onepass.planning.pipeline.schedule import Pass, Schedule, fill, squeeze

Times = dict[tuple[str, int], int]
V_INTERVAL = 6  # F, B and W of two stages


class Block(NamedTuple):
    """The passes of one microbatch, and how they are repeated.

    Attributes:
      devices: index of the device that holds each stage.
      times: slot of each pass of microbatch 0, by (kind, stage).
      interval: number of slots between microbatches of one group.
      group: number of microbatches in a group.
      period: number of slots between the starts of consecutive groups.
      fused: whether B and W are one backward pass.
    """

    devices: tuple[int, ...]
    times: Times
    interval: int
    group: int = 1
    period: int = 0
    fused: bool = False


def one_forward_one_backward(devices: int) -> Block:
    """Return the block of 1F1B: one stage per device; the first of d keeps d microbatches live.

    Harlap et al. 2018, PipeDream (arXiv 1806.03377).
    """
    forward = [(("F", stage), stage) for stage in range(devices)]
    backward = [(("B", stage), devices + 2 * (devices - 1 - stage)) for stage in range(devices)]
    return _fused_block(tuple(range(devices)), dict(forward + backward))


def interleaved(devices: int, chunks: int = 2) -> Block:
    """Return the block of interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473).

    Each stage follows the previous one after an interval, so d microbatches fill the time until the
    first of them returns to device 0 for its next stage; then the next d follow.

    Args:
      devices: number of devices.
      chunks: number of stages per device.
    """
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
    collisions, keeps the fewest activations and, among such blocks, is the shortest.

    Args:
      devices: number of devices.
      offsets: number of slots between stages of F on the way down, F on the way up, B on the way
        down, and B on the way up (section 3.2 of the paper).
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
    """Return the named schedule for given numbers of devices and microbatches.

    Its passes are moved to earlier slots by `squeeze` and, if B and W are separate, by `fill`.

    Raises:
      UserError: the name is not in BLOCKS, or a number is below one.
    """
    if name not in BLOCKS:
        raise UserError(f"`schedule` must be one of {', '.join(BLOCKS)}, got {name}.")
    for what, count in (("devices", devices), ("microbatches", microbatches)):
        if count < 1:
            raise UserError(f"`{what}` must be at least 1, got {count}.")
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
