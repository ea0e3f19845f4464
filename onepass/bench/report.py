"""Measurements as a table and as JSON: a row a figure, a ratio over the row it is held against."""

import contextlib
import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from onepass.bench.options import BenchOptions
from replicator.runs.atomic_files import replacing, write_text
from replicator.runs.progress import Progress
from replicator.runs.provenance import processor


@dataclasses.dataclass
class Row:
    """One thing measured in several rounds.

    what, size, batch: say what. unit: of the values. against: the `what` that the ratio is over,
    or None; that row has the same batch or, where there is no such row, batch 1. against_size: its
    size; None: the same. values: one a round.
    """

    what: str
    size: str
    batch: int
    unit: str
    against: str | None = None
    against_size: str | None = None
    values: list[float] = dataclasses.field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the rounds."""
        return (max(self.values) - min(self.values)) / self.value


STORED = ("what", "size", "batch", "value", "unit", "against", "against_size", "spread")
Measure = Callable[[], float]
Measures = list[tuple[Row, Measure]]
Verdict = tuple[bool | None, str]
"""Whether a target was met, None where it was not measured, and what it says."""
WORDS = {True: "met", False: "NOT MET", None: "not measured"}


def measured(measures: Measures, rounds: int, title: str = "measuring") -> list[Row]:
    """The rows, measured with a progress bar, see `interleaved`."""
    with Progress(rounds * len(measures), title, "row") as progress:
        interleaved(measures, rounds, progress)
    return [row for row, _ in measures]


def interleaved(measures: Measures, rounds: int, progress) -> None:
    """Measures every row once a round, so that a slow spell of the machine hits them all."""
    for _ in range(rounds):
        for row, measure in measures:
            row.values.append(measure())
            progress.advance()


def finished(
    given: BenchOptions,
    rows: list[Row],
    sections: Mapping[str, Sequence[str]],
    write_plot: Callable[[Path, list[Row]], None] | None = None,
) -> int:
    """Prints the table and, below their titles, lines; writes the files; the exit status.

    Args:
      given: the command line.
      rows: what was measured.
      sections: lines by title; without lines there is no title, and "" is none.
      write_plot: draws what `given.plot` is for.
    """
    print(table(rows))
    for title, lines in sections.items():
        if lines:
            print("\n".join(["", *filter(None, [title]), *lines]))
    if given.json:
        write_json(given.json, rows)
    plot = getattr(given, "plot", None)
    if plot and write_plot:
        write_plot(plot, rows)
    return 0


@contextlib.contextmanager
def plotted(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches to draw on, written to the file when the block ends."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)


def verdict_lines(verdicts: Iterable[Verdict]) -> list[str]:
    """A line for every target: met, not met or not measured, with the figures of this run."""
    return [f"{WORDS[met]:14s}{text}" for met, text in verdicts]


def row_of(rows: list[Row], what: str, size: str) -> Row | None:
    """The first row of that name and size."""
    return next((row for row in rows if (row.what, row.size) == (what, size)), None)


def ratio(row: Row, rows: list[Row]) -> float | None:
    """The median over rounds of the row's value over that of the row it is held against."""
    size = row.against_size or row.size
    other = find(rows, row.against, size, row.batch) if row.against else None
    if other is None:
        return None
    return statistics.median(a / b for a, b in zip(row.values, other.values, strict=True))


def find(rows: list[Row], what: str | None, size: str, batch: int) -> Row | None:
    """The row of that name and size, of the same batch or else of batch 1."""
    for wanted in (batch, 1):
        for row in rows:
            if (row.what, row.size, row.batch) == (what, size, wanted):
                return row
    return None


def table(rows: list[Row]) -> str:
    """The rows as text in columns."""
    lines = [f"{'what':28s}{'size':9s}{'batch':>5s}{'value':>12s} {'unit':12s}{'ratio':>9s} over"]
    for row in rows:
        over = ratio(row, rows)
        shown = f"{over:9,.2f} {row.against} {row.against_size or ''}" if over is not None else ""
        value = f"{row.value:12,.1f}" if row.value >= 10 else f"{row.value:12.3f}"
        line = f"{row.what:28s}{row.size:9s}{row.batch:5d}{value} {row.unit:12s}{shown}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def to_json(rows: list[Row]) -> dict:
    """The rows and the machine as one object."""
    return {
        "machine": machine(),
        "rows": [
            {name: getattr(row, name) for name in STORED} | {"ratio": ratio(row, rows)}
            for row in rows
        ],
    }


def write_json(path: Path, rows: list[Row]) -> None:
    """Writes `to_json` to a file."""
    write_text(path, json.dumps(to_json(rows), indent=2) + "\n")


def machine() -> dict:
    """What the measurements ran on."""
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()}
