"""A dataflow in time: operations on resources, each in its order, and what they wait for.

Every resource (a device's compute, a link, a worker, a server) makes its operations one after
another in the order of the program; an operation begins when its resource is free and what it waits
for has ended. Orders are fixed, so that an end is a maximum of sums of seconds: nothing that gets
faster can make anything later (other than in list scheduling, Graham 1969).
"""

import dataclasses

from .network import Network, sent_bytes
from .program import COMPUTE, LINK, Operation

DEVICE, SERVERS = "device", "servers"


@dataclasses.dataclass(frozen=True)
class Event:
    """What a resource did, from when and for how long."""

    name: str
    kind: str
    resource: str
    start_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A simulated step of one device; all others make the same.

    Attributes:
      events: in the order of the program.
      sent_bytes: over its link.
    """

    events: list[Event]
    sent_bytes: float

    @property
    def seconds(self) -> float:
        """When the last event has ended."""
        return max((event.start_seconds + event.seconds for event in self.events), default=0.0)

    def busy_seconds(self, resource: str) -> float:
        """For which a resource is not idle."""
        return sum(event.seconds for event in self.events if event.resource == resource)


def simulate(program: list[Operation], network: Network, compute_scale: float = 1.0) -> Timeline:
    """The timeline of a program.

    Args:
      program: computations with their seconds; collectives with their bytes and devices.
      network: what collectives take.
      compute_scale: how many times as long a computation takes, see `sharing_scale`.
    """
    free: dict[str, float] = {}
    ends: list[float] = []
    events: list[Event] = []
    sent = 0.0
    for operation in program:
        seconds = compute_scale * operation.seconds
        if operation.is_collective:
            exchanged = (operation.kind, operation.size_bytes, operation.devices)
            seconds = network.seconds(*exchanged)
            sent += sent_bytes(*exchanged)
        ready = max((ends[index] for index in operation.inputs), default=0.0)
        start = max(ready, free.get(operation.resource, 0.0))
        free[operation.resource] = start + seconds
        ends.append(start + seconds)
        events.append(Event(operation.name, operation.kind, operation.resource, start, seconds))
    return Timeline(events, sent)


def sharing_scale(
    replicas: int, busy_share: float = 1.0, beside_scale: float | None = None
) -> float:
    """How many times as long each of `replicas` takes that share the cores which one had alone.

    Args:
      busy_share: of the cores, that one kept busy; what it left idle, others can use.
      beside_scale: how many times as long one takes beside one other, measured. What these two
        take longer than their busy shares say (caches, bandwidth), more replicas do too.
    """
    if replicas == 1 or beside_scale is None:
        return max(1.0, replicas * busy_share)
    return beside_scale * sharing_scale(replicas, busy_share) / sharing_scale(2, busy_share)


def synchronous(seconds: float, reduced_bytes: list[float], devices: int) -> list[Operation]:
    """The step of a replica that computes, then reduces, with no overlap: those of TensorFlow.

    reduced_bytes: what it gives, a collective each.
    """
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
    """Updates a second of workers around parameter servers, and the timeline of `updates` of each.

    A worker reads all variables, computes, and adds what changed (Dean et al. 2012): a worker's
    own link carries all bytes each way, the link of a server its part of every worker's.

    Args:
      seconds: of a worker's computation. size_bytes: of all variables.
      handling_seconds: of the processor at either end, for the messages of all variables one way.
    """
    transfer = network.latency_seconds + size_bytes / network.bytes_per_second
    # What is spread over several servers comes from all at once, as fast as the worker's link.
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
