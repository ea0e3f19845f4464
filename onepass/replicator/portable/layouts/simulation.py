"""Read a compiled program, and simulate its operations in order on resources.

A program that XLA has partitioned describes one device, in scheduled order: shapes are those of its
shards, and exchanges between devices are separate operations. Every resource (a device's compute
units, a link, a worker, a server) runs its operations in program order; one starts when its
resource is free and its inputs are available. So a faster operation never delays another (unlike in
list scheduling, Graham 1969).

Collectives run in a ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations"): R devices reduce n bytes with 2 (R - 1) consecutive messages of n / R
bytes each, in 2 (R - 1) latency + 2 (R - 1) / R n / bandwidth.
"""

import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
# These operations take no time.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota"),
    *("partition-id", "replica-id", "after-all", "opt-barrier"),
}
_LINE = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][a-z\d-]*)\(([^()]*)\)(.*)$")
_HEADER = re.compile(r"^(ENTRY )?%([\w.-]+) .*\{$")
_SHAPE = re.compile(r"\b([a-z]+)(\d*)[a-z\d]*\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|body|condition|to_apply)=%([\w.-]+)")
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{([\d,]+)\}|\[(?:\d+,)*(\d+)\]<=|mesh\[(.*?)\] \{(.*?)\})"
)
COMPUTE, LINK = "compute", "link"
SERVERS = "servers"
UPDATES = 32


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation on a resource, which starts when its inputs, earlier operations, have ended."""

    name: str  # that all parts of a combined collective have in common
    kind: str  # the name of a collective, else a digest of the computation without shapes
    size_bytes: float  # read and written; of a collective, one device's input
    inputs: tuple[int, ...] = ()
    devices: int = 1
    resource: str = COMPUTE
    seconds: float = 0.0  # those of a collective follow from the network instead
    flops: float = 0.0  # floating-point operations

    @property
    def is_collective(self) -> bool:
        """True if devices exchange data."""
        return self.kind in COLLECTIVES


def read_program(text: str, num_devices: int) -> list[Operation]:
    """Return the operations of the entry computation in order, except those that take no time."""
    called = dict(_computations(text))
    entry = called.pop("ENTRY", [])

    @functools.cache
    def digest(name: str) -> str:
        parts = (describe(opcode, rest) for _, _, opcode, _, rest in called.get(name, []))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]

    def describe(opcode: str, rest: str) -> str:
        return "-".join([opcode, *map(digest, _CALLED.findall(rest))])

    program: list[Operation] = []
    given: dict[str, tuple[int, ...]] = {}  # operations that compute each value, by name
    pieces: dict[str, list[tuple[int, ...]]] = {}  # parts of a combined collective, by element
    sizes: dict[str, int] = {}
    for name, shape, opcode, operands, rest in entry:
        read = re.findall(r"%([\w.-]+)", operands)
        sizes[name] = _bytes(shape)
        waits = tuple(sorted({index for each in read for index in given.get(each, ())}))
        opcode = opcode.removesuffix("-start")
        if opcode in _FREE or opcode.endswith("-done"):
            element = re.search(r"index=(\d+)", rest)
            whole = pieces.get(read[0]) if read else None
            given[name] = whole[int(element[1])] if whole and element else waits
            if whole and not element:
                pieces[name] = whole
        elif opcode in COLLECTIVES:
            group = _group(rest, num_devices)
            pieces[name] = []
            for each in read:
                pieces[name].append((len(program),))
                size = float(sizes[each])
                program.append(Operation(name, opcode, size, given.get(each, ()), group, LINK))
            given[name] = tuple(index for (index,) in pieces[name])
        else:
            given[name] = (len(program),)
            moved = sizes[name] + sum(sizes.get(each, 0) for each in read)
            program.append(Operation(name, describe(opcode, rest), float(moved), waits))
    return program


def combine_collectives(program: list[Operation], most_bytes: float = math.inf) -> list[Operation]:
    """Return the program with combined collectives split into buckets of at most `most_bytes`.

    Their parts are exchanged in order, in buckets, each as soon as its contents are ready. With
    infinite buckets, the collectives are as compiled.
    """
    made: list[Operation] = []
    moved_to: list[int] = []  # new index of each operation
    for operation in program:
        inputs, size = {moved_to[index] for index in operation.inputs}, operation.size_bytes
        last = made[-1] if made and operation.is_collective else None
        if last and last.name == operation.name and last.size_bytes + size <= most_bytes:
            inputs, size = inputs.union(last.inputs), last.size_bytes + size
            operation = made.pop()
        waits = tuple(sorted(inputs))
        made.append(dataclasses.replace(operation, size_bytes=size, inputs=waits))
        moved_to.append(len(made) - 1)
    return made


def _computations(text: str) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    lines: list[tuple[str, ...]] = []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            lines = []
            yield "ENTRY" if header[1] else header[2], lines
        elif found := _LINE.match(line):
            lines.append(found.groups())


def _bytes(shape: str) -> int:
    total = 0
    for letters, bits, sizes in _SHAPE.findall(shape):
        width = 8 if letters in ("pred", "s", "u", "f", "bf", "c") and not bits else int(bits or 0)
        total += math.prod(map(int, filter(None, sizes.split(",")))) * max(width, 8) // 8
    return total


def _group(rest: str, num_devices: int) -> int:
    found = _GROUPS.search(rest)
    if found is None:
        return num_devices
    if found[1]:
        return found[1].count(",") + 1
    if found[2]:
        return int(found[2])
    axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[3])}
    return math.prod(axes[name] for name in re.findall(r"'(\w+)'", found[4]))


def compiled_memory(compiled: Any) -> dict[str, int]:
    """Return the bytes that the compiler reserves for a step on one device, by use."""
    found = compiled.memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    sizes = {"arguments": found.argument_size_in_bytes, "results": results}
    return {**sizes, "temporaries": found.temp_size_in_bytes}


def compiled_bytes(compiled: Any) -> int:
    """Return the sum of `compiled_memory`."""
    return sum(compiled_memory(compiled).values())


@dataclasses.dataclass(frozen=True)
class Network:
    """Latency in seconds and bandwidth in bytes per second between neighbours in a ring."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, kind: str, size_bytes: float, devices: int) -> float:
        """Return the time in seconds of a collective with `size_bytes` of input on each device."""
        sent = sent_bytes(kind, size_bytes, devices)
        return messages(kind, devices) * self.latency_seconds + sent / self.bytes_per_second


