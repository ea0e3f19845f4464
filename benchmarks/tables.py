"""The tables of docs/benchmarks.md, made from the JSON of a run.

python -m benchmarks.tables docs/benchmarks.json docs/benchmarks.md
python -m benchmarks.tables docs/bench_gpu.json docs/benchmarks.md
"""

import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- benchmarks: made by benchmarks/tables.py -->", "<!-- end of benchmarks -->"
GPU_BEGIN = "<!-- benchmarks of a GPU: made by benchmarks/tables.py -->"
GPU_END = "<!-- end of benchmarks of a GPU -->"
UNMEASURED = "not yet measured"
SHARE = " of the copy bandwidth |"


def format_tables(found: dict[str, Any]) -> str:
    """Return the rows as Markdown, a table per benchmark, and the peers left out with reasons."""
    parts = [_machine(found["machine"])]
    if found["quick"]:
        parts.append("**A smoke run at the small sizes of `--quick`: it measures nothing.**")
    for bench in dict.fromkeys(row["bench"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["bench"] == bench]
        has_share = "share" in rows[0]
        lines = [
            f"### {bench}\n",
            f"| what | size | batch | value | unit | ratio | over | spread |{SHARE * has_share}",
            "|---|---|---|---|---|---|---|---|" + "---|" * has_share,
        ]
        lines += [_line(row) for row in rows]
        parts.append("\n".join(lines))
    left_out = [f"- {p['what']} ({p['bench']}): {p['reason']}" for p in found["left_out"]]
    if left_out:
        parts.append("\n".join(["Left out:\n", *left_out]))
    return "\n\n".join(parts)


def _machine(machine: dict[str, Any]) -> str:
    if not machine:
        return f"{UNMEASURED.capitalize()}."
    load = f", load {machine['load']:.1f} before the run" if "load" in machine else ""
    cores = f"{machine['cores']} cores of {machine['processor']}{load}."
    if "accelerator" not in machine:
        return cores
    copied = machine.get("copy_bytes_per_second", 0.0) / 1e12
    versions = f"JAX {machine['jax']}, PyTorch {machine.get('torch', UNMEASURED)}"
    copy = f"a copy moves {copied:.2f} TB/s, read and written"
    return f"One {machine['accelerator']}: {copy}; {versions}; {cores}"


def _line(row: dict[str, Any]) -> str:
    value = UNMEASURED if row["value"] is None else number(row["value"])
    ratio = "" if row["ratio"] is None else number(row["ratio"])
    cells = [row["what"], row["size"], row["batch"], value, row["unit"], ratio]
    cells += [row["against"] or "", _percent(row["spread"])]
    cells += [_percent(row["share"])] if "share" in row else []
    return f"| {' | '.join(map(str, cells))} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float) -> str:
    """Return a value with three digits, or all of its whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def with_tables(page: str, tables: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with the tables between its two markers."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{tables}\n\n{end}{rest.split(end)[1]}"


def main(source: str, page: str) -> None:
    """Write the tables of a JSON file into a page."""
    found = json.loads(Path(source).read_text(encoding="utf-8"))
    text = Path(page).read_text(encoding="utf-8")
    marks = (GPU_BEGIN, GPU_END) if found["rows"][0]["bench"] == "gpu" else (BEGIN, END)
    Path(page).write_text(with_tables(text, format_tables(found), *marks), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
