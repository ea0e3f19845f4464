"""Two processes that train together end where one does; what cannot meet is said at once."""

import time
import types

import numpy as np
import pytest
import tensorflow as tf
from processes import ROOT, Started, run_together, wait_until

from onepass.replicator.launch.tf_config import local_tasks
from onepass.replicator.strategies.coordination import (
    PeerLostError,
    explaining_peer_errors,
    refusal,
)

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "tests" / "worker_script.py"
LIMIT_SECONDS = 150
RULE = "Replicas must call the same primitives in the same order with the same shapes; "


def run_mode(mode, folder):
    """Returns [(exit status, output)] of two workers."""
    environments = [{"TF_CONFIG": task.tf_config} for task in local_tasks(worker=2)]
    return run_together(SCRIPT, folder, environments, LIMIT_SECONDS, [mode, folder / "chief.npz"])


def said_by(output):
    [line] = [line for line in output.splitlines() if line.startswith("refused: ")]
    return line.removeprefix("refused: ")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    [(status, log)] = run_together(SCRIPT, folder, [{}], LIMIT_SECONDS, ["single", folder / "one"])
    assert status == 0, log
    return np.load(folder / "one.npz")


@pytest.mark.parametrize("mode", ["plain", pytest.param("steps", marks=pytest.mark.slow)])
def test_two_processes_train_as_one(alone, tmp_path, mode):
    for status, log in run_mode(mode, tmp_path):
        assert status == 0, log
    for worker, name in enumerate(["chief.npz", "chief.npz.other.npz"]):
        found = np.load(tmp_path / name)
        # The number of the replica is an output that is not averaged: that of replica 0.
        np.testing.assert_array_equal(found["facts"], [2, 2, worker, 0])
        for key in ("first", "second"):
            np.testing.assert_allclose(found[key], alone[key], rtol=1e-5, atol=1e-6)
        calls = len(found["losses"])
        np.testing.assert_allclose(found["losses"], alone["losses"][-calls:], rtol=1e-5)
        np.testing.assert_array_equal(found["seen"], alone["seen"][-calls:])


@pytest.mark.parametrize(
    ("mode", "here", "there"),
    [
        ("order", "`all_reduce[mean](float32[4,3], float32[3])`", "`all_gather(float32[2])`"),
        pytest.param(
            "shape", "`all_sum(float32[2])`", "`all_sum(float32[3])`", marks=pytest.mark.slow
        ),
    ],
)
def test_workers_that_would_not_meet_both_say_so(tmp_path, mode, here, there):
    for status, log in run_mode(mode, tmp_path):
        assert status == 2, log
        said = said_by(log)
        assert said.startswith(
            f"CollectiveOrderError: {RULE}call 1 of the step is {here} on worker 0 and "
        )
        assert f"{there} on worker 1. Order on worker 0: " in said


@pytest.mark.slow
def test_shapes_that_only_a_run_knows_end_both_workers(tmp_path):
    ends = run_mode("unknown_shape", tmp_path)
    assert all(status != 0 for status, _ in ends)
    said = [said_by(log) for status, log in ends if status == 2]
    # A worker whose error comes first may be gone before the other one reads its own.
    found = [line for line in said if not line.startswith("PeerLostError: Another process of")]
    assert found and all(RULE + "one gave a tensor of shape" in line for line in found)


@pytest.mark.slow
def test_a_worker_may_come_late(tmp_path):
    first, second = local_tasks(worker=2)
    words = (SCRIPT, "plain", tmp_path / "chief.npz")
    with Started(tmp_path) as group:
        processes = group.start_tasks([first], *words)
        wait_until(lambda: not refusal(first.address))  # it listens while it waits
        time.sleep(2)
        processes += group.start_tasks([second], *words)
        assert [p.ended(LIMIT_SECONDS) for p in processes] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "steps", "environment", "said"),
    [
        # A save takes longer than a collective may wait.
        ("multi_worker:5", 3, {"SAVE_SECONDS": "8"}, "left at step 3 (done)"),
        ("multi_worker", 9, {"SCORES": "1,3,2"}, "left at step 6 (no improvement)"),
    ],
)
def test_two_processes_end_at_one_update(tmp_path, strategy, steps, environment, said):
    environments = [{"TF_CONFIG": t.tf_config} | environment for t in local_tasks(worker=2)]
    words, program = [strategy, tmp_path / "run", steps, 0.05], SCRIPT.with_name("line_run.py")
    for status, log in run_together(program, tmp_path, environments, LIMIT_SECONDS, words):
        assert status == 0, log
        assert said in log


ERRORS = tf.errors


@pytest.mark.parametrize(
    ("kind", "message", "is_lost"),
    [
        (ERRORS.UnavailableError, "failed to connect to all addresses", True),
        (ERRORS.DeadlineExceededError, "Collective has timed out", True),
        (ERRORS.InternalError, "Collective ops is aborted by: gone", True),
        (ERRORS.FailedPreconditionError, "incarnation mismatch", True),
        (ERRORS.InternalError, "cuBLAS launch failed", False),
        (ERRORS.FailedPreconditionError, "Table not initialized.", False),
    ],
)
def test_an_error_of_the_own_device_is_no_lost_peer_and_a_slow_one_names_a_setting(
    kind, message, is_lost
):
    replicator = types.SimpleNamespace(num_workers=2, is_async=False)
    expected = PeerLostError if is_lost else kind
    with pytest.raises(expected) as caught, explaining_peer_errors(replicator):
        raise kind(None, None, message)
    longer = "--strategy multi_worker:SECONDS sets the time limit"
    assert (longer in str(caught.value)) == (kind is ERRORS.DeadlineExceededError)