def messages(kind: str, devices: int) -> int:
    """Return the number of consecutive messages that a device sends in a collective."""
    if devices == 1:
        return 0
    if kind.startswith("collective-"):
        return 1
    return (2 if kind == "all-reduce" else 1) * (devices - 1)


def sent_bytes(kind: str, size_bytes: float, devices: int) -> float:
    """Return the bytes that a device sends (and receives) for an input of `size_bytes`."""
    if devices == 1:
        return 0.0
    others = devices - 1
    factors = {"all-reduce": 2 * others / devices, "all-gather": others}  # its input is a shard
    once = 1.0 if kind.startswith("collective-") else others / devices
    return factors.get(kind, once) * size_bytes


@dataclasses.dataclass(frozen=True)
class Event:
    """One operation on a resource, with its start and duration."""

    name: str
    kind: str
    resource: str
    start_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The simulated step of each device: start and duration of every operation, in order."""

    events: list[Event]
    sent_bytes: float

    @property
    def seconds(self) -> float:
        """End of the last event."""
        return max((event.start_seconds + event.seconds for event in self.events), default=0.0)

    def busy_seconds(self, resource: str) -> float:
        """Return the seconds for which a resource is not idle."""
        return sum(event.seconds for event in self.events if event.resource == resource)


def simulate(program: list[Operation], network: Network, compute_scale: float = 1.0) -> Timeline:
    """Return the timeline of a program, with computations slower by `compute_scale`."""
    free: dict[str, float] = {}
    ends: list[float] = []
    events: list[Event] = []
    sent = 0.0
    for operation in program:
        seconds = compute_scale * operation.seconds
        if operation.is_collective:
            seconds = network.seconds(operation.kind, operation.size_bytes, operation.devices)
            sent += sent_bytes(operation.kind, operation.size_bytes, operation.devices)
        ready = max((ends[index] for index in operation.inputs), default=0.0)
        start = max(ready, free.get(operation.resource, 0.0))
        free[operation.resource] = start + seconds
        ends.append(start + seconds)
        events.append(Event(operation.name, operation.kind, operation.resource, start, seconds))
    return Timeline(events, sent)


def sharing_scale(
    replicas: int, busy_share: float = 1.0, paired_scale: float | None = None
) -> float:
    """Return the factor by which replicas that share cores are slower than a single one.

    What busy shares do not explain of `paired_scale`, the measured slowdown of a replica next to
    another (caches, bandwidth), is assumed to be the same for more replicas.
    """
    if replicas == 1 or paired_scale is None:
        return max(1.0, replicas * busy_share)
    return paired_scale * sharing_scale(replicas, busy_share) / sharing_scale(2, busy_share)


def synchronous(seconds: float, reduced_bytes: list[float], devices: int) -> list[Operation]:
    """Return a replica's step: compute, then reduce each of `reduced_bytes` without overlap."""
    step = Operation("step", "step", 0.0, seconds=seconds)
    reduces = (Operation("reduce", "all-reduce", n, (0,), devices, LINK) for n in reduced_bytes)
    return [step, *reduces]


def asynchronous_rate(
    seconds: float,
    size_bytes: float,
    workers: int,
    servers: int,
    network: Network,
    handling_seconds: float = 0.0,
) -> tuple[float, Timeline]:
    """Return the updates per second with workers and parameter servers, and a timeline.

    A worker reads all variables, computes, and adds its changes (Dean et al. 2012). A worker's link
    carries all bytes each way, a server's link its share of every worker's bytes.
    `handling_seconds` is the processor time at either end for the messages of all variables in one
    direction; the timeline contains UPDATES updates of each worker.
    """
    transfer = network.latency_seconds + size_bytes / network.bytes_per_second
    # Variables on several servers arrive from all of them at once, limited by the worker's link.
    held = transfer / servers
    served = held + handling_seconds / servers
    program: list[Operation] = []
    last: list[tuple[int, ...]] = [()] * workers
    for _ in range(UPDATES):
        for name, resource, taken in (
            ("read", SERVERS, served),
            ("arrive", LINK, transfer - held),
            ("compute", COMPUTE, seconds + 2 * handling_seconds),
            ("add", SERVERS, served),
            ("left", LINK, transfer - held),
        ):
            for worker in range(workers):
                at = resource if resource == SERVERS else f"{resource} {worker}"
                program.append(Operation(name, name, 0.0, last[worker], 1, at, taken))
                last[worker] = (len(program) - 1,)
    timeline = simulate(program, network)
    events = timeline.events
    first = max(e.start_seconds + e.seconds for e in events[: len(events) // UPDATES])
    return workers * (UPDATES - 1) / (timeline.seconds - first), timeline
