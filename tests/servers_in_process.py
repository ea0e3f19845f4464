"""Asynchronous training whose worker and parameter server are in the chief's process: a program.

    servers_in_process.py FOLDER

Every `check_*` function returns numbers, printed as a line `NAME JSON`.
"""

import json
import os
import sys
from pathlib import Path

import tensorflow as tf
from replicator_training_checks import KINDS, trained
from toys import Line, line_batch

from onepass.foundation.run_directory import RunDirectory
from onepass.replicator import strategies
from onepass.replicator.launch.tf_config import local_tasks
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Trainer
from onepass.replicator.training.state import TrainState

STEPS, EVERY = 12, 4


def check_optimizers(replicator, folder):
    """Return how far each make's weights are from those of one device, and its losses."""
    found = {}
    for kind in KINDS:
        expected, _ = trained(strategies.single(), kind)
        weights, losses = trained(replicator, kind)
        apart = max(float(abs(a - b).max()) for a, b in zip(weights, expected, strict=True))
        found[kind] = [apart, losses]
    return found


def check_run(replicator, folder):
    with replicator.scope():
        count = tf.Variable(0)
    made = []
    for steps, steps_per_call in [(20, 1), (20, 5)]:
        before = int(count.numpy())
        replicator.run(
            lambda batch: replicator.update([count], [count + 1]),
            lambda context: tf.data.Dataset.from_tensors(tf.zeros([2])).repeat(),
            steps,
            steps_per_call,
        )
        made.append(int(count.numpy()) - before)
    return made


def check_trainer(replicator, folder):
    """Return where a training that saves every update stops, evaluates and has checkpoints."""
    with replicator.scope():
        line = Line()
        state = TrainState(line, OptimizerConfig(learning_rate=1e-2, warmup_steps=2), STEPS)
    run = RunDirectory.create(Path(folder) / "run", {})
    # A share of a second passes in any two updates, so that each is followed by a timed save.
    config = LoopConfig(STEPS, report_every_steps=1, evaluate_every_steps=EVERY,
                        save_every_minutes=1e-6)  # fmt: skip
    trainer = Trainer(run, state, line.loss, config, replicator)
    batches = tf.data.Dataset.from_tensors(line_batch(0)).repeat()
    evaluated = []

    def evaluate(log, step):
        evaluated.append(step)
        return 1.0 / step

    outcome = trainer.train(batches, evaluate)
    lines = [json.loads(x)["step"] for x in (run.path / "metrics.jsonl").read_text().splitlines()]
    return {
        "outcome": [outcome.step, outcome.reason],
        "evaluated": evaluated,
        "best": trainer.checkpoints.best_step(),
        "last line": lines[-1],
    }


def main(folder):
    """Prints the lines, and ends the process, because servers of TensorFlow cannot be stopped."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    chief, *others = local_tasks(chief=1, worker=1, ps=1)
    servers = [
        tf.distribute.Server(tf.train.ClusterSpec(task.cluster), task.kind, task.index)
        for task in others
    ]
    os.environ["TF_CONFIG"] = chief.tf_config
    replicator = strategies.parameter_server()
    for check in (check_optimizers, check_run, check_trainer):
        # Two, as with two workers, which in one process would wait for each other; updates of
        # optimizers are comparable with those of one device only one at a time.
        replicator.num_updates_at_once = 1 if check is check_optimizers else 2
        name = check.__name__.removeprefix("check_")
        print(name, json.dumps(check(replicator, folder)), flush=True)
    del servers
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
