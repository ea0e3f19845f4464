"""A custom step under every synchronous strategy, with checkpoints, resuming and progress.

    python examples/own_step.py --out run
    onepass launch --workers 2 -- python examples/own_step.py --out run

A Keras network learns the sine. The same command resumes from the newest checkpoint.
"""

import dataclasses
from pathlib import Path

import keras
import tensorflow as tf
import tyro

from onepass.foundation.progress import Progress
from onepass.foundation.rules import in_one_line
from onepass.foundation.run_directory import Checkpoints
from onepass.replicator import strategies
from onepass.replicator.training.state import resume_variables


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the training."""

    out: Path
    """Folder for the checkpoints; an existing run is resumed."""
    steps: int = 600
    """Number of updates."""
    batch: int = 64
    """Rows per batch, over all replicas."""
    save_steps: int = 100
    """Updates between evaluations and checkpoints."""
    seed: int = 0
    """Seed of the network's initial weights."""
    strategy: str = "auto"
    """Strategy: auto, single, local:N, multi_worker."""


def batch_of(step, rows: int):
    """Return inputs and targets, [rows, 1] each, which depend only on the step."""
    inputs = tf.random.stateless_uniform([rows, 1], tf.stack([tf.cast(step, tf.int32), 0]), -3, 3)
    return inputs, tf.sin(inputs)


class Regression:
    """A network and its optimiser, with all variables created in the replicator's scope."""

    def __init__(self, replicator: strategies.Replicator):
        self.network = keras.Sequential(
            [keras.Input([1]), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)]
        )
        self.weights = self.network.trainable_variables
        self.optimizer = replicator.wrap_optimizer(keras.optimizers.Adam(1e-2))
        self.optimizer.build(self.weights)  # otherwise the first step would create the variables

    def variables(self) -> dict[str, tf.Variable]:
        """Return all variables of a checkpoint by number, as Keras's names differ between runs."""
        everything = [*self.network.variables, *self.optimizer.variables]
        return {str(i): variable.value for i, variable in enumerate(everything)}

    def step(self, batch):
        """Update by a replica's rows; gradients and loss are means over all replicas."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        self.optimizer.apply(tape.gradient(loss, self.weights), self.weights)
        return loss

    def loss(self, batch):
        """Return the mean squared error, []."""
        inputs, targets = batch
        return tf.reduce_mean(tf.square(self.network(inputs) - targets))


def train(settings: Settings) -> None:
    """Train from the newest checkpoint; every process runs the same steps."""
    replicator = strategies.from_environment(settings.strategy)  # before TensorFlow does anything
    keras.utils.set_random_seed(settings.seed)
    with replicator.scope():
        model = Regression(replicator)
    checkpoints, variables = Checkpoints(settings.out / "checkpoints"), model.variables()
    resume_variables(replicator, checkpoints, variables, {"batch": settings.batch})
    done = int(model.optimizer.iterations.numpy())
    steps = tf.data.Dataset.range(done, settings.steps)
    batches = iter(replicator.batches(steps.map(lambda step: batch_of(step, settings.batch))))
    learn = replicator.compile(model.step)
    with Progress(settings.steps, "own_step", "step", done=done) as progress:
        for step in range(done + 1, settings.steps + 1):
            progress.advance(1, loss=float(learn(batches)))
            last = step == settings.steps
            if replicator.is_chief and (step % settings.save_steps == 0 or last):
                checkpoints.save(step, {name: v.numpy() for name, v in variables.items()})
                dev = float(model.loss(batch_of(-1, 1000)))
                checkpoints.mark_scored(step, dev)
                progress.say(f"step {step}: dev {dev:.5f}")


def main(arguments=None) -> None:
    """Read the command line and train; a user's mistake is one line and exit status 2."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    with in_one_line("own_step"):
        train(settings)


if __name__ == "__main__":
    main()
