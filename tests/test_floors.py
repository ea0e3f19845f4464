"""Floors and circles: what import-linter (`make lint`) cannot see, and our contract for it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import onepass

ROOT = Path(__file__).resolve().parent.parent
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
# From the top down, as the contract has them.
LAYERS = [re.split(r" [|:] ", layer) for layer in LINTER["contracts"][0]["layers"]]
HEIGHT = {name: -height for height, layer in enumerate(LAYERS) for name in layer}
TOPS = sorted({name.split(".")[0] for name in HEIGHT})
NOT_FLOORS = {"build", "dist", "docs", "tests"}
NAMELESS = {"utils", "util", "common", "core", "helpers", "helper"}
# Calls that import what their first argument names.
IMPORTERS = {"__import__", "import_module", "files"}
COMMAND = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"


def lint(root):
    """Returns the exit status of import-linter in a folder, and what it printed."""
    pytest.importorskip("importlinter")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(ROOT)])}
    command = [sys.executable, "-c", COMMAND]
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return found.returncode, found.stdout


def floor_of(name):
    """Returns the name in the contract that a module lies in; None for `onepass` itself."""
    parts = name.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((head for head in heads if head in HEIGHT), None)


def modules(root):
    for top in TOPS:
        for path in sorted((root / top).rglob("*.py")):
            yield floor_of(".".join(path.relative_to(root).with_suffix("").parts)), path


def climbs(root):
    """Returns one line for every import by a string that runs upwards or sideways."""
    found = []
    for floor, path in modules(root):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(map(text.__contains__, IMPORTERS)) else ():
            if not (isinstance(node, ast.Call) and node.args):
                continue
            function = getattr(node.func, "id", getattr(node.func, "attr", None))
            name = getattr(node.args[0], "value", None)
            if function not in IMPORTERS or not isinstance(name, str):
                continue
            other = floor_of(name)
            if None not in (floor, other) and other != floor and HEIGHT[other] >= HEIGHT[floor]:
                found.append(f"{path.relative_to(root)}:{node.lineno}: {floor} imports {name}")
    return found


def nameless(root):
    """Returns every folder or file of the floors whose name says nothing of what it holds."""
    found = [path.relative_to(root).with_suffix("") for _, path in modules(root)]
    return sorted({str(path) for path in found if NAMELESS & set(path.parts)})


def unplaced(root):
    """Returns the folders and files at the top and in onepass/ that hold code and have no floor."""
    folders = {path.parent.name for path in root.glob("[!.]*/*.py")} - {"onepass"}
    folders |= {f"onepass.{path.parent.name}" for path in root.glob("onepass/*/*.py")}
    environments = {path.parent.name for path in root.glob("*/pyvenv.cfg")}
    files = {path.stem for path in root.glob("*.py")} - {"noxfile", "setup"}
    files |= {f"onepass.{path.stem}" for path in root.glob("onepass/[!_]*.py")}
    return sorted((folders | files) - environments - NOT_FLOORS - set(HEIGHT))


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_the_contracts_are_of_every_floor():
    assert sorted(LINTER["root_packages"]) == TOPS


@pytest.mark.parametrize("rule", [climbs, nameless, unplaced])
def test_the_checkout_keeps_its_floors(rule):
    assert rule(ROOT) == []


@pytest.mark.integration
def test_a_circle_is_refused(tmp_path):
    settings = [
        *("[tool.importlinter]", 'root_packages = ["wavenet_a"]'),
        'contract_types = ["no_circles: tests.circle_contract.NoCircles"]',
        *("[[tool.importlinter.contracts]]", 'name = "none"', 'type = "no_circles"'),
    ]
    write(tmp_path, "pyproject.toml", "\n".join(settings))
    write(tmp_path, "wavenet_a/__init__.py", "")
    write(tmp_path, "wavenet_a/a.py", "import wavenet_a.deep.b")
    write(tmp_path, "wavenet_a/deep/__init__.py", "")
    write(tmp_path, "wavenet_a/deep/b.py", "")
    assert lint(tmp_path)[0] == 0
    write(tmp_path, "wavenet_a/deep/b.py", "def f():\n    from wavenet_a import a")
    status, said = lint(tmp_path)
    assert status == 1 and "wavenet_a.deep.b" in said


@pytest.mark.parametrize(
    ("path", "text", "is_caught"),
    [
        ("wavenet/a.py", "importlib.import_module('pixelcnn.network')", True),
        ("wavenet/a.py", "importlib.resources.files('distill')", True),
        ("onepass/command/a.py", "__import__('examples.d4pg')", True),
        ("onepass/foundation/a.py", "importlib.import_module('onepass.model')", True),
        ("onepass/model.py", "importlib.import_module('onepass.foundation.errors')", False),
        ("distill/a.py", "importlib.import_module('wavenet.network')", False),
        ("distill/a.py", "importlib.import_module('tensorflow')", False),
        ("distill/a.py", "importlib.import_module(name)", False),
    ],
)
def test_an_import_by_a_string_that_climbs_is_caught(tmp_path, path, text, is_caught):
    write(tmp_path, path, text)
    assert len(climbs(tmp_path)) == is_caught


def test_names_that_say_nothing_and_folders_without_a_floor_are_caught(tmp_path):
    files = ("wavenet/utils/a.py", "serving/helpers.py", "serving/server.py", "vocoder/a.py")
    others = ("onepass/vocoder/a.py", "onepass/odd.py", "train.py", "setup.py")
    for path in (*files, *others, "some-env/pyvenv.cfg", "some-env/a.py"):
        write(tmp_path, path, "")
    assert nameless(tmp_path) == ["serving/helpers", "wavenet/utils/a"]
    assert unplaced(tmp_path) == ["onepass.odd", "onepass.vocoder", "train", "vocoder"]


def test_the_wheel_has_five_names_at_the_top():
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    (packages,) = re.findall(r"^PACKAGES = (\(.*?\))$", text, re.M | re.S)
    assert set(ast.literal_eval(packages)) == {*TOPS} - {"benchmarks", "examples"}
    assert len(ast.literal_eval(packages)) == 5


def test_nothing_in_onepass_hides_a_public_name():
    inside = {path.stem for path in (ROOT / "onepass").iterdir()} - {"__init__", "__main__"}
    assert inside & {*onepass.__all__} == {"likelihoods"}  # which is exported as it is
