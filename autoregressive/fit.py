"""`fit`: trains a model in memory or in a work directory."""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.training.batches import Batches, BatchSource
from autoregressive.training.state import KerasState, Weights
from likelihoods.codec import Codec
from replicator.runs.metrics import MetricsLog
from replicator.runs.run_directory import RunDirectory
from replicator.strategies import Replicator
from replicator.training.accumulation import Batch
from replicator.training.config import LoopConfig, OptimizerConfig
from replicator.training.loop import Outcome, Trainer
from replicator.training.state import TrainState
from replicator.training.step import is_single_device

Loss = Callable[[Any, Batch], Any]
ADAM = OptimizerConfig(warmup_steps=100)


class Trainable(Protocol):
    """What is trained: an `Autoregressive`, a student."""

    @property
    def order(self) -> str:
        """Of the elements, "time" or "raster"."""

    @property
    def codec(self) -> Codec:
        """Of the elements."""

    def trainable_variables(self, *example: tf.Tensor) -> list[tf.Variable]:
        """Return the variables that are trained, for symbols, and a condition if there is one."""


def negative_log_likelihood(model: Autoregressive, batch: Batch):
    """Return the mean negative log-likelihood of an element, nats, and the same in bits."""
    loss = -tf.reduce_mean(model.log_prob(batch["elements"], batch.get("condition")))
    return loss, {"bits": loss / math.log(2.0)}


def fit(
    model: Trainable,
    batches: BatchSource,
    *,
    steps: int,
    loss: Loss = negative_log_likelihood,
    optimizer: Any = ADAM,
    schedule: Callable[[tf.Tensor], tf.Tensor] | None = None,
    evaluate: Any = None,
    evaluate_every: int = 1000,
    batch_size: int = 16,
    seed: int = 0,
    workdir: str | Path | None = None,
    replicator: Replicator | None = None,
    jit_compile: bool = False,
) -> Outcome:
    """Train the model's weights in place.

    Args:
      model: an `Autoregressive`, say. Its network is called as it is used: without dropout.
      batches: arrays, an iterable, `tf.data` or a function of the step, see `Batches`.
      steps: updates in all; a run that is resumed counts those it has made.
      loss: from the model and a batch, see `Batches`, to a scalar, or that and a dict of metrics.
      optimizer: an `OptimizerConfig` of the library's Adam, after whose training the weights are
        their Polyak average; or an optimiser of Keras.
      schedule: from the step, int32 [], to Adam's learning rate; None: as the optimiser says.
      evaluate: a function from the model to a score, lower is better; or a batch, whose loss it is.
      evaluate_every: steps between two evaluations, each with a checkpoint.
      batch_size: rows drawn from arrays. seed: of the draw.
      workdir: for checkpoints, metrics and events; a run there is resumed exactly. None: none.
      replicator: in whose scope the network was made; None: one device.
      jit_compile: compile the step with XLA.
    Returns:
      How training ended: its step, reason and best score.
    Raises:
      ValueError, UserError: bad data; training diverged; the work directory has another run.
    """
    source = Batches(batches, model.codec, _rank(model), batch_size, seed)
    config = LoopConfig(
        num_steps=steps, evaluate_every_steps=evaluate_every, jit_compile=jit_compile
    )
    with contextlib.ExitStack() as stack:
        folder = workdir or stack.enter_context(tempfile.TemporaryDirectory())
        with contextlib.nullcontext() if replicator is None else replicator.scope():
            state = _state(model, source, optimizer, schedule, steps, replicator)
        run = RunDirectory.create(
            Path(folder),
            _identity(state, optimizer, batch_size, seed, config),
            changeable=("loop",),
            is_chief=replicator is None or replicator.is_chief,
        )
        stack.callback(run.unlock)
        trainer = Trainer(run, state, _pure(loss, model), config, replicator)
        for line in trainer.resume():
            print(line)
        score = _score(model, state, loss, evaluate)
        outcome = trainer.train(_batches(source, trainer), score)
        state.use_average()
    return outcome


def _state(model, source, optimizer, schedule, steps, replicator) -> TrainState:
    batch = source.example()
    example = [model.codec.encode(batch["elements"])]
    example += [batch["condition"]] if "condition" in batch else []
    weights = Weights(model.trainable_variables(*example))
    if not weights.weights:
        raise ValueError("the network has no trainable variables.")
    if isinstance(optimizer, OptimizerConfig):
        return TrainState(weights, optimizer, steps, schedule)
    if schedule is not None:
        raise ValueError("`schedule` is of the library's Adam; give Keras' optimiser its own.")
    if replicator is not None and not is_single_device(replicator):
        raise ValueError("`optimizer` must be an OptimizerConfig on more than one device.")
    return KerasState(weights, optimizer, steps)


def _identity(state: TrainState, optimizer, batch_size: int, seed: int, config) -> dict:
    is_adam = isinstance(optimizer, OptimizerConfig)
    return {
        "kind": "fit",
        "optimizer": dataclasses.asdict(optimizer) if is_adam else type(optimizer).__name__,
        "weights": [list(weight.shape) for weight in state.weights],
        "batches": {"batch_size": batch_size, "seed": seed},
        "loop": dataclasses.asdict(config),
    }


def _pure(loss: Loss, model: Trainable):
    def loss_fn(batch: Batch):
        result = loss(model, batch)
        return result if isinstance(result, tuple) else (result, {})

    return loss_fn


def _batches(source: Batches, trainer: Trainer):
    """Return the batches from the trainer's step on, for one device or as many as it has."""
    if is_single_device(trainer.replicator):
        return source.starting_at(trainer.step)
    return source.dataset_from(trainer.step)


def _rank(model: Trainable) -> int:
    return 2 if model.order == "time" else 4


def _score(model, state: TrainState, loss: Loss, evaluate):
    """Return what the loop calls for a score, or None."""
    if evaluate is None:
        return None
    if not callable(evaluate):
        rows = next(iter(_leaves(evaluate))).shape[0]
        batch = Batches([evaluate], model.codec, _rank(model), rows, 0).example()
        compute = tf.function(lambda: _pure(loss, model)(batch)[0], autograph=False)
        evaluate = lambda _: float(compute())  # noqa: E731

    def score(log: MetricsLog, step: int) -> float:
        with _averaged(state):
            value = float(evaluate(model))
        log.scalars(step, {"dev": value})
        return value

    return score


@contextlib.contextmanager
def _averaged(state: TrainState) -> Iterator[None]:
    if isinstance(state, KerasState):
        yield
    else:
        with state.averaged():
            yield


def _leaves(evaluate: Any):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(evaluate)]
