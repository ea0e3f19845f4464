"""Counts of the source next to their bars: lines, files of the wheel, circles, a retired word.

python -m benchmarks.house        exit status 1 where a bar is missed
"""

import graphlib
import importlib
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
APART = ("tests", "benchmarks")
WHEEL_FILES = 659  # before the cuts, of which 60 % are the bar
# The history, and the test of this file, name the word.
NAMES_THE_WORD = ("CHANGELOG.md", "tests/benchmarks/test_house_counts.py")


class Count(NamedTuple):
    """A count and the most that it may be."""

    name: str
    value: int
    bar: int


def counts(root: Path) -> list[Count]:
    """Return the counts of a checkout."""
    files = tracked(root)
    python = {path: line_count(root / path) for path in files if path.endswith(".py")}
    outside = [lines for path, lines in python.items() if path.split("/")[0] not in APART]
    return [
        Count("lines of Python outside tests and benchmarks", sum(outside), 48_000),
        Count("lines of tests", lines_in(python, "tests"), 31_000),
        Count("lines of serving", lines_in(python, "serving"), 10_500),
        Count("lines of benchmarks", lines_in(python, "benchmarks"), 2_000),
        Count("files of the wheel", len(wheel_files(root)), WHEEL_FILES * 60 // 100),
        Count("bytes of the wheel", wheel_bytes(root), 95_000_000),  # package indexes take 100
        Count('lines with the word "beside"', word_count(root, files, "beside"), 0),
        Count("circles of imports", circle_count(imports(root)), 0),
    ]


def tracked(root: Path) -> list[str]:
    """Return the paths of the files that git tracks and that are there."""
    command = ["git", "ls-files", "-z"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for path in found.split("\0") if path and (root / path).is_file()]


def line_count(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def lines_in(python: dict[str, int], folder: str) -> int:
    """Return the lines of the files below a folder at the top."""
    return sum(lines for path, lines in python.items() if path.split("/")[0] == folder)


def wheel_files(root: Path) -> list[str]:
    """Return what `setup.py` packs into a wheel, its metadata left out."""
    program = (
        "from distutils.core import run_setup\n"
        "build = run_setup('setup.py', stop_after='init').get_command_obj('build_py')\n"
        "build.ensure_finalized()\n"
        "print(*build.get_outputs(include_bytecode=False), sep='\\n')"
    )
    command = [sys.executable, "-W", "ignore", "-c", f"import setuptools\n{program}"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line.startswith("build/")]


def wheel_bytes(root: Path) -> int:
    """Return the bytes of what the wheel holds, each file deflated, without its metadata."""
    sources = (root / path.split("lib/", 1)[1] for path in wheel_files(root))
    return sum(len(zlib.compress(source.read_bytes())) for source in sources)


def word_count(root: Path, files: Iterable[str], word: str) -> int:
    """Return the lines of text files that have a word, except as an option or as a quoted name."""
    command = ["git", "grep", "-I", "-i", "-P", "-c", rf'(?<!["-])\b{word}\b(?!")', "--", *files]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    pairs = (line.rsplit(":", 1) for line in found.splitlines())
    return sum(int(lines) for path, lines in pairs if path not in NAMES_THE_WORD)


def imports(root: Path) -> dict[str, set[str]]:
    """Return the modules that every module imports, those under TYPE_CHECKING too."""
    grimp = importlib.import_module("grimp")  # of import-linter
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    graph = grimp.build_graph(*settings["tool"]["importlinter"]["root_packages"], cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def circle_count(edges: dict[str, set[str]]) -> int:
    """Return how many imports have to go until no module imports itself by way of others."""
    edges, count = {name: set(others) for name, others in edges.items()}, 0
    while True:
        try:
            graphlib.TopologicalSorter(edges).prepare()
            return count
        except graphlib.CycleError as error:
            imported, importer = error.args[1][:2]
            edges[importer].remove(imported)
            count += 1


def main() -> int:
    """Print the counts; return the exit status."""
    found = counts(ROOT)
    for name, value, bar in found:
        print(f"{name:48s}{value:8,d}  at most {bar:6,d}{'' if value <= bar else '   MISSED'}")
    return int(any(value > bar for _, value, bar in found))


if __name__ == "__main__":
    sys.exit(main())
