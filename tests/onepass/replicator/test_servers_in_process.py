"""Asynchronous training whose worker and parameter server are in the chief's process."""

import itertools
import os

import pytest
import tensorflow as tf
from replicated import KINDS, trained
from runs import newest, steps_of
from toys import Line, line_batch

from onepass.foundation.run_directory import RunDirectory
from onepass.replicator import strategies
from onepass.replicator.launch.tf_config import local_tasks
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Trainer
from onepass.replicator.training.state import TrainState

pytestmark = [pytest.mark.integration, pytest.mark.four_devices("tensorflow")]
STEPS, EVERY = 12, 4


@pytest.fixture(scope="module")
def servers():
    """Starts a server, a worker and the replicator of their chief; they end with the process."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    chief, *others = local_tasks(chief=1, worker=1, ps=1)
    started = [
        tf.distribute.Server(tf.train.ClusterSpec(task.cluster), task.kind, task.index)
        for task in others
    ]
    os.environ["TF_CONFIG"] = chief.tf_config
    return strategies.parameter_server(), started


@pytest.fixture
def replicator(servers, request):
    # Two, as with two workers, which in one process would wait for each other; updates of
    # optimizers are comparable with those of one device only one at a time.
    replicator, _ = servers
    replicator.num_updates_at_once = 1 if "optimizer" in request.node.name else 2
    return replicator


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_trains_on_servers_as_on_one_device(replicator, kind):
    expected, _ = trained(strategies.single(), kind)
    weights, losses = trained(replicator, kind)
    assert max(float(abs(a - b).max()) for a, b in zip(weights, expected, strict=True)) < 1e-6
    assert losses[-1] != pytest.approx(losses[0], rel=1e-2)


@pytest.mark.parametrize("steps_per_call", [1, 5])
def test_run_makes_as_many_updates_as_it_is_asked_for(replicator, steps_per_call):
    with replicator.scope():
        count = tf.Variable(0)
    replicator.run(
        lambda batch: replicator.update([count], [count + 1]),
        lambda context: tf.data.Dataset.from_tensors(tf.zeros([2])).repeat(),
        20,
        steps_per_call,
    )
    assert int(count.numpy()) == 20


def test_a_timed_save_jumps_past_no_evaluation_and_not_past_the_end(replicator, tmp_path):
    with replicator.scope():
        line = Line()
        state = TrainState(line, OptimizerConfig(learning_rate=1e-2, warmup_steps=2), STEPS)
    run = RunDirectory.create(tmp_path / "run", {})
    # A share of a second passes in any two updates, so that each is followed by a timed save.
    config = LoopConfig(STEPS, report_every_steps=1, evaluate_every_steps=EVERY,
                        save_every_minutes=1e-6)  # fmt: skip
    trainer = Trainer(run, state, line.loss, config, replicator)
    batches = tf.data.Dataset.from_tensors(line_batch(0)).repeat()
    evaluated, scores = [], itertools.count(-1, -1)
    outcome = trainer.train(batches, lambda _, step: evaluated.append(step) or next(scores))
    assert (outcome.step, outcome.reason) == (STEPS, "done")
    assert evaluated == [4, 8, 12] and trainer.checkpoints.best_step() == STEPS
    assert steps_of(run.path)[-1] == newest(run.path)["step"] == STEPS
