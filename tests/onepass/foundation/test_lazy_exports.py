"""A package offers names of its modules and imports them when they are first used."""

import ast
import importlib
import subprocess
import sys

import pytest
from package_exports import packages

PACKAGES = (
    *("onepass.networks", "onepass.compression", "distill", "distill.losses", "onepass"),
    *("onepass.likelihoods", "pixelcnn", "pixelcnn.data", "pixelcnn.networks", "serving"),
    *("pixelcnn.sampling", "onepass.replicator", "onepass.replicator.launch.command", "wavenet"),
    *("onepass.foundation.rules", "onepass.foundation.progress", "wavenet.features"),
    "onepass.replicator.training.config",
)
LAZY = ("onepass.likelihoods", "onepass", "onepass.replicator", "serving")


def names_for_type_checkers(package):
    """Return what a package imports for type checkers, by name."""
    names = {}
    for node in ast.parse(packages()[package].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):
            exec(compile(ast.Module(node.body, []), package, "exec"), names)
    return {name: value for name, value in names.items() if name != "__builtins__"}


@pytest.mark.parametrize("package", LAZY)
def test_every_public_name_is_that_of_its_module(package):
    module, names = importlib.import_module(package), names_for_type_checkers(package)
    assert names
    for name, defined in names.items():
        assert getattr(module, name) is defined
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.integration
def test_importing_the_packages_imports_no_tensorflow():
    program = (
        f"import importlib, sys; [importlib.import_module(p) for p in {PACKAGES}]; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
