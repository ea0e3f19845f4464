"""`fit`: train a model in memory or in a work directory."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from autoregressive.condition_values import given_to
from autoregressive.layout import Layout
from autoregressive.model import Autoregressive
from autoregressive.trainable import Weights
from autoregressive.training.batches import Batches, BatchSource, nested
from autoregressive.training.losses import Loss, MeanLoss, Score, check_mean_over_rows, checked
from autoregressive.training.rows import MEAN
from autoregressive.training.state import KerasState, WeightsModule
from likelihoods.codec import Codec
from replicator.runs.arguments import whole_number
from replicator.runs.field_rules import require
from replicator.runs.stored_config import defaults
from replicator.strategies import Replicator
from replicator.training.config import LoopConfig, OptimizerConfig
from replicator.training.outcome import NOTHING_TO_TRAIN, Outcome
from replicator.training.state import LossFn, TrainState
from replicator.training.step import is_single_device
from replicator.training.training_run import TrainingRun

ADAM = OptimizerConfig(warmup_steps=100)


class Trainable(Protocol):
    """A model that `fit` trains: an `Autoregressive` or a student."""

    @property
    def order(self) -> str:
        """Order of the elements, "time" or "raster"."""

    @property
    def codec(self) -> Codec:
        """Codec of the elements."""

    def weights_read(self, *example: tf.Tensor) -> Weights:
        """Return the variables, trained and frozen, that are read for example symbols.

        A condition follows, if there is one.
        """


def negative_log_likelihood(model: Autoregressive, batch: dict[str, tf.Tensor]):
    """Return the mean negative log-likelihood of an element, nats, and the same in bits.

    Args:
      model: with `log_prob`.
      batch: `elements`, and perhaps `condition`; `lengths` and `mean_length`, see `Batches`.
    """
    loss = -tf.reduce_mean(_of_real_elements(model, batch))
    return loss, {"bits": loss / math.log(2.0)}


def _of_real_elements(model: Autoregressive, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return log-probabilities whose mean over rows is the mean over the elements before ends."""
    given = batch["elements"], batch.get("condition")
    if "lengths" not in batch:
        return model.log_prob(*given)
    nats = model.log_prob(*given, lengths=batch["lengths"])
    axes = list(range(2, nats.shape.rank))
    rows = tf.reduce_sum(tf.reduce_mean(nats, axes) if axes else nats, 1)
    return rows / tf.cast(batch[MEAN], rows.dtype)


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
    log: Callable[[str], None] = print,
) -> Outcome:
    """Train or resume training of a model's weights in place.

    Args:
      model: an `Autoregressive` or a student. Its network is called as in use, without dropout.
        Variables that are not `trainable`, for TensorFlow or for the Keras layer that holds them,
        are left as they are; the log says how many are.
      batches: elements [num, time], [num, time, channels] or [num, height, width, channels], a
        list of rows of different lengths, a pair of elements and condition (or conditions by
        name), a dict of arrays (`elements`, `condition`, `lengths` of padded rows), an iterable of
        these, `tf.data` or a function of the step, see `Batches`.
      steps: total number of updates, including those of a run that is resumed.
      loss: from the model and a batch to a scalar, or that and a dict of metrics. If replicas or
        microbatches share a batch, it must be a mean over rows, or have
        `global_inputs(model, batch, replicator)`, whose figures of the global batch by name are
        added to the batch; see `GlobalBatchLoss`.
      optimizer: a Keras optimiser or an `OptimizerConfig`, which leaves the averaged weights.
      schedule: from the step, int32 [], to Adam's learning rate; None: the optimiser's own.
      evaluate: held-out data as for `batches` (a pair is a tuple, a list is of batches), whose mean
        loss is the score; or a function from model to score.
      evaluate_every: steps between two evaluations, each with a checkpoint.
      batch_size: rows drawn from arrays.
      seed: of the draw of rows.
      workdir: for checkpoints, metrics and events; a run there is resumed exactly. None: none.
      replicator: in whose `scope` the network was created; None: one device. Before and after, the
        model is used within its `gathered_variables()`, which matters for `sharded`.
      jit_compile: compile the step with XLA.
      log: called with progress messages; a progress bar is shown on standard error.

    Returns:
      The outcome: `step`, `reason`, `seconds`, `best_score` and `best_step`.

    Raises:
      ValueError, UserError: bad data or loss; training diverged; the directory has another run.
    """
    _check_counts(steps=steps, evaluate_every=evaluate_every, batch_size=batch_size)
    steps, evaluate_every, batch_size = int(steps), int(evaluate_every), int(batch_size)
    seed = whole_number(seed, "seed", least=0)
    layout = getattr(model, "layout", Layout(model.order))  # a student has one channel
    read = functools.partial(
        Batches, codec=model.codec, layout=layout, rows=batch_size, seed=seed, takes=_takes(model)
    )
    source, loss_fn = read(batches), checked(loss, model)
    example = source.example()
    loop = LoopConfig(num_steps=steps, evaluate_every_steps=evaluate_every, jit_compile=jit_compile)
    adam = optimizer if isinstance(optimizer, OptimizerConfig) else None
    with TrainingRun(workdir, replicator, log, len(example["elements"]), adam) as run:
        with run.variables():
            weights = _weights(model, example)
            if not weights.trained:
                run.log(f"{_counted(weights)}: nothing to train.")
                return Outcome(0, NOTHING_TO_TRAIN, 0.0, None)
            feeds = getattr(model, "feeds", "")
            run.log(*([f"{feeds}."] if feeds else []))
            state = _state(weights, optimizer, schedule, steps, run.replicator)
        with run.replicator.gathered_variables():
            check_mean_over_rows(loss_fn, example, _shares(run.replicator, adam))
        with run.preparing():
            identity = _identity(state, optimizer, batch_size, seed, loop)
            run.claim(identity, ("loop",), {} if adam is None else {"optimizer": defaults(adam)})
        score = _score(evaluate, model, loss_fn, read)
        given = source.alone if is_single_device(run.replicator) else source.shard
        with source.raising_own_errors():
            outcome = run.train(
                *(state, loss_fn, loop, given, lambda: score and Score(score, state)),
                description=_counted(weights),
            )
        with run.replicator.gathered_variables():
            state.use_average()
            # A head of zeros, say, may have hidden what the network reads. Students have no check.
            getattr(model, "check_causal", lambda: None)()
    return outcome


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        is_count = isinstance(count, int | np.integer) and int(count) >= 1
        require(is_count, name, "an integer of at least 1", count)


def _takes(model: Any) -> Callable[[int], bool]:
    """Return a function that says whether a model's network takes sequences of a length."""

    def takes(length: int) -> bool:
        try:
            getattr(model, "check_length", lambda sizes: None)((length,))
        except ValueError:
            return False
        return True

    return takes


def _shares(replicator: Replicator, optimizer: OptimizerConfig | None) -> int:
    """Return the number of replicas and microbatches that share a batch."""
    replicas = 1 if replicator.is_async else replicator.num_devices
    return replicas * (1 if optimizer is None else optimizer.accumulate)


def _score(evaluate: Any, model: Trainable, loss_fn: LossFn, read: Callable[..., Batches]):
    """Return a function that computes a score, or None."""
    if evaluate is None:
        return None
    if callable(evaluate) and not isinstance(evaluate, tf.data.Dataset):
        return lambda: evaluate(model)
    return MeanLoss(loss_fn, read(evaluate, name="evaluate").parts)


def _weights(model: Trainable, example: dict[str, tf.Tensor]) -> Weights:
    """Return the weights that the model reads; raise ValueError if there are none."""
    symbols, condition = model.codec.encode(example["elements"]), nested(example).get("condition")
    network = getattr(model, "symbol_network", None)
    if getattr(network, "conditions", None):
        given_to(network, condition, model.order, example["elements"].shape)  # one clear error
    weights = model.weights_read(symbols, *([] if condition is None else [condition]))
    if not any(weights):
        raise ValueError("`model` must have trainable variables.")
    halves = [variable.dtype.name for variable in weights.trained if variable.dtype.size < 4]
    if halves:  # Adam's moments and small updates are lost in them
        raise ValueError(
            f"`model` must have weights in float32 or float64 to be trained, got {halves[0]}; build"
            ' its network under keras.config.set_floatx("float32"), its layers may be'
            " mixed_bfloat16."
        )
    return weights


def _counted(weights: Weights) -> str:
    """Return how many weights are trained and frozen, for the user."""
    trained, frozen = (sum(math.prod(v.shape) for v in part) for part in weights)
    return f"{trained:,} weights" + (f" train, {frozen:,} are frozen" if frozen else "")


def _state(weights: Weights, optimizer, schedule, steps, replicator) -> TrainState:
    module = WeightsModule(weights.trained)
    if isinstance(optimizer, OptimizerConfig):
        return TrainState(module, optimizer, steps, schedule)
    if schedule is not None:
        raise ValueError("`schedule` requires the library's Adam; give Keras' optimiser its own.")
    if not is_single_device(replicator):
        raise ValueError("`optimizer` must be an OptimizerConfig on more than one device.")
    return KerasState(module, optimizer, steps)


def _identity(state: TrainState, optimizer, batch_size: int, seed: int, loop: LoopConfig) -> dict:
    is_adam = isinstance(optimizer, OptimizerConfig)
    return {
        "kind": "fit",
        "optimizer": dataclasses.asdict(optimizer) if is_adam else type(optimizer).__name__,
        "weights": [list(weight.shape) for weight in state.weights],
        "batches": {"batch_size": batch_size, "seed": seed},
        "loop": dataclasses.asdict(loop),
    }
