"""The cost of a layout: memory and sent bytes per device, and the simulated time of a step."""

import collections
import dataclasses
from typing import Any

from .partition import Estimate
from .program import Operation, combine_collectives, read_program
from .simulation import Network, simulate

# Floating-point operations and memory bytes per second of a device; bandwidth in Gbit/s and latency
# in seconds between devices. Round numbers, so that the choice does not vary by machine.
RATES = {
    "cpu": (5e10, 1e10, 10.0, 5e-5),
    "gpu": (1e14, 1e12, 800.0, 1e-5),
    "tpu": (1e14, 1e12, 800.0, 1e-5),
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device, its memory (None: unlimited), and the network between devices."""

    flops_per_second: float
    bytes_per_second: float
    network: Network
    memory_bytes: float | None = None

    @classmethod
    def of(cls, platform: str, memory_bytes: float | None, link_gbps: float | None) -> "Machine":
        """Return a device of a platform (others: gpu) and its link, or the platform's default."""
        flops, moved, link, latency = RATES.get(platform, RATES["gpu"])
        network = Network(latency, (link_gbps or link) / 8e-9)
        return cls(flops, moved, network, memory_bytes)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Time of a step, memory and sent bytes per device, and the collectives in order."""

    seconds: float
    memory_bytes: float
    sent_bytes: float
    collectives: tuple[str, ...]

    def key(self, machine: Machine) -> tuple[float, ...]:
        """Return a sort key: excess memory, time to three digits, bytes sent, memory."""
        limit = self.memory_bytes if machine.memory_bytes is None else machine.memory_bytes
        excess = max(self.memory_bytes - limit, 0.0)
        return excess, float(f"{self.seconds:.3g}"), self.sent_bytes, self.memory_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the cost as JSON values."""
        return {
            "seconds": float(f"{self.seconds:.3g}"),
            "memory_bytes": int(self.memory_bytes),
            "sent_bytes": int(self.sent_bytes),
            "collectives": dict(collections.Counter(self.collectives)),
        }


@dataclasses.dataclass(frozen=True)
class Scale:
    """Ratios of the compiled step's computation time and temporaries to an estimate's."""

    seconds: float = 1.0
    temporaries: float = 1.0


def compiled_cost(compiled: Any, machine: Machine, devices: int) -> Cost:
    """Return the cost of a compiled step; its time is divided among computations by their bytes."""
    program = combine_collectives(read_program(compiled.as_text() or "", devices))
    computed = _compiled_seconds(compiled, machine)
    moved = sum(each.size_bytes for each in program if not each.is_collective)
    timed = [
        dataclasses.replace(each, seconds=computed * each.size_bytes / max(moved, 1.0))
        for each in program
    ]
    return _simulate_cost(timed, machine, compiled_bytes(compiled))


def compiled_bytes(compiled: Any) -> int:
    """Return the memory that a step needs per device, in bytes: arguments, results, temporaries."""
    found = compiled.memory_analysis()
    made = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + made + found.temp_size_in_bytes


def estimated_cost(estimate: Estimate, machine: Machine, scale: Scale) -> Cost:
    """Return the cost of a partitioned step, as if XLA combined independent collectives."""
    timed = [
        dataclasses.replace(each, seconds=scale.seconds * seconds)
        for each, seconds in zip(estimate.program, _seconds(estimate, machine), strict=True)
    ]
    memory = estimate.arguments_bytes + scale.temporaries * estimate.temporaries_bytes
    return _simulate_cost(combine_collectives(_in_rounds(timed)), machine, memory)


def scale_of(estimate: Estimate, compiled: Any, machine: Machine) -> Scale:
    """Return the ratios of the compiled step's time and memory to an estimate's."""
    computed = [
        seconds
        for each, seconds in zip(estimate.program, _seconds(estimate, machine), strict=True)
        if not each.is_collective
    ]
    more = compiled_bytes(compiled) - estimate.arguments_bytes
    return Scale(
        _compiled_seconds(compiled, machine) / max(sum(computed), 1e-12),
        max(more, 0) / max(estimate.temporaries_bytes, 1),
    )


def _compiled_seconds(compiled: Any, machine: Machine) -> float:
    found = compiled.cost_analysis() or {}
    flops, moved = found.get("flops", 0.0), found.get("bytes accessed", 0.0)
    return max(flops, 0.0) / machine.flops_per_second + moved / machine.bytes_per_second


def _seconds(estimate: Estimate, machine: Machine) -> list[float]:
    return [
        flops / machine.flops_per_second + each.size_bytes / machine.bytes_per_second
        for each, flops in zip(estimate.program, estimate.flops, strict=True)
    ]


def _simulate_cost(program: list[Operation], machine: Machine, memory_bytes: float) -> Cost:
    timeline = simulate(program, machine.network)
    collectives = tuple(each.kind for each in program if each.is_collective)
    return Cost(timeline.seconds, memory_bytes, timeline.sent_bytes, collectives)


def _in_rounds(program: list[Operation]) -> list[Operation]:
    """Return the program with independent collectives moved together and given one name.

    XLA combines them the same way: collectives that follow the same number of earlier collectives
    are exchanged together.
    """
    rounds: list[int] = []  # for each operation, the length of the chain of collectives before it
    for each in program:
        after = (rounds[i] + program[i].is_collective for i in each.inputs)
        rounds.append(max(after, default=0))

    def sort_key(i: int) -> tuple:
        each = program[i]
        together = (each.kind, each.name) if each.is_collective else ()
        return rounds[i], each.is_collective, *together

    order = sorted(range(len(program)), key=sort_key)
    now = {old: new for new, old in enumerate(order)}
    return [
        dataclasses.replace(
            program[i],
            name=str(sort_key(i)) if program[i].is_collective else program[i].name,
            inputs=tuple(sorted(now[j] for j in program[i].inputs)),
        )
        for i in order
    ]
