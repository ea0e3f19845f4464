"""Asynchronous updates: none is lost, and whoever is killed, the others know what to do."""

import contextlib
import signal
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from asynchronous_run import alone
from processes import ROOT, Started, wait_until
from toys import Line, line_batch

from onepass.foundation.rules import UserError
from onepass.replicator.launch.tf_config import Task, local_tasks
from onepass.replicator.strategies import asynchronous as servers
from onepass.replicator.strategies.asynchronous import (
    AsynchronousStep,
    ParameterServerReplicator,
    Snapshots,
)

SCRIPT = ROOT / "tests" / "asynchronous_run.py"
LIMIT_SECONDS = 150
MARGIN = 1.05  # of the loss after as many updates of one device: what stale gradients may cost
SERVER_SECONDS = 6.0  # instead of the half minute that a parameter server may be silent
END_SECONDS = servers.CHIEF_LOST_SECONDS + 30  # the machine may be busy


@pytest.fixture
def tasks(tmp_path):
    """Makes a cluster whose tasks are processes that are started by their names."""
    with Started(tmp_path) as group:

        def make(steps, pause_seconds=0.0, start_seconds=100.0, workers=1):
            cluster, output = local_tasks(chief=1, ps=1, worker=workers), tmp_path / "out.npz"
            words = [steps, pause_seconds, start_seconds, SERVER_SECONDS, output]

            def start(kind, index=0):
                own = [task for task in cluster if (task.kind, task.index) == (kind, index)]
                [process] = group.start_tasks(own, SCRIPT, *words)
                return process

            return types.SimpleNamespace(start=start, cluster=cluster, output=output)

        yield make


def updates(chief):
    return sum(line.startswith("update ") for line in chief.output().splitlines())


def wait_for_more(chief, count):
    wanted = updates(chief) + count
    wait_until(lambda: updates(chief) >= wanted or not chief.is_running(), LIMIT_SECONDS)
    assert updates(chief) >= wanted, chief.output()


@pytest.mark.slow
def test_one_worker_trains_as_one_device_and_all_processes_end(tasks):
    of = tasks(steps=20)
    others = [of.start("ps"), of.start("worker")]
    chief = of.start("chief")
    assert chief.ended(LIMIT_SECONDS) == 0, chief.output()
    found = np.load(f"{of.output}.state.npz")
    expected = alone(20)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    for process in others:
        assert process.ended(END_SECONDS) == 0
        assert "has ended" in process.output()


def loss_after(arrays):
    """The mean squared error, with the average weights, on batches that nobody learnt from."""
    line = Line()
    line.slope.assign(arrays["average/slope"])
    line.offset.assign(arrays["average/offset"])
    return np.mean([float(line.loss(line_batch(1000 + i))[0]) for i in range(50)])


@pytest.mark.integration
def test_two_workers_lose_no_update(tasks):
    of = tasks(steps=150, workers=2)
    for task in [("ps", 0), ("worker", 0), ("worker", 1)]:
        of.start(*task)
    chief = of.start("chief")
    assert chief.ended(LIMIT_SECONDS) == 0, chief.output()
    assert "with 2 workers" in chief.output() and updates(chief) == 150
    found = np.load(of.output)
    assert np.load(f"{of.output}.state.npz")["step"] == 150 and found["left"] == 0
    assert loss_after(np.load(f"{of.output}.state.npz")) <= MARGIN * loss_after(alone(150))
    # Two updates a call, one of each call still under way after it: 2 + 1 of join, the rest.
    assert found["joined"] == 1 and found["rest"] == 73
    np.testing.assert_array_equal(found["threes"], [3 * 150 + 1000, 3 * 150 + 1000])
    assert "without outputs: None" in chief.output()


def test_outputs_that_a_killed_worker_took_along_are_those_of_the_update_before():
    class Remote:
        def __init__(self, outputs):
            self.outputs = outputs

        def fetch(self):
            if self.outputs is None:
                raise tf.errors.UnavailableError(None, None, "connection reset by peer")
            return self.outputs

    def fetched(*remotes):
        replicator = types.SimpleNamespace(
            task=local_tasks(chief=1, ps=1, worker=1)[0],
            explaining_server_errors=contextlib.nullcontext,
        )
        updates = AsynchronousStep(replicator, lambda batch: None, 1)
        updates._structure = True  # one output, which a traced step would have noted
        updates.num_pending = len(remotes)
        for remote in remotes:
            updates._fetch(Remote(remote))
        return [float(value) for value in updates.join()]

    assert fetched([1.0], None, [3.0], None) == [1.0, 1.0, 3.0, 3.0]
    with pytest.raises(tf.errors.UnavailableError):
        fetched(None)


