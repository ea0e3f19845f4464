import asyncio
import inspect
import subprocess
import sys
import textwrap

import http_running
import pytest
from fake_bundle import FakeModelStore
from processes import ROOT

WITHOUT_TRAINING = """
import sys
import numpy as np

class Without:
    def find_spec(self, name, path=None, target=None):
        floor = name.split(".")[0]
        room = ".".join(name.split(".")[:2])
        if floor in ("wavenet", "pixelcnn", "distill") or room == "onepass.likelihoods":
            raise ImportError(name, name=floor)
        runs = ("arguments", "errors", "lazy_exports", "tensorflow_paths", "plain_files")
        runs += ("allowed_operations", "program_functions", "saved_folder", "tensorflow_state")
        allowed = tuple(f"onepass.foundation.{each}" for each in runs)
        closed = room in ("onepass.replicator", "onepass.foundation")
        if closed and not any(module.startswith(name) for module in allowed):
            raise ImportError(name, name=floor)

sys.meta_path.insert(0, Without())
import serving
"""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run an `async` test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def models(tmp_path):
    """The folder of `voice` and `shapes`."""
    return http_running.store(tmp_path)


@pytest.fixture
def store(tmp_path):
    """An empty folder of models."""
    (tmp_path / "models").mkdir()
    return FakeModelStore(tmp_path / "models")


@pytest.fixture
def running(models):
    """A server of these models."""
    with http_running.Running(models) as running:
        yield running


@pytest.fixture
def without_training():
    """Runs a script, in a process without the training packages; returns what it prints."""

    def run(script, *words):
        code = WITHOUT_TRAINING + textwrap.dedent(script)
        command = [sys.executable, "-c", code, *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
