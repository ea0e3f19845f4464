"""Measurements as a table, as JSON and as a plot; a ratio wherever a row names a peer."""

import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from onepass.foundation.files import replacing, write_text
from onepass.foundation.progress import Progress
from onepass.foundation.runtime import processor

Measure = Callable[[], float]
LEAST_SECONDS = 0.3  # that a row is measured for in a round
LOAD = os.getloadavg()[0]  # of the machine before anything is measured


@dataclasses.dataclass
class Row:
    """A quantity measured once per round.

    Args:
      what, size, batch: name what is measured; together they are unique within a benchmark.
      unit: of the values; more is better, except for bits.
      against: the `what` of each row, of the same size and batch, that the ratios are over.
      values: one per round.
    """

    what: str
    size: str
    batch: int
    unit: str
    against: tuple[str, ...] = ()
    values: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Benchmark:
    """The rows of one benchmark, how to measure them, and the peers that it could not run.

    left_out: reasons by the name of the peer.
    """

    name: str
    measures: list[tuple[Row, Measure]] = dataclasses.field(default_factory=list)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """The rows in the order in which they are measured."""
        return [row for row, _ in self.measures]

    def add(self, row: Row, measure: Measure) -> None:
        """Append a row and the function that measures it."""
        self.measures.append((row, measure))

    def peer(self, name: str, make: Callable[[], None]) -> None:
        """Add the rows of a peer, or note why it cannot be run.

        Args:
          name: of the peer.
          make: imports the peer and adds its rows.
        """
        try:
            make()
        except (ImportError, OSError) as error:
            self.left_out[name] = " ".join(str(error).split())


def measure(benchmark: Benchmark, rounds: int) -> None:
    """Measure every row once per round, after a first call of each that compiles.

    Rounds are interleaved, so that a slow spell of the machine affects all rows alike. What is
    short is repeated, and its median counts: what ran before left other data in the caches.
    """
    total = (rounds + 1) * len(benchmark.measures)
    with Progress(total, benchmark.name, "row") as progress:
        for number in range(rounds + 1):
            for row, call in benchmark.measures:
                start, values = time.perf_counter(), [call()]
                while number and time.perf_counter() < start + LEAST_SECONDS:
                    values.append(call())
                if number:
                    row.values.append(statistics.median(values))
                progress.advance()


def to_json(benchmark: Benchmark, quick: bool) -> dict[str, Any]:
    """Return the machine, the rows and the peers left out as one object."""
    left_out = [
        {"bench": benchmark.name, "what": what, "reason": reason}
        for what, reason in benchmark.left_out.items()
    ]
    rows = list(_json_rows(benchmark))
    return {"machine": machine(), "quick": quick, "rows": rows, "left_out": left_out}


def _json_rows(benchmark: Benchmark) -> Iterator[dict[str, Any]]:
    """Yield an object per row, or per row and peer that it is held against."""
    known = {(row.what, row.size, row.batch): row for row in benchmark.rows}
    for row in benchmark.rows:
        others = [known.get((name, row.size, row.batch)) for name in row.against]
        held: list[Row | None] = [other for other in others if other is not None]
        for other in held or [None]:
            ratios = None
            if other is not None:
                ratios = [a / b for a, b in zip(row.values, other.values, strict=True)]
            yield {
                "bench": benchmark.name,
                "what": row.what,
                "size": row.size,
                "batch": row.batch,
                "value": statistics.median(row.values),
                "unit": row.unit,
                "against": other and other.what,
                "ratio": ratios and statistics.median(ratios),
                "spread": spread(ratios or row.values),
            }


def spread(values: list[float]) -> float:
    """Return (largest - smallest) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write what `to_json` returns to a file."""
    write_text(path, json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return the machine that the measurements ran on, and how busy it was before."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": LOAD,
    }


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return JSON rows as text in columns."""
    lines = [f"{'what':36s}{'size':14s}{'batch':>5s}{'value':>12s} {'unit':16s}{'ratio':>9s} over"]
    for row in rows:
        number = row["value"]
        value = f"{number:12,.1f}" if number >= 10 else f"{number:12.3f}"
        line = f"{row['what']:36s}{row['size']:14s}{row['batch']:5d}{value} {row['unit']:16s}"
        if row["against"]:
            line += f"{row['ratio']:9,.2f} {row['against']} (spread {row['spread']:.0%})"
        lines.append(line.rstrip())
    return "\n".join(lines)


def write_plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw the ratios as bars on a logarithmic axis, with their spread, a panel per benchmark.

    A row may have a `label`, also of several lines, in place of the names in it.
    """
    held = [row for row in rows if row["against"]]
    names = list(dict.fromkeys(row["bench"] for row in held))
    counts = [sum(1 + _label(r).count("\n") for r in held if r["bench"] == name) for name in names]
    figure = Figure(figsize=(9, 1 + 0.22 * sum(counts) + 0.6 * len(names)), layout="constrained")
    if held:
        panels = figure.subplots(len(names), 1, squeeze=False, height_ratios=counts)
        for axes, name in zip(panels[:, 0], names, strict=True):
            _draw(axes, name, [row for row in held if row["bench"] == name])
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=90)


def _label(row: dict[str, Any]) -> str:
    return row.get("label") or f"{row['what']} / {row['against']}  ({row['size']}, {row['batch']})"


def _draw(axes, name: str, rows: list[dict[str, Any]]) -> None:
    labels = [_label(row) for row in rows]
    ratios = [row["ratio"] for row in rows]
    errors = [row["ratio"] * row["spread"] / 2 for row in rows]
    lengths = [ratio - 1 for ratio in ratios]  # bars begin at 1
    axes.barh(range(len(rows)), lengths, left=1.0, xerr=errors, color="C0", ecolor="0.3")
    axes.set_yticks(range(len(rows)), labels, fontsize=7 if len(rows) > 6 else 9)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1.0, color="0.3", linewidth=0.8)
    axes.set_title(name, fontsize=9)
