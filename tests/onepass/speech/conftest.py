"""Models of speech whose texts are read, without their weights."""

import json
import types

import pytest

from onepass.foundation import model_folders


def described(name):
    """The description of a shipped model."""
    spec = json.loads((model_folders.folder(name) / "model.json").read_text())
    return types.SimpleNamespace(spec=spec)


@pytest.fixture(scope="module")
def student():
    """The model whose voice most tests read with."""
    return described("shipped")


@pytest.fixture(scope="module", params=["shipped", "shipped-kathleen"])
def any_student(request):
    """The models of both shipped voices."""
    return described(request.param)
