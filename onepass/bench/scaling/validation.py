"""Steps on several devices as `onepass plan` predicts them, beside the same steps as they are."""

import math
import statistics

from onepass.bench.report import Row, find, ratio
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.rows import (
    BESIDE,
    COMPUTE,
    FITTED_BANDWIDTH,
    FITTED_LATENCY,
    PAIR,
    RATE,
    REPLICAS_OF,
    SINGLE,
    STRONG,
    TIME,
    WEAK,
    bytes_title,
)
from replicator.layouts.network import Network, sent_bytes
from replicator.layouts.simulation import simulate, synchronous

MEASURED, PREDICTED = "measured", "predicted"
MEMORY = "MB/device"
AT_ONCE = Network(0.0, math.inf)  # logical CPUs of a process share its memory
Pairs = list[tuple[float, float]]
"""What was measured and what was predicted, in every round."""


def replica_predictions(rows: list[Row]) -> list[Row]:
    """What strong and weak scaling should be, from the rows of one device and of all_sums.

    Each round is predicted from what that very round has measured of one device, or of two copies
    of its step side by side, of which N take N/2 times as long.
    """
    alone = {row.batch: row.values for row in rows if row.what == COMPUTE}
    beside = {row.batch: row.values for row in rows if row.what == BESIDE}
    made = []
    for row in [row for row in rows if row.what.startswith((STRONG, WEAK))]:
        kind, name = row.what.split(", ")
        replicas = REPLICAS_OF[name]
        share = row.batch if kind == WEAK else row.batch // replicas
        sent = find(rows, bytes_title(name), row.size, row.batch)
        count = find(rows, f"collectives, {name}", row.size, row.batch)
        if name == SINGLE or share not in alone or sent is None or count is None:
            continue
        # Half of what two send is what each gives, and so on: see `sent_bytes`.
        given = sent.value / sent_bytes("all-reduce", 1.0, replicas) / count.value
        reduced = [given] * round(count.value)
        network = fitted_network(rows) if name == PAIR else AT_ONCE
        # Where none ran beside another, two take twice as long.
        both = beside.get(share) or [2 * milliseconds for milliseconds in alone[share]]
        values = [
            _rate(1e-3 * milliseconds * replicas / 2, reduced, replicas, network)
            for milliseconds in both
        ]
        made.append(Row(f"{row.what}, {PREDICTED}", row.size, row.batch, RATE, row.what,
                        values=values))  # fmt: skip
    return made


def _rate(seconds: float, reduced: list[float], replicas: int, network: Network) -> float:
    return 1 / simulate(synchronous(seconds, reduced, replicas), network).seconds


def fitted_network(rows: list[Row]) -> Network:
    """Between two processes, as fitted; one that takes no time where nothing was."""
    known = {row.what: row.value for row in rows}
    latency, bandwidth = known.get(FITTED_LATENCY, 0.0), known.get(FITTED_BANDWIDTH, math.inf)
    return Network(1e-6 * latency, bandwidth / 8e-9)


def pair_rows(
    given: BenchArguments, name: str, model: str, times: Pairs, memory: Pairs
) -> list[Row]:
    """Rows of what was measured, and of what was predicted held against it, a value a round.

    Args:
      name: the strategy. model: a preset or MODULE:FUNCTION.
      times: in seconds. memory: of a device in bytes, 0 where the system cannot say.
    """
    found = []
    for kind, unit, factor, pairs in (("", TIME, 1e3, times), ("memory of ", MEMORY, 1e-6, memory)):
        if not all(min(pair) > 0 for pair in pairs):
            continue
        titles = [f"{kind}{name}, {word}" for word in (MEASURED, PREDICTED)]
        measured, predicted = [[factor * v for v in values] for values in zip(*pairs, strict=True)]
        found += [
            Row(titles[0], short(model), given.clips, unit, values=measured),
            Row(titles[1], short(model), given.clips, unit, titles[0], values=predicted),
        ]
    return found


def short(model: str) -> str:
    """What rows call a model: a preset's name, or the last word of a module's."""
    return model.partition(":")[0].rpartition(".")[2]


def pairs(rows: list[Row], unit: str) -> list[tuple[Row, Row]]:
    """What was measured and what was predicted, of a unit."""
    by_name = {(row.what, row.size, row.batch): row for row in rows if row.unit == unit}
    return [
        (by_name[row.against or "", row.size, row.batch], row)
        for row in by_name.values()
        if row.what.endswith(f", {PREDICTED}")
    ]


def median_error(rows: list[Row], unit: str) -> float | None:
    """The median of |predicted / measured - 1|; None where nothing was validated.

    Of a pair it is the median of its rounds, in which both were measured one after the other.
    """
    found = [ratio(predicted, rows) for _, predicted in pairs(rows, unit)]
    return statistics.median(abs(each - 1) for each in found if each) if found else None
