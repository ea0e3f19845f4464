"""What protocols add to a bare call, and images a second as clients become more."""

from pathlib import Path

from onepass.bench.report import Row, plotted
from onepass.bench.serving.rows import ASKED, DRAWN, added_title
from onepass.bench.serving.targets import MOST_ADDED_MS


def write_plot(path: Path, rows: list[Row]) -> None:
    """Draws bars of the milliseconds added, and a line of images a second."""
    with plotted(path, 10, 4.5) as figure:
        left, right = figure.subplots(1, 2)
        _draw_added(left, {(row.what, row.size): row.value for row in rows})
        drawn = [row for row in rows if row.unit == DRAWN]
        right.plot([row.batch for row in drawn], [row.value for row in drawn], "o-")
        right.set(xlabel="clients", ylabel="images a second", xticks=[row.batch for row in drawn])
        right.set_ylim(bottom=0)
        right.grid(alpha=0.3)


def _draw_added(axes, values: dict[tuple[str, str], float]) -> None:
    titles = [added_title(way) for way in ASKED]
    sizes = list(dict.fromkeys(size for what, size in values if what in titles))
    width = 0.8 / max(1, len(sizes))
    for n, size in enumerate(sizes):
        places = [k + (n + 0.5) * width - 0.4 for k in range(len(ASKED))]
        axes.bar(places, [values[title, size] for title in titles], width, label=size)
    axes.axhline(MOST_ADDED_MS, color="black", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(ASKED)), ASKED)
    axes.set_ylabel("ms over the bare call")
    axes.grid(axis="y", alpha=0.3)
    if sizes:
        axes.legend()
