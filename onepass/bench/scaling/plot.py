"""Time and memory: predicted against measured, a point a model and strategy."""

from pathlib import Path

from onepass.bench.report import Row, plotted
from onepass.bench.scaling.rows import TIME
from onepass.bench.scaling.validation import MEMORY, pairs

MARKERS = "oD^sv<>P"
TITLES = {TIME: "ms a step", MEMORY: "MB a device"}


def write_plot(path: Path, rows: list[Row]) -> None:
    """Draws both, axes logarithmic: colours are models, markers strategies; a line is equality."""
    with plotted(path, 10, 4.2) as figure:
        for axes, (unit, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
            found = pairs(rows, unit)
            models = list(dict.fromkeys(measured.size for measured, _ in found))
            names = list(dict.fromkeys(measured.what for measured, _ in found))
            for measured, predicted in found:
                marker = MARKERS[names.index(measured.what) % len(MARKERS)]
                colour = f"C{models.index(measured.size)}"
                label = f"{measured.size}, {measured.what.rpartition(',')[0]}"
                axes.plot(measured.value, predicted.value, marker, color=colour, label=label)
            if found:
                values = [row.value for pair in found for row in pair]
                axes.plot([min(values), max(values)], [min(values), max(values)], "k:", lw=1)
            axes.set(xscale="log", yscale="log", xlabel=f"measured, {title}", ylabel="predicted")
            axes.grid(alpha=0.3)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="x-small", loc="outside right upper")
