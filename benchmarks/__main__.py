"""The command of the benchmarks.

python -m benchmarks                          all of them, each in a process of its own
python -m benchmarks audio images --quick     some, at small sizes
"""

import argparse
import contextlib
import importlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.command.verbs import signals_interrupt
from onepass.foundation.rules import FAILURE, USAGE, UserError, in_one_line

BENCHMARKS = ("audio", "students", "images", "training", "lossless", "tokens", "torch")
ROOT = Path(__file__).parents[1]
PLOTS = (".png", ".pdf", ".svg")


def main(words: Sequence[str] | None = None, command: str = "python -m benchmarks") -> int:
    """Run benchmarks, print their tables and write the files; return the exit status.

    Args:
      words: the arguments; None: those of the process.
      command: as the help text calls it.
    """
    given = _parse(words, command)
    names = given.names or BENCHMARKS
    if {"tokens", "torch"} & set(names):
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401 - before TensorFlow, as its triton, which ends the process

            importlib.import_module("triton")  # that loads it later
    from benchmarks import report  # the command line is checked before anything slow is imported

    result = _measure_here(names[0], given) if len(names) == 1 else _measure_apart(names, given)
    print(report.format_table(result["rows"]))
    for peer in result["left_out"]:
        print(f"left out of {peer['bench']}: {peer['what']}: {peer['reason']}")
    if given.json:
        report.write_json(given.json, result)
    if given.plot:
        report.write_plot(given.plot, result["rows"])
    return 0


def _measure_here(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of one benchmark, measured in this process."""
    from benchmarks import report

    options = {"density": given.density} if name == "lossless" else {}
    found = importlib.import_module(f"benchmarks.{name}").benchmark(given.quick, **options)
    report.measure(found, given.rounds)
    return report.to_json(found, given.quick)


def _measure_apart(names: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of benchmarks, each measured in a process of its own.

    Threads of one benchmark's peers that wait actively, and its memory, cost the others nothing.
    """
    from benchmarks import report

    result: dict[str, Any] = {"machine": report.machine(), "quick": given.quick}
    result |= {"rows": [], "left_out": []}
    options = ["--rounds", str(given.rounds)] + ["--quick"] * given.quick
    if given.density:
        options += ["--density", str(given.density.absolute())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        for name in names:
            words = [sys.executable, "-m", "benchmarks", name, "--json", str(path), *options]
            status = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL).returncode
            if status:
                error = UserError(f"{name} has ended with status {status}.")
                error.exit_status = USAGE if status == USAGE else FAILURE
                raise error
            measured = json.loads(path.read_text(encoding="utf-8"))
            result["rows"] += measured["rows"]
            result["left_out"] += measured["left_out"]
            if given.json:
                report.write_json(given.json, result)  # nothing is lost where a later one fails
    return result


def _parse(words: Sequence[str] | None, command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        command, description="Compare onepass with its peers, side by side in one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, help="file for the rows as JSON")
    parser.add_argument("--plot", type=Path, help="file for a plot of the ratios")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per row (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument("--density", type=Path, help="run of an unconditional WaveNet (lossless)")
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        raise UserError(f"NAME must be one of {', '.join(BENCHMARKS)}, got {unknown[0]}.")
    if given.rounds < 1:
        raise UserError(f"`--rounds` must be at least 1, got {given.rounds}.")
    if given.plot and given.plot.suffix not in PLOTS:
        raise UserError(f"`--plot` must end in {', '.join(PLOTS)}, got {given.plot}.")
    for path in filter(None, (given.json, given.plot)):
        if not path.parent.is_dir():
            raise UserError(f"there is no folder {path.parent} to write {path.name} to.")
        if path.is_dir():
            raise UserError(f"{path} is a folder: give the name of a file in it.")
    return given


if __name__ == "__main__":
    try:
        with in_one_line("benchmarks"), signals_interrupt():  # a benchmark's process ends, too
            sys.exit(main())
    except KeyboardInterrupt as error:
        print("benchmarks: interrupted.", file=sys.stderr)
        sys.exit(128 + getattr(error, "number", signal.SIGINT))
