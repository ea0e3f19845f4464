"""Replicas of TensorFlow and workers of a parameter server, predicted from one device and measured.

In every round the one device is measured anew, right before those that are predicted from it, so
that a slow spell of the machine hits both.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from onepass.bench.report import Row
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.rows import LEAST_COUNT, PAIR
from onepass.bench.scaling.validation import AT_ONCE, Pairs, pair_rows
from onepass.bench.worker_group import Group, started
from replicator.layouts.network import Network
from replicator.layouts.simulation import asynchronous_rate, simulate, synchronous
from replicator.planning.measurement import Run
from replicator.planning.plan import exchanged_bytes

ONE = "single"
# Name, strategy, processes and replicas of those that update together.
SYNCHRONOUS = {
    "local:2": ("local:2", 1, 2),
    "local:4": ("local:4", 1, 4),
    PAIR: ("multi_worker", 2, 2),
}
ASYNCHRONOUS = {"1 worker": 1, "2 workers": 2}
# Variables and bytes of each, of which one exchange is all messages and the other all bytes.
MANY, LARGE = (400, 256), (4, 2**24)
SIZES = ("state_bytes", "reduced_bytes", "variables")


def synchronous_rows(given: BenchArguments, model: str, name: str, network: Network) -> list[Row]:
    """One of `SYNCHRONOUS`. network: between two processes."""
    strategy, processes, replicas = SYNCHRONOUS[name]
    share, apart = given.clips // replicas, processes > 1
    times: Pairs = []
    memory: Pairs = []
    with _groups(given, model, {name: (strategy, processes)}) as groups:
        for _ in range(given.rounds):
            one, sizes = _shareable(given, groups[ONE], share)
            run, _ = _profile(given, groups[name], share)
            seconds = one.step_seconds * one.sharing_scale(replicas)
            program = synchronous(seconds, [sizes["reduced_bytes"]], replicas)
            predicted = simulate(program, network if apart else AT_ONCE).seconds
            times.append((run.step_seconds, predicted))
            held = exchanged_bytes(sizes["reduced_bytes"]) if apart else 0
            memory.append((run.memory_bytes or 0, (one.memory_bytes or 0) + held))
    return pair_rows(given, name, model, times, memory)


def asynchronous_rows(given: BenchArguments, model: str) -> list[Row]:
    """All of `ASYNCHRONOUS`, with messages and bandwidth as an exchange of variables has them."""
    chosen = {name: ("parameter_server", workers) for name, workers in ASYNCHRONOUS.items()}
    times: dict[str, Pairs] = {name: [] for name in chosen}
    with _groups(given, model, chosen) as groups:
        for _ in range(given.rounds):
            message_seconds, network = _exchanged(given, groups[next(iter(chosen))])
            one, sizes = _shareable(given, groups[ONE], given.clips)
            for name, workers in ASYNCHRONOUS.items():
                run, _ = _profile(given, groups[name], given.clips)
                scale = one.sharing_scale(workers)
                handling = message_seconds * sizes["variables"]
                rate, _ = asynchronous_rate(
                    scale * one.step_seconds, sizes["state_bytes"], workers, 1, network,
                    scale * handling,
                )  # fmt: skip
                times[name].append((run.step_seconds, 1 / rate))
    return [row for name in chosen for row in pair_rows(given, name, model, times[name], [(0, 0)])]


def _exchanged(given: BenchArguments, group: Group) -> tuple[float, Network]:
    """Seconds of either end for a variable's message, and the bandwidth besides.

    An update reads and adds all variables: messages are handled four times, bytes sent twice.
    """
    seconds = []
    for variables, size_bytes in (MANY, LARGE):
        asked = {"variables": variables, "size_bytes": size_bytes, "seconds": given.least_seconds}
        seconds.append(group.ask(do="exchange", **asked)[0]["seconds"])
    message_seconds = seconds[0] / (4 * MANY[0])
    sending = max(seconds[1] - 4 * LARGE[0] * message_seconds, 0.1 * seconds[1])
    return message_seconds, Network(0.0, 2 * LARGE[0] * LARGE[1] / sending)


@contextlib.contextmanager
def _groups(
    given: BenchArguments, model: str, chosen: Mapping[str, tuple[str, int]]
) -> Iterator[dict[str, Group]]:
    """Processes of one device and of the strategies chosen; they end with the context."""
    settings = {"preset": model, "clip_samples": given.clip_samples}
    with started({ONE: (ONE, 1), **chosen}, given.limit_seconds, **settings) as groups:
        for group in groups.values():
            group.received()
        yield groups


def _profile(given: BenchArguments, group: Group, rows: int) -> tuple[Run, dict[str, Any]]:
    """A step with so many rows a replica, and what its model measures."""
    seconds = max(answer["seconds"] for answer in group.ask(do="step", rows=rows, count=1))
    steps = max(math.ceil(given.least_seconds / seconds), LEAST_COUNT)
    answer: dict[str, Any] = dict(group.ask(do="profile", rows=rows, steps=steps)[0])
    sizes = {name: answer.pop(name) for name in SIZES}
    return Run(**answer), sizes


def _shareable(given: BenchArguments, group: Group, rows: int) -> tuple[Run, dict[str, Any]]:
    """As `_profile`, of one device; also beside another step like it."""
    run, sizes = _profile(given, group, rows)
    count = max(math.ceil(given.least_seconds / run.step_seconds), LEAST_COUNT)
    (beside,) = group.ask(do="beside", rows=rows, count=count)
    return dataclasses.replace(run, beside_seconds=beside["seconds"]), sizes
