"""Simulate a dataflow: operations with dependencies, run in order on resources.

Every resource (a device's compute units, a link, a worker, a server) runs its operations one after
another in program order; an operation starts when its resource is free and its inputs are
available. Since the order is fixed, every end time is a maximum of sums of durations, so a faster
operation never delays another (unlike in list scheduling, Graham 1969).

Collectives run in a ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for
clusters of workstations"): R devices reduce n bytes with 2 (R - 1) consecutive messages of n / R
bytes each, in 2 (R - 1) latency + 2 (R - 1) / R n / bandwidth.
"""

import dataclasses

from .program import COMPUTE, LINK, Operation

SERVERS = "servers"


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
    """Return the number of bytes that a device sends (and receives) for an input of `size_bytes`.

    all-reduce: 2 (R - 1) / R n. all-gather: (R - 1) n, as n is a shard. reduce-scatter, all-to-all:
    (R - 1) / R n. collective-permute: n. One device sends nothing.
    """
    if devices == 1:
        return 0.0
    others = devices - 1
    factors = {"all-reduce": 2 * others / devices, "all-gather": others}
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

    Args:
      paired_scale: measured slowdown of a replica next to another; None: not measured. The part
        that busy shares do not explain (caches, bandwidth) is assumed to be the same for more
        replicas.
    """
    if replicas == 1 or paired_scale is None:
        return max(1.0, replicas * busy_share)
    return paired_scale * sharing_scale(replicas, busy_share) / sharing_scale(2, busy_share)


def synchronous(seconds: float, reduced_bytes: list[float], devices: int) -> list[Operation]:
    """Return a replica's step: compute, then reduce each of `reduced_bytes` without overlap."""
    step = Operation("step", "step", 0.0, seconds=seconds)
    return [
        step,
        *(Operation("reduce", "all-reduce", n, (0,), devices, LINK) for n in reduced_bytes),
    ]


def asynchronous_rate(
    seconds: float,
    size_bytes: float,
    workers: int,
    servers: int,
    network: Network,
    handling_seconds: float = 0.0,
    updates: int = 32,
) -> tuple[float, Timeline]:
    """Return the updates per second with workers and parameter servers, and a timeline.

    A worker reads all variables, computes, and adds its changes (Dean et al. 2012). A worker's link
    carries all bytes each way, a server's link its share of every worker's bytes.
    `handling_seconds` is the processor time at either end for the messages of all variables in one
    direction; the timeline contains `updates` updates of each worker.
    """
    transfer = network.latency_seconds + size_bytes / network.bytes_per_second
    # Variables on several servers arrive from all of them at once, limited by the worker's link.
    held = transfer / servers
    served = held + handling_seconds / servers
    program: list[Operation] = []
    last: list[tuple[int, ...]] = [()] * workers
    for _ in range(updates):
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
    first = max(e.start_seconds + e.seconds for e in events[: len(events) // updates])
    return workers * (updates - 1) / (timeline.seconds - first), timeline
