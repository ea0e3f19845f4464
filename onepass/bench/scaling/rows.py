"""What `onepass bench scaling` asks of other processes, as rows: replicas and collectives."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from onepass.bench.report import Measures, Row, find
from onepass.bench.scaling.arguments import COLLECTIVE, REPLICAS, BenchArguments
from onepass.bench.scaling.traffic import loopback_bytes
from onepass.bench.worker_group import Group
from replicator.layouts.network import Network, fitted, sent_bytes

SINGLE, PAIR = "single", "2 processes"
# Name, strategy and number of processes, by which they are started; replicas.
STRATEGIES = {
    SINGLE: ("single", 1),
    "local:2": ("local:2", 1),
    "local:4": ("local:4", 1),
    PAIR: ("multi_worker", 2),
}
REPLICAS_OF = {SINGLE: 1, "local:2": 2, "local:4": 4, PAIR: 2}
STRONG, WEAK, ALL_SUM = "strong", "weak", f"all_sum, {PAIR}"
COMPUTE, BESIDE = "one device", "one device beside another"
FITTED_LATENCY, FITTED_BANDWIDTH = "fitted latency", "fitted bandwidth"
RATE, TIME, BYTES = "steps/s", "ms/step", "bytes/step"
LEAST_COUNT = 3  # of which the median is taken
# TensorFlow keeps two threads asleep for each collective until its time limit is over.
MOST_COUNT = 500


class Repeated:
    """A request to a group, repeated for long enough.

    seconds: of one, as the slowest process has it; loopback: bytes that the machine sent itself
    meanwhile, for each process and repetition; answer: that of the first process.
    """

    def __init__(self, group: Group, least_seconds: float, **request: Any):
        self.group, self._request, self._least_seconds = group, request, least_seconds
        self._count = 0
        self.seconds, self.loopback = 0.0, 0.0
        self.answer: dict[str, float] = {}

    def send_first(self) -> None:
        """Asks for it once; `Group.received` has the answer. This is what compiles."""
        self.group.send(**self._request, count=1)

    def measure(self) -> float:
        """`seconds`, measured anew."""
        if not self._count:
            self._ask(1)
            enough = math.ceil(self._least_seconds / self.seconds)
            self._count = min(max(LEAST_COUNT, enough), MOST_COUNT)
        before = loopback_bytes() or 0
        processes = self._ask(self._count)
        self.loopback = ((loopback_bytes() or 0) - before) / processes / self._count
        return self.seconds

    def _ask(self, count: int) -> int:
        answers = self.group.ask(**self._request, count=count)
        self.answer = answers[0]
        self.seconds = max(answer["seconds"] for answer in answers)
        return len(answers)


def strategies_of(given: BenchArguments) -> dict[str, tuple[str, int]]:
    """The strategies that the arguments need processes of."""
    if REPLICAS in given.parts:
        return STRATEGIES
    return {PAIR: STRATEGIES[PAIR]} if COLLECTIVE in given.parts else {}


def size_name(replicas: int) -> str:
    """How rows tell the number of replicas."""
    return f"R={replicas}"


def bytes_title(name: str) -> str:
    """What the row of the bytes that a strategy exchanges is called."""
    # Logical CPUs of a process share its memory: the bytes are those of replicas that do not.
    return f"exchanged, {name}" if name == PAIR else f"exchanged if apart, {name}"


def measures_of(
    given: BenchArguments, groups: Mapping[str, Group]
) -> tuple[list[Repeated], Measures]:
    """What is to be prepared, and a row and a function to measure it for everything asked."""
    prepared: list[Repeated] = []
    measures: Measures = []
    if REPLICAS in given.parts:
        made, rows = _of_single(given, groups[SINGLE])
        prepared += made
        measures += rows
        for name in [name for name in STRATEGIES if name != SINGLE]:
            made, rows = _of_replicas(given, name, groups[name])
            prepared += made
            measures += rows
    if COLLECTIVE in given.parts:
        made, rows = _of_collectives(given, groups[PAIR])
        prepared += made
        measures += rows
    return prepared, measures


def _of_single(given: BenchArguments, group: Group) -> tuple[list[Repeated], Measures]:
    steps = {
        rows: Repeated(group, given.least_seconds, do="step", rows=rows)
        for rows in given.compute_rows
    }
    measures: Measures = [
        (Row(COMPUTE, size_name(1), rows, TIME), functools.partial(_milliseconds, step))
        for rows, step in steps.items()
    ]
    shares = {given.clips // replicas for replicas in REPLICAS_OF.values()}
    besides = {
        rows: Repeated(group, given.least_seconds, do="beside", rows=rows)
        for rows in sorted(shares & steps.keys())
    }
    measures += [
        (Row(BESIDE, size_name(1), rows, TIME), functools.partial(_milliseconds, beside))
        for rows, beside in besides.items()
    ]
    step = steps[given.clips]
    for kind in (STRONG, WEAK):
        row = Row(f"{kind}, {SINGLE}", size_name(1), given.clips, RATE)
        measures.append((row, lambda: 1 / step.seconds))
    return [*steps.values(), *besides.values()], measures


def _of_replicas(given: BenchArguments, name: str, group: Group) -> tuple[list[Repeated], Measures]:
    replicas = REPLICAS_OF[name]
    steps = {
        kind: Repeated(group, given.least_seconds, do="step", rows=rows)
        for kind, rows in ((STRONG, given.clips // replicas), (WEAK, given.clips))
    }
    size = size_name(replicas)
    measures: Measures = []
    for kind, step in steps.items():
        row = Row(f"{kind}, {name}", size, given.clips, RATE, f"{kind}, {SINGLE}", size_name(1))
        measures.append((row, functools.partial(_rate, step)))
    step, title = steps[WEAK], bytes_title(name)
    bytes_row = Row(title, size, given.clips, BYTES)
    measures.append((bytes_row, lambda: sent_bytes("all-reduce", step.answer["bytes"], replicas)))
    if name == PAIR and loopback_bytes() is not None:
        row = Row(f"loopback, {name}", size, given.clips, BYTES, title)
        measures.append((row, lambda: step.loopback))
    row = Row(f"collectives, {name}", size, given.clips, "a step")
    measures.append((row, lambda: step.answer["collectives"]))
    return list(steps.values()), measures


def _of_collectives(given: BenchArguments, group: Group) -> tuple[list[Repeated], Measures]:
    sums = {
        kib: Repeated(group, given.least_seconds, do="all_sum", size_bytes=1024 * kib)
        for kib in sorted(set(given.all_sum_kib))
    }
    measures: Measures = [
        (Row(ALL_SUM, bytes_name(1024 * kib), 1, "ms"), functools.partial(_milliseconds, each))
        for kib, each in sums.items()
    ]
    return list(sums.values()), measures


def fitted_rows(given: BenchArguments, rows: list[Row]) -> list[Row]:
    """Latency and bandwidth that fit the all_sums, those of each round on their own."""
    if COLLECTIVE not in given.parts:
        return []
    networks = [_fitted(given, rows, k) for k in range(given.rounds)]
    latencies = [1e6 * network.latency_seconds for network in networks]
    bandwidths = [8e-9 * network.bytes_per_second for network in networks]
    return [
        Row(FITTED_LATENCY, size_name(2), 1, "us/message", values=latencies),
        Row(FITTED_BANDWIDTH, size_name(2), 1, "Gbit/s", values=bandwidths),
    ]


def _fitted(given: BenchArguments, rows: list[Row], index: int) -> Network:
    times = {}
    for kib in sorted(set(given.all_sum_kib)):
        row = find(rows, ALL_SUM, bytes_name(1024 * kib), 1)
        if row is None:
            raise ValueError(f"`rows` must hold an all_sum of {kib} KiB.")
        times[1024 * kib] = 1e-3 * row.values[index]
    return fitted(times)


def bytes_name(size_bytes: int) -> str:
    """How rows tell the size of a tensor, e.g. `64 MiB`."""
    kib = size_bytes // 1024
    return f"{kib} KiB" if kib % 1024 else f"{kib // 1024} MiB"


def _milliseconds(repeated: Repeated) -> float:
    return 1e3 * repeated.measure()


def _rate(repeated: Repeated) -> float:
    return 1 / repeated.measure()
