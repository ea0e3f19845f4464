"""The house rules that no linter sees: files import by name, and say numbers alike."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("wavenet", "pixelcnn", "distill", "serving", "onepass", "benchmarks")

# Modules that import what a string names, and why they cannot name it in an import statement.
BY_STRING = {
    "onepass/families.py": "a model of one family loads nothing of the others",
    "onepass/foundation/lazy_exports.py": "public names of a package, imported on first access",
    "onepass/torch_network.py": "the user names the module that makes a network",
    "serving/sandbox/fork_server.py": "the server names what the forks import, and the loader",
    "onepass/replicator/portable/manifest.py": "it copies files of the package",
    "onepass/speech/voice.py": "files of its own folder",
    "serving/grpc/tensors.py": "a file of its own folder",
    "benchmarks/__main__.py": "every benchmark is a module of its own",
    "benchmarks/gpu/gpu_run.py": "a copy of it runs where the package is not installed",
    "benchmarks/gpu/gpu_peers.py": "a copy of it runs where the package is not installed",
    "benchmarks/gpu/timed_training.py": "it stands beside run.py in an exported folder",
}

IMPORTERS = ("import_module", "pkgutil.resolve_name", "__import__", "resources.files")


def library():
    for place in PLACES:
        for module in sorted((ROOT / place).rglob("*.py")):
            yield str(module.relative_to(ROOT)), module.read_text(encoding="utf-8")


def imports_by_string(text):
    """Returns every import of a module by a string, unless it names a package of others."""
    tree, found = ast.parse(text), []
    known = {ast.unparse(node.targets[0]): node.value for node in tree.body if is_constant(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            name = known.get(ast.unparse(node.args[0]), node.args[0])
            first = name.value.split(".")[0] if isinstance(name, ast.Constant) else ""
            if first in (*PLACES, ""):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def is_constant(node):
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize(
    "name", ['"wavenet.evaluation"', 'f"{package}.training"', "MODULES[kind]", "name", '"serving"']
)
def test_an_import_of_our_own_by_a_string_is_caught(name):
    assert imports_by_string(f"import importlib\nx = importlib.import_module({name})\n")
    assert imports_by_string(f"y = import_module({name}).load\n")
    assert imports_by_string(f"z = pkgutil.resolve_name({name})\n")
    assert imports_by_string(f"__import__({name})\nimportlib.resources.files({name})\n")


def test_a_package_of_others_may_be_imported_by_a_string():
    assert imports_by_string('import_module("wave")\nX = "jax.export"\nimport_module(X)') == []


def test_the_library_keeps_the_rules():
    read, broken = set(), []
    for place, text in library():
        read.add(place.split("/")[0])
        if place not in BY_STRING and any(name in text for name in IMPORTERS):
            broken += [f"{place}: {found}" for found in imports_by_string(text)]
    assert broken == []
    assert read == set(PLACES)


OTHER_WORDS = re.compile(
    r"(?:must be |, \")"
    r"(?:positive(?! definite)|nonnegative|not negative|0 or more|greater than|> ?\d)"
)


def other_words(text):
    """Returns every rule of a number that is not said as "at least 1", "above 0" or "at most 5"."""
    return [f"line {text.count(chr(10), 0, m.start()) + 1}" for m in OTHER_WORDS.finditer(text)]


def test_the_least_number_is_said_in_one_way():
    assert [f"{place}: {found}" for place, text in library() for found in other_words(text)] == []


@pytest.mark.parametrize(
    "text", ['f"`{x}` must be 0 or more."', 'require(x > 0, "x", "positive", x)', '"must be > 1"']
)
def test_another_way_is_caught(text):
    assert other_words(text) == ["line 1"]
