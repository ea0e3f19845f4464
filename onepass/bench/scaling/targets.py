"""What the wrapper should reach, whether a run of the bench met it, and how to read the rest."""

import os

from onepass.bench.report import Row, ratio, row_of, verdict_lines
from onepass.bench.scaling.arguments import REPLICAS, BenchArguments
from onepass.bench.scaling.keras_fit import LIBRARIES, own_title
from onepass.bench.scaling.rows import PAIR, STRONG
from onepass.bench.scaling.simulation import SIMULATED, network_of, reduced_of
from onepass.bench.scaling.wrapper_overhead import DENSE, WAVENET, WRAPPED

MOST_ADDED = 0.03
EQUAL = 0.02  # two medians of the very same program differ by as much


def verdicts(rows: list[Row], counts: tuple[int, ...]) -> list[str]:
    """A line for every target: met, not met or not measured, with the figures of this run.

    counts: the numbers of steps a call.
    """
    found = [_added(rows, size) for size in (WAVENET, DENSE)]
    found += [_not_slower(rows, size, count) for size in LIBRARIES for count in counts]
    return verdict_lines(found)


def _added(rows: list[Row], size: str):
    text = f"the wrapper adds less than {100 * MOST_ADDED:g}% to a {size} step"
    figure = _ratio(rows, WRAPPED, size)
    if figure is None:
        return None, text
    return figure < 1 + MOST_ADDED, f"{text}: {100 * (figure - 1):+.1f}%"


def _not_slower(rows: list[Row], size: str, count: int):
    title = own_title(count)
    text = f"{title}, not slower than the fit of {size} (within {100 * EQUAL:g}%)"
    figure = _ratio(rows, title, size)
    if figure is None:
        return None, text
    return figure <= 1 + EQUAL, f"{text}: {figure:.2f} times as long"


def _ratio(rows: list[Row], what: str, size: str) -> float | None:
    row = row_of(rows, what, size)
    return None if row is None else ratio(row, rows)


def notes(given: BenchArguments, rows: list[Row]) -> list[str]:
    """How to read the rows of replicas and the simulated ones."""
    if REPLICAS not in given.parts:
        return []
    lines = [
        "strong: steps/s over single is the speed-up; weak: it is the efficiency",
        f"local:N and {PAIR} share the {os.cpu_count()} cores that single has to itself: they are "
        "no faster where it uses them all",
        "logical CPUs of one process share its memory: they exchange nothing over a network; the "
        "bytes are what a replica would send in a ring, as the 2 processes do",
    ]
    if not given.is_network_known:
        return [*lines, "nothing is simulated without --latency-us and --bandwidth-gbit"]
    return [*lines, *_notes_of_simulation(given, rows)]


def _notes_of_simulation(given: BenchArguments, rows: list[Row]) -> list[str]:
    networks = [network_of(given, rows, k) for k in range(given.rounds)]
    middle = sorted(networks, key=lambda network: network.latency_seconds)[len(networks) // 2]
    reduced = reduced_of(given, rows)
    largest = max(given.compute_rows)
    both = [given.latency_us, given.bandwidth_gbit]
    source = "fitted here" if both == [None, None] else "given" if None not in both else "in part"
    return [
        f"{SIMULATED}: compute of single, all {os.cpu_count()} cores, then a ring, never both at "
        f"once: {reduced.collectives:g} collectives of {reduced.size_bytes:,.0f} bytes in all, "
        f"{1e6 * middle.latency_seconds:,.3g} us a message, "
        f"{8e-9 * middle.bytes_per_second:,.3g} Gbit/s ({source})",
        f"{SIMULATED} {STRONG}: compute on the line between measured batches; beyond {largest} "
        "clips a device in proportion, as if made one after another",
    ]
