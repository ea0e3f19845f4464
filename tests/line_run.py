"""A run of a line as a program: `python line_run.py STRATEGY RUN STEPS SECONDS`.

It makes STEPS steps in the run directory RUN, of SECONDS each, and saves twice a second, which
takes SAVE_SECONDS of the environment longer. SCORES, numbers with commas, are those of every second
step; two without improvement end the run. `line_run.py uneven` has workers of uneven data.
"""

import os
import sys
import time
from pathlib import Path

import tensorflow as tf
from toys import Line, line_batch

from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator import Replicator, strategies
from onepass.replicator.strategies.coordination import variable_scope
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Trainer
from onepass.replicator.training.state import TrainState

NEVER = 10**9


def batches(start: int, seconds: float) -> tf.data.Dataset:
    """The batches from step `start` on, none sooner than `seconds` after the one before."""

    def draw():
        number = start
        while True:
            time.sleep(seconds)
            yield line_batch(number)
            number += 1

    shapes = {"x": tf.TensorSpec([8, 3]), "y": tf.TensorSpec([8])}
    return tf.data.Dataset.from_generator(draw, output_signature=shapes)


def train(replicator: Replicator, workdir: Path, num_steps: int, seconds: float) -> int:
    """Trains on from the newest checkpoint; the exit status."""
    run = RunDirectory.create(workdir, {"line": 1}, is_chief=replicator.is_chief)
    scores = [float(score) for score in os.environ.get("SCORES", "").split(",") if score]
    config = LoopConfig(num_steps, report_every_steps=1, save_every_minutes=0.5 / 60,
                        evaluate_every_steps=2 if scores else NEVER,
                        patience=2 if scores else 0)  # fmt: skip
    with variable_scope(replicator):
        line = Line()
        state = TrainState(line, OptimizerConfig(0.02, 2, "constant"), num_steps)
    trainer = Trainer(run, state, line.loss, config, replicator)
    save, slower = trainer.checkpoints.save, float(os.environ.get("SAVE_SECONDS", "0"))
    if replicator.is_chief:
        trainer.checkpoints.save = lambda *a, **o: time.sleep(slower) or save(*a, **o)
    trainer.resume()
    print(f"going on from step {trainer.step}", flush=True)
    is_scored = scores and replicator.is_chief
    evaluate = (lambda log, step: scores[step // 2 - 1]) if is_scored else None
    outcome = trainer.train(batches(trainer.step, seconds), evaluate)
    print(f"left at step {outcome.step} ({outcome.reason})", flush=True)
    return outcome.exit_status


def uneven(replicator: Replicator) -> int:
    """Means over the workers of batches, of which worker 0 has five and worker 1 three."""

    def input_fn(context):
        return tf.data.Dataset.range(5 - 2 * context.input_pipeline_id)

    step = replicator.compile(lambda x: replicator.all_reduce(tf.cast(x, tf.float32), "mean"))
    batches = iter(replicator.dataset(input_fn))
    made = 0
    try:
        for _ in range(5):
            step(batches)
            made += 1
    except tf.errors.OutOfRangeError:
        print(f"no more data after {made} steps", flush=True)
    return 0


def main(strategy: str, *words: str) -> int:
    """The exit status, as that of `onepass train`."""
    print(f"process {os.getpid()}", flush=True)
    try:
        if strategy == "uneven":
            return uneven(strategies.multi_worker(timeout_seconds=10.0))
        workdir, num_steps, seconds = words
        replicator = strategies.from_environment(strategy)
        return train(replicator, Path(workdir), int(num_steps), float(seconds))
    except UserError as error:
        print(f"onepass: {error}", flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
