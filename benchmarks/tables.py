"""The table of docs/benchmarks.md, made from the JSON of a run.

python -m benchmarks.tables docs/benchmarks.json docs/benchmarks.md
"""

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- benchmarks: made by benchmarks/tables.py -->", "<!-- end of benchmarks -->"


def format_tables(found: dict[str, Any]) -> str:
    """Return the rows as Markdown, a table per benchmark, and the peers left out with reasons."""
    machine = found["machine"]
    load = f", load {machine['load']:.1f} before the run" if "load" in machine else ""
    parts = [f"{machine['cores']} cores of {machine['processor']}{load}."]
    if found["quick"]:
        parts.append("**A smoke run at the small sizes of `--quick`: it measures nothing.**")
    for bench in dict.fromkeys(row["bench"] for row in found["rows"]):
        lines = [
            f"### {bench}\n",
            "| what | size | batch | value | unit | ratio | over | spread |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in found["rows"] if row["bench"] == bench]
        parts.append("\n".join(lines))
    left_out = [f"- {p['what']} ({p['bench']}): {p['reason']}" for p in found["left_out"]]
    if left_out:
        parts.append("\n".join(["Left out:\n", *left_out]))
    return "\n\n".join(parts)


def _line(row: dict[str, Any]) -> str:
    ratio = "" if row["ratio"] is None else _number(row["ratio"])
    cells = (row["what"], row["size"], row["batch"], _number(row["value"]), row["unit"], ratio)
    return f"| {' | '.join(map(str, cells))} | {row['against'] or ''} | {row['spread']:.0%} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def with_tables(page: str, tables: str) -> str:
    """Return the page with the tables between its two markers."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.split(END)[1]}"


def main(source: str, page: str) -> None:
    """Write the tables of a JSON file into a page."""
    found = json.loads(Path(source).read_text(encoding="utf-8"))
    text = Path(page).read_text(encoding="utf-8")
    Path(page).write_text(with_tables(text, format_tables(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
