"""A process without the training packages, in which a bundle must run."""

import subprocess
import sys
import textwrap

import pytest
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
        runs = ("rules", "lazy_exports", "files", "model_folders", "allowed_operations", "runtime")
        allowed = tuple(f"onepass.foundation.{each}" for each in runs)
        # What a family has, of which the bundle's kind is asked; nothing that trains.
        allowed += ("onepass.replicator.training.config",)
        closed = room in ("onepass.replicator", "onepass.foundation")
        if closed and not any(module.startswith(name) for module in allowed):
            raise ImportError(name, name=floor)

sys.meta_path.insert(0, Without())
import serving
"""


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
