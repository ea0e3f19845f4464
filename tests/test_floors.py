"""Floors and circles: names and places of folders, and our contract for import-linter."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import onepass

ROOT = Path(__file__).resolve().parent.parent
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
LAYERS = [re.split(r" [|:] ", layer) for layer in LINTER["contracts"][0]["layers"]]
FLOORS = {name for layer in LAYERS for name in layer}
TOPS = sorted({name.split(".")[0] for name in FLOORS})
NOT_FLOORS = {"build", "dist", "docs", "tests"}
NAMELESS = {"utils", "util", "common", "core", "helpers", "helper"}


def nameless(root):
    """Returns every folder or file of the floors whose name says nothing of what it holds."""
    files = (path for top in TOPS for path in (root / top).rglob("*.py"))
    found = (path.relative_to(root).with_suffix("") for path in files)
    return sorted({str(path) for path in found if NAMELESS & set(path.parts)})


def unplaced(root):
    """Returns the folders and files at the top and in onepass/ that hold code and have no floor."""
    folders = {path.parent.name for path in root.glob("[!.]*/*.py")} - {"onepass"}
    folders |= {f"onepass.{path.parent.name}" for path in root.glob("onepass/*/*.py")}
    environments = {path.parent.name for path in root.glob("*/pyvenv.cfg")}
    files = {path.stem for path in root.glob("*.py")} - {"noxfile", "setup"}
    files |= {f"onepass.{path.stem}" for path in root.glob("onepass/[!_]*.py")}
    return sorted((folders | files) - environments - NOT_FLOORS - FLOORS)


def test_the_contracts_are_of_every_floor():
    assert sorted(LINTER["root_packages"]) == TOPS


@pytest.mark.parametrize("rule", [nameless, unplaced])
def test_the_checkout_keeps_its_floors(rule):
    assert rule(ROOT) == []


def test_a_circle_of_files_is_refused():
    grimp = pytest.importorskip("grimp")
    from circle_contract import NoCircles

    graph = grimp.ImportGraph()
    for name in ("a", "a.b", "a.deep.c"):
        graph.add_module(name)
    graph.add_import(importer="a.b", imported="a.deep.c")
    assert NoCircles.check(None, graph, False).kept
    graph.add_import(importer="a.deep.c", imported="a.b")
    found = NoCircles.check(None, graph, False)
    assert not found.kept and {*found.metadata["circle"]} == {"a.b", "a.deep.c"}


def test_names_that_say_nothing_and_folders_without_a_floor_are_caught(tmp_path):
    files = ("wavenet/utils/a.py", "serving/helpers.py", "serving/server.py", "vocoder/a.py")
    others = ("onepass/vocoder/a.py", "onepass/odd.py", "train.py", "setup.py")
    for path in (*files, *others, "some-env/pyvenv.cfg", "some-env/a.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
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
