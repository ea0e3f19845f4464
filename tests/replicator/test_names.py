"""The names that `replicator` exports, and what importing them costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import replicator

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TENSORFLOW = (
    "replicator",
    "replicator.launch.command",
    "replicator.runs.errors",
    "replicator.runs.progress",
    "replicator.training.config",
)


def typed_names():
    """The module of each name that a type checker sees."""
    tree = ast.parse(Path(replicator.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_the_type_checker_sees_the_names_that_there_are():
    places = {name: f"replicator.{place}" for name, place in replicator._EXPORTS.items()}
    assert typed_names() == places


def test_every_name_is_what_its_module_defines():
    for name, module in typed_names().items():
        assert getattr(replicator, name) is getattr(sys.modules[module], name)
    assert set(replicator.__all__) <= set(dir(replicator))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'replicator' has no attribute 'Nothing'"):
        replicator.Nothing  # noqa: B018


def test_programs_that_need_no_tensorflow_do_not_import_it():
    code = f"import sys, {', '.join(WITHOUT_TENSORFLOW)}; print('tensorflow' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr
