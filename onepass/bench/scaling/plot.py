"""Clips a second against replicas: filled points were measured, dashed lines are simulated."""

from pathlib import Path

from onepass.bench.report import Row, plotted
from onepass.bench.scaling.rows import RATE, REPLICAS_OF, STRONG, WEAK
from onepass.bench.scaling.simulation import REPLICAS_SIMULATED, SIMULATED

MARKERS = dict(zip(REPLICAS_OF, "oD^s", strict=True))
COLOURS = {STRONG: "C0", WEAK: "C1"}
LARGER = "C2"  # the batch that was only simulated


def clips_per_second(row: Row) -> float:
    """Steps a second times the clips of all replicas."""
    everyone = replicas_of(row) if WEAK in row.what else 1
    return row.value * row.batch * everyone


def replicas_of(row: Row) -> int:
    """The replicas that a row is of."""
    return int(row.size.removeprefix("R="))


def lines_of(rows: list[Row]) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Replicas and clips a second of the simulated rows, by what they are of and their batch."""
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows:
        if row.what.startswith(SIMULATED):
            point = replicas_of(row), clips_per_second(row)
            lines.setdefault((row.what, row.batch), []).append(point)
    return lines


def write_plot(path: Path, rows: list[Row]) -> None:
    """Draws the rows of replicas, both axes logarithmic."""
    with plotted(path, 9, 5) as figure:
        axes = figure.add_subplot(xlabel="replicas", ylabel="clips a second")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        measured = set()
        for kind, colour in COLOURS.items():
            for name, marker in MARKERS.items():
                found = [r for r in rows if (r.what, r.unit) == (f"{kind}, {name}", RATE)]
                for row in found:
                    measured.add(row.batch)
                    at = replicas_of(row), clips_per_second(row)
                    axes.plot(*at, marker, color=colour, label=f"{row.what}, {row.batch} clips")
        for (what, batch), points in lines_of(rows).items():
            kind = WEAK if WEAK in what else STRONG
            label = f"{what}, {batch} clips{' a replica' if kind == WEAK else ''}"
            colour = COLOURS[kind] if batch in measured else LARGER
            axes.plot(*zip(*points, strict=True), "--", color=colour, label=label)
        axes.set_xticks(REPLICAS_SIMULATED, [str(replicas) for replicas in REPLICAS_SIMULATED])
        axes.grid(alpha=0.3)
        title = "filled: measured; dashed: simulated"
        figure.legend(title=title, fontsize="small", loc="outside right upper")
