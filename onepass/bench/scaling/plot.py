"""Time and memory: predicted against measured, a point a model and strategy."""

from pathlib import Path

from onepass.bench.report import Row, plotted
from onepass.bench.scaling.rows import RATE, TIME
from onepass.bench.scaling.validation import MEMORY, pairs

MARKERS = "oD^sv<>P"
TITLES = {TIME: "ms a step", MEMORY: "MB a device"}


def points(rows: list[Row], unit: str) -> list[tuple[str, str, float, float]]:
    """Size, name, and what was measured and predicted; steps a second as milliseconds."""
    found = [(m, p, m.value, p.value) for m, p in pairs(rows, unit)]
    if unit == TIME:
        found += [(m, p, 1e3 / m.value, 1e3 / p.value) for m, p in pairs(rows, RATE)]
    return [(m.size, p.what.rpartition(",")[0], x, y) for m, p, x, y in found]


def write_plot(path: Path, rows: list[Row]) -> None:
    """Draws both, axes logarithmic: colours are models, markers strategies; a line is equality."""
    drawn = [(title, found) for unit, title in TITLES.items() if (found := points(rows, unit))]
    with plotted(path, 3 + 3.6 * len(drawn), 4.2) as figure:
        grid = figure.subplots(1, max(len(drawn), 1), squeeze=False)[0]
        for axes, (title, found) in zip(grid, drawn, strict=False):
            sizes = list(dict.fromkeys(size for size, *_ in found))
            names = list(dict.fromkeys(name for _, name, *_ in found))
            for size, name, *place in found:
                marker = MARKERS[names.index(name) % len(MARKERS)]
                colour, label = f"C{sizes.index(size)}", f"{size}, {name}"
                axes.plot(*place, marker, color=colour, label=label)
            ends = [pick(v for *_, a, b in found for v in (a, b)) for pick in (min, max)]
            axes.plot(ends, ends, "k:", lw=1)
            axes.set(xscale="log", yscale="log", xlabel=f"measured, {title}", ylabel="predicted")
            axes.grid(alpha=0.3)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="x-small", loc="outside right upper")
