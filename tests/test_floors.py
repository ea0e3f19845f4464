"""Imports run downwards: a folder knows the floors below its own, and no other floor."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the ground up. Folders of one floor do not know each other; `tests` may know everything.
FLOORS = (
    ("likelihoods", "replicator"),
    ("autoregressive", "compression"),
    ("wavenet", "pixelcnn"),
    ("distill",),
    ("speech",),
    ("serving",),
    ("onepass",),
    ("examples", "benchmarks"),
    ("tests",),
)
HEIGHT = {name: height for height, floor in enumerate(FLOORS) for name in floor}
NOT_FLOORS = {"build", "dist", "docs"}
NAMELESS = {"utils", "util", "common", "core", "helpers", "helper"}
# Calls that import what their first argument names.
IMPORTERS = {"__import__", "import_module", "files"}


def modules(root):
    """Yields `(floor, path)` of every Python file of the floors below `tests`."""
    for floor in HEIGHT:
        if floor != "tests":
            for path in sorted((root / floor).rglob("*.py")):
                yield floor, path


def absolute(node, package):
    """Returns the full dotted name of the module that a `from ... import` names.

    Args:
      node: the ast.ImportFrom.
      package: the parts of the package that holds the file, for example ("wavenet", "shipped").
    """
    if node.level == 0:
        return node.module
    climbed = package[: len(package) - (node.level - 1)]
    return ".".join((*climbed, node.module or "")).strip(".")


def imported(tree, package):
    """Yields `(line, dotted name)` of every import in the tree, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, package)
            # `from . import x` at the top and `from .. import x` both leave the names to tell.
            names = [module] if module else [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "id", getattr(node.func, "attr", None))
            name = getattr(node.args[0], "value", None)
            if function in IMPORTERS and isinstance(name, str):
                yield node.lineno, name


def climbs(root):
    """Returns one line for every import that runs upwards or sideways under `root`."""
    found = []
    for floor, path in modules(root):
        place = path.relative_to(root)
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), place.parts[:-1]):
            other = name.split(".")[0]
            sideways = other != floor and other in HEIGHT and HEIGHT[other] >= HEIGHT[floor]
            if sideways:
                found.append(f"{place}:{line}: {floor} imports {name}")
    return found


def nameless(root):
    """Returns every folder or file of the floors whose name says nothing of what it holds."""
    places = [path.relative_to(root).with_suffix("") for _, path in modules(root)]
    return sorted({str(place) for place in places if NAMELESS & set(place.parts)})


def unplaced(root):
    """Returns the folders and files at the top that hold code and have no floor."""
    folders = {path.parent.name for path in root.glob("[!.]*/*.py")}
    environments = {path.parent.name for path in root.glob("*/pyvenv.cfg")}
    files = {path.stem for path in root.glob("*.py")} - {"noxfile", "setup"}
    return sorted((folders | files) - environments - NOT_FLOORS - set(HEIGHT))


def write(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_no_import_runs_upwards_or_sideways():
    assert climbs(ROOT) == []


def test_every_name_says_what_it_holds():
    assert nameless(ROOT) == []


def test_everything_at_the_top_has_a_floor():
    assert unplaced(ROOT) == []


def test_the_floors_are_read_at_all():
    missing = {name for name in HEIGHT if name != "tests"} - {floor for floor, _ in modules(ROOT)}
    assert missing == set()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("wavenet/a.py", "import distill.student"),
        ("wavenet/a.py", "import numpy, pixelcnn"),
        ("pixelcnn/a.py", "from wavenet import network"),
        ("likelihoods/a.py", "from replicator.training.loop import train"),
        ("replicator/a.py", "def f():\n    if 1:\n        from likelihoods import noise"),
        ("serving/deep/a.py", "from onepass import main"),
        ("onepass/a.py", "import benchmarks.audio"),
        ("distill/a.py", "from .. import serving"),
        ("distill/deep/a.py", "from ...serving import load"),
        ("wavenet/a.py", "importlib.import_module('pixelcnn.network')"),
        ("wavenet/a.py", "importlib.resources.files('pixelcnn')"),
        ("onepass/a.py", "import tests.conftest"),
        ("onepass/a.py", "import examples.d4pg"),
    ],
)
def test_a_climbing_import_is_caught(tmp_path, place, text):
    write(tmp_path, place, text)
    assert len(climbs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("wavenet/a.py", "from likelihoods import noise\nimport replicator.training.loop"),
        ("wavenet/a.py", "from . import network\nfrom .pixelcnn import x\nfrom wavenet import y"),
        ("distill/a.py", "from pixelcnn import network\nfrom wavenet import network as sound"),
        ("benchmarks/a.py", "from serving import load\nimport onepass"),
        ("likelihoods/a.py", "import tensorflow as tf\nfrom wavenet_tools import x"),
    ],
)
def test_a_falling_import_is_let_through(tmp_path, place, text):
    write(tmp_path, place, text)
    assert climbs(tmp_path) == []


def test_a_name_that_says_nothing_is_caught(tmp_path):
    write(tmp_path, "wavenet/utils/a.py", "")
    write(tmp_path, "serving/helpers.py", "")
    write(tmp_path, "serving/server.py", "")
    assert nameless(tmp_path) == ["serving/helpers", "wavenet/utils/a"]


def test_a_folder_without_a_floor_is_caught(tmp_path):
    write(tmp_path, "wavenet/a.py", "")
    write(tmp_path, "vocoder/a.py", "")
    write(tmp_path, "some-env/pyvenv.cfg", "")
    write(tmp_path, "some-env/a.py", "")
    write(tmp_path, "train.py", "")
    write(tmp_path, "setup.py", "")
    assert unplaced(tmp_path) == ["train", "vocoder"]
