"""A package offers names of its modules, and imports those when they are asked for."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = (
    "pixelcnn",
    "pixelcnn.data",
    "pixelcnn.networks",
    "pixelcnn.sampling",
    "distill",
    "distill.losses",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_is_that_of_its_module(package):
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        defined = importlib.import_module(f"{package}.{module._PLACES[name]}")
        assert getattr(module, name) is getattr(defined, name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pixelcnn' has no attribute 'Nothing'"):
        _ = importlib.import_module("pixelcnn").Nothing


def test_importing_the_packages_imports_no_tensorflow():
    program = (
        f"import importlib, sys; [importlib.import_module(p) for p in {PACKAGES}]; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0
