"""The six ratios that docs/benchmarks.md opens with, as a table and a plot, and README's table.

python -m benchmarks.headlines docs/benchmarks.md README.md
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report, tables

BEGIN, END = "<!-- six ratios: made by benchmarks/headlines.py -->", "<!-- end of six ratios -->"
PLOT = "six_ratios.png"
CPU, GPU = "benchmarks.json", "bench_gpu.json"


class Headline(NamedTuple):
    """A row of a JSON file, and its names in the words of a reader.

    file: of the row. row: its `bench`, `what`, `size`, `batch` and `against`. ours, peer: what it
    compares; the ratio is how many times as fast the first one is.
    """

    file: str
    row: tuple[str, str, str, int, str]
    ours: str
    peer: str


HEADLINES = (
    Headline(
        CPU,
        ("torch", "derived step", "24x128", 1, "incremental_forward"),
        "wavenet_vocoder's WaveNet, untouched",
        "its own cached sampler",
    ),
    Headline(
        CPU,
        ("audio", "derived step", "24x128", 1, "naive"),
        "the step derived from a network's graph",
        "the whole network for every sample",
    ),
    Headline(
        CPU,
        ("students", "student", "5 s", 1, "HiFi-GAN V1"),
        "`shipped`, frames to speech in one pass",
        "HiFi-GAN V1",
    ),
    Headline(
        CPU,
        ("students", "student", "5 s", 1, "Vocos"),
        "`shipped`, frames to speech in one pass",
        "Vocos",
    ),
    Headline(
        CPU,
        ("images", "multiscale-A", "64x64", 1, "tfp PixelCNN"),
        "an image of 64x64, scale by scale",
        "TensorFlow Probability's PixelCNN, pixel by pixel",
    ),
    Headline(
        GPU,
        ("gpu", "derived step", "GPT-2 small", 1, "transformers, CUDA graph"),
        "GPT-2 small, the step derived from Keras",
        "transformers with its cache, a CUDA graph",
    ),
)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the row of each headline, with its `file` and the `machine` that it was measured on.

    Args:
      folder: of the JSON files.
    """
    found = {
        name: json.loads((folder / name).read_text(encoding="utf-8"))
        for name in dict.fromkeys(headline.file for headline in HEADLINES)
    }
    return [
        _row(found[headline.file]["rows"], headline.row)
        | {"machine": _machine(found[headline.file]["machine"])}
        for headline in HEADLINES
    ]


def table(folder: Path) -> str:
    """Return the six ratios as a table of Markdown, and the plot below it."""
    lines = ["| times as fast | what | as | on | all rows |", "|---|---|---|---|---|"]
    for headline, row in zip(HEADLINES, rows(folder), strict=True):
        times = f"**{tables.number(row['ratio'])}**"
        bench = f"[{row['bench']}](#{row['bench']})"
        lines.append(
            f"| {times} | {headline.ours} | {headline.peer} | {row['machine']} | {bench} |"
        )
    return "\n".join([*lines, "", f"![The six ratios as bars]({PLOT})"])


def narrow_table(folder: Path) -> str:
    """Return the six ratios as a table of Markdown that fits a screen."""
    lines = ["| times as fast | what | as |", "|---|---|---|"]
    for headline, row in zip(HEADLINES, rows(folder), strict=True):
        times = tables.number(row["ratio"])
        lines.append(f"| {times} | {headline.ours} | {headline.peer} |")
    return "\n".join(lines)


def main(page: Path, *others: Path) -> None:
    """Write the table into a page, and the plot next to it, from the JSON files next to it.

    Args:
      page: the page.
      others: further pages, which get the narrow table.
    """
    _write_table(page, table(page.parent))
    for other in others:
        _write_table(other, narrow_table(page.parent))
    drawn = [
        {**row, "bench": "times as fast, with the spread of the rounds", "label": _label(each, row)}
        for each, row in zip(HEADLINES, rows(page.parent), strict=True)
    ]
    report.write_plot(page.parent / PLOT, drawn)


def _write_table(page: Path, text: str) -> None:
    made = tables.with_tables(page.read_text(encoding="utf-8"), text, BEGIN, END)
    page.write_text(made, encoding="utf-8")


def _label(headline: Headline, row: dict[str, Any]) -> str:
    times = f"{tables.number(row['ratio'])} times {headline.peer}"
    return f"{times}\n{headline.ours.replace('`', '')}; {row['machine']}"


def _row(found: list[dict[str, Any]], wanted: tuple[str, str, str, int, str]) -> dict[str, Any]:
    names = ("bench", "what", "size", "batch", "against")
    (row,) = (row for row in found if tuple(row[name] for name in names) == wanted)
    return row


def _machine(machine: dict[str, Any]) -> str:
    accelerator = machine.get("accelerator")
    return (
        f"one {accelerator}" if accelerator else f"{machine['cores']} cores, {machine['processor']}"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
