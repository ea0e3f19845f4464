"""What the wrapper should reach, whether a run of the bench met it, and how to read the rest."""

import os

from onepass.bench.report import Row, ratio, row_of, verdict_lines
from onepass.bench.scaling.arguments import REPLICAS, BenchArguments
from onepass.bench.scaling.keras_fit import LIBRARIES, own_title
from onepass.bench.scaling.rows import PAIR, RATE, TIME
from onepass.bench.scaling.validation import MEMORY, median_error
from onepass.bench.scaling.wrapper_overhead import DENSE, WAVENET, WRAPPED

MOST_ADDED = 0.03
# Medians: of plans, and of strong and weak scaling, where one device's busy cores are not known.
MOST_ERROR = (
    (TIME, "times", 0.10),
    (RATE, "strong and weak scaling", 0.10),
    (MEMORY, "memory", 0.15),
)
EQUAL = 0.02  # two medians of the very same program differ by as much


def verdicts(rows: list[Row], counts: tuple[int, ...]) -> list[str]:
    """A line for every target: met, not met or not measured, with the figures of this run.

    counts: the numbers of steps a call.
    """
    found = [_added(rows, size) for size in (WAVENET, DENSE)]
    found += [_not_slower(rows, size, count) for size in LIBRARIES for count in counts]
    found += [_predicted(rows, *each) for each in MOST_ERROR]
    return verdict_lines(found)


def _predicted(rows: list[Row], unit: str, what: str, most: float):
    text = f"median error of predicted {what} at most {100 * most:g}%"
    error = median_error(rows, unit)
    return None if error is None else error <= most, (
        text if error is None else f"{text}: {100 * error:.1f}%"
    )


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


def notes(given: BenchArguments) -> list[str]:
    """How to read the rows of replicas."""
    if REPLICAS not in given.parts:
        return []
    return [
        "strong: steps/s over single is the speed-up; weak: it is the efficiency",
        f"local:N and {PAIR} share the {os.cpu_count()} cores that single has to itself: they are "
        "no faster where it uses them all",
        "logical CPUs of one process share its memory: they exchange nothing over a network; the "
        "bytes are what a replica would send in a ring, as the 2 processes do",
    ]