@pytest.mark.slow
def test_a_late_worker_is_waited_for(tasks):
    of = tasks(steps=30, workers=2)
    of.start("ps"), of.start("worker", 1)
    chief = of.start("chief")
    wait_until(lambda: servers.accepts_connections(of.cluster[0].cluster["worker"][1]))
    time.sleep(2)
    assert "with " not in chief.output()
    of.start("worker", 0)
    assert chief.ended(LIMIT_SECONDS) == 0, chief.output()
    assert "with 2 workers" in chief.output()


@pytest.mark.slow
def test_a_worker_that_does_not_come_is_left_out(tasks):
    of = tasks(steps=5, workers=2, start_seconds=3)
    of.start("ps"), of.start("worker", 1)
    addresses = of.cluster[0].cluster
    wait_until(lambda: servers.accepts_connections(addresses["ps"][0]))
    wait_until(lambda: servers.accepts_connections(addresses["worker"][1]))
    chief = of.start("chief")
    assert chief.ended(LIMIT_SECONDS) == 0, chief.output()
    assert f"Continuing without workers {addresses['worker'][0]}." in chief.output()
    assert "with 1 workers" in chief.output()


@pytest.mark.slow
def test_a_stopped_server_ends_the_run(tasks):
    of = tasks(steps=100_000, pause_seconds=0.05)
    server, _ = of.start("ps"), of.start("worker")
    chief = of.start("chief")
    wait_for_more(chief, 5)
    server.signal(signal.SIGSTOP)
    assert chief.ended(SERVER_SECONDS + 40) == 2
    [line] = [x for x in chief.output().splitlines() if x.startswith("refused: ")]
    assert (
        line.startswith("refused: Parameter server 0") and "has not answered for 6 seconds." in line
    )


def test_missing_servers_are_named(monkeypatch):
    monkeypatch.setattr(servers, "START_SECONDS", 0.1)
    cluster = local_tasks(chief=1, ps=2, worker=1)[0]
    wanted = ", ".join(f"{i} ({a})" for i, a in enumerate(cluster.cluster["ps"]))
    with pytest.raises(UserError) as caught:
        servers.available_workers(cluster)
    assert str(caught.value) == f"Not started after 0 seconds: parameter server {wanted}."


@pytest.mark.parametrize("missing", ["chief", "ps", "worker", None])
def test_a_cluster_needs_tasks_of_every_kind(monkeypatch, missing):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if missing is not None:
        kinds = [kind for kind in ("chief", "ps", "worker") if kind != missing]
        task = Task(kinds[0], 0, {kind: [f"localhost:{len(kind)}"] for kind in kinds})
        monkeypatch.setenv("TF_CONFIG", task.tf_config)
    with pytest.raises(UserError, match=f"requires {f'a {missing} in ' if missing else ''}TF_CONF"):
        ParameterServerReplicator()


@pytest.fixture
def read_once():
    snapshots = Snapshots()
    with tf.variable_creator_scope(snapshots.create):
        yield snapshots, tf.Variable([1.0, 2.0])


def test_what_others_add_while_a_step_runs_is_kept(read_once):
    snapshots, variable = read_once

    def others_add():
        variable.assign_add([10.0, 10.0])

    @tf.function(autograph=False)
    def step():
        with snapshots.of_step():
            value = 2.0 * variable
            with tf.control_dependencies([value]):
                others = tf.py_function(others_add, [], [])
            with tf.control_dependencies([others]):
                ParameterServerReplicator.update(None, [variable], [value])

    step()
    np.testing.assert_array_equal(variable.numpy(), [12.0, 14.0])
    step()
    np.testing.assert_array_equal(variable.numpy(), [34.0, 38.0])


def test_repeated_reads_have_their_gradients(read_once):
    snapshots, variable = read_once

    @tf.function(autograph=False)
    def step():
        with snapshots.of_step():
            before = variable + 1.0
            with tf.GradientTape() as one:
                loss = tf.reduce_sum(variable**2) + tf.reduce_sum(variable)
            with tf.GradientTape() as other:
                product = tf.reduce_sum(before * variable * variable)
            return one.gradient(loss, variable), other.gradient(product, variable)

    first, second = step()
    np.testing.assert_array_equal(first, [3.0, 5.0])
    np.testing.assert_array_equal(second, [4.0, 12.0])


def test_a_step_reads_what_it_has_set(read_once):
    snapshots, variable = read_once

    @tf.function(autograph=False)
    def step():
        with snapshots.of_step():
            before = tf.identity(variable)
            variable.assign_add([1.0, 1.0])
            variable.assign(variable * 2.0)
            return before, tf.identity(variable)

    before, after = step()
    np.testing.assert_array_equal(before, [1.0, 2.0])
    np.testing.assert_array_equal(after, [4.0, 6.0])
