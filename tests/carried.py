"""Exported folders, trained by their own run.py, and how near that comes to TensorFlow."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import training_step


def joined(arrays, kind):
    return np.concatenate([v.ravel() for k, v in arrays.items() if k.split("/")[0] == kind])


def assert_same_training(found, expected, start, moments=5e-6):
    """Parameters agree to 1e-6 of their norm, and what moved to 1e-4 of the distance it went."""
    assert found.keys() == expected.keys()
    assert found["step"] == expected["step"]
    for kind in ("weights", "first", "second", "average"):
        a, b, origin = (joined(arrays, kind) for arrays in (found, expected, start))
        apart, is_moment = np.linalg.norm(a - b), kind in ("first", "second")
        assert apart < max(1e-4, moments if is_moment else 0.0) * np.linalg.norm(b - origin)
        assert apart < (moments if is_moment else 1e-6) * np.linalg.norm(b)


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def assert_same_steps(folder, state, loss, batches, rel=1e-5, moments=5e-6):
    """Two steps of the exported run.py, in JAX, are those in TensorFlow."""
    start, run = state.arrays(), portable_run.Training(folder)
    assert_equal(run.arrays(), start)
    step = tf.function(training_step(state, loss), autograph=False)
    for number, batch in enumerate(batches.take(2)):
        metrics, expected = run.advance(run.batch(number)), step(batch)
        state.assign([expected[f"slot/{name}"] for name in state.slots()])
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=rel, abs=1e-6)
    assert_same_training(run.arrays(), state.arrays(), start, moments)


BLOCKED = """
import runpy, sys
for name in "tensorflow tqdm tyro onepass wavenet pixelcnn distill serving".split():
    sys.modules[name] = None
sys.argv = ["run.py", *sys.argv[1:]]
runpy.run_path("run.py", run_name="__main__")
"""


def run_alone(folder, *arguments, devices=1):
    """run.py in its own process, in which importing TensorFlow or this library fails."""
    command = [sys.executable, "-W", "error", "-c", BLOCKED, *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
