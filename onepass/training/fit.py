"""`fit`: train a model in memory or in a work directory, also with an optimiser of Keras."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from onepass.foundation.rules import check_flag, check_seed, defaults, takes, whole_number
from onepass.foundation.runtime import check_compiler, check_eager
from onepass.likelihoods.codec import Codec
from onepass.model import Autoregressive
from onepass.networks.conditions import check_conditions
from onepass.networks.elements import Layout
from onepass.networks.trainable import Weights
from onepass.replicator.strategies import Replicator
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import NOTHING_TO_TRAIN, Outcome
from onepass.replicator.training.state import TrainState, clip_by_global_norm, is_single_device
from onepass.replicator.training.training_run import TrainingRun
from onepass.training.batches import MEAN, Batches, BatchSource, nest_conditions
from onepass.training.scores import (
    KerasCallbacks,
    Loss,
    check_loss,
    check_mean_over_rows,
    held_out_score,
    scoring,
)


class WeightsModule(tf.Module):
    """A module with given variables, for training code that expects a module."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        super().__init__(name="network")
        self.weights = list(variables)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """All variables, even those that TensorFlow marks as not trainable."""
        return tuple(self.weights)


class _KerasState(TrainState):
    """A `TrainState` that is updated by a Keras optimiser, without averaged weights."""

    def __init__(self, network: tf.Module, optimizer: Any, num_steps: int) -> None:
        super().__init__(network, OptimizerConfig(clip_norm=0.0), num_steps)
        self.first, self.second, self.average = [], [], self.weights
        self._keras = optimizer
        optimizer.build(self.weights)

    def slots(self) -> dict[str, tf.Variable]:
        """Return every variable by its name in checkpoints: step, weights, optimiser state."""
        own = [getattr(variable, "value", variable) for variable in self._keras.variables]
        slots = {f"optimizer/{number}": variable for number, variable in enumerate(own)}
        return {"step": self.step, **self.average_slots(), **slots}

    def average_slots(self) -> dict[str, tf.Variable]:
        return self._by_name("weights")

    def compute_update(
        self, gradients: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        _, norm = clip_by_global_norm(gradients, 0.0)
        variables = list(self.slots().values())
        before = [tf.identity(variable) for variable in variables]
        with tf.control_dependencies(before):
            self._keras.apply(gradients, self.weights)
        values = [self.step + 1, *(tf.identity(variable) for variable in variables[1:])]
        # The values are restored, because `skip_nonfinite` decides whether the update is applied.
        with tf.control_dependencies(values):
            for variable, value in zip(variables[1:], before[1:], strict=True):
                variable.assign(value)
        rate = tf.cast(self._keras.learning_rate, tf.float32)
        return values, {"gradient_norm": norm, "learning_rate": rate}


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
        """Return the trained and frozen variables that a call on symbols and condition reads."""


def negative_log_likelihood(
    model: Autoregressive, batch: dict[str, tf.Tensor]
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the mean negative log-likelihood per element in nats, and the metric "bits"."""
    lengths = {"lengths": batch["lengths"]} if "lengths" in batch else {}
    nats = model.log_prob(batch["elements"], batch.get("condition"), **lengths)
    if lengths:  # of the mean length over the whole batch, also in a part of it
        axes = list(range(2, nats.shape.rank))
        rows = tf.reduce_sum(tf.reduce_mean(nats, axes) if axes else nats, 1)
        nats = rows / tf.cast(batch[MEAN], rows.dtype)
    loss = -tf.reduce_mean(nats)
    return loss, {"bits": loss / math.log(2.0)}


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Further options of `fit`.

    Args:
      schedule: function from the step, int32 [], to Adam's learning rate; None: the optimiser's
        own.
      evaluate: a function from the model to a score, or held-out data, instead of `validation`.
      evaluate_every: steps between scores, each with a checkpoint; the last step is scored, too.
      patience: number of consecutive scores without improvement, including those before a run was
        resumed, after which training ends; the model keeps the weights with the best score. None:
        training does not end early, and the model keeps the last weights.
      callbacks: Keras callbacks, which may read metrics and set `model.stop_training`; an epoch is
        `evaluate_every` steps. Their state is not restored when a run is resumed.
      batch_size: number of rows drawn from arrays per batch.
      seed: seed with which rows are drawn.
      jit_compile: compile the step with XLA.

    Raises:
      ValueError: a number is out of its range.
    """

    schedule: Callable[[tf.Tensor], tf.Tensor] | None = None
    evaluate: Any = None
    evaluate_every: int = 1000
    patience: int | None = None
    callbacks: Sequence[Any] = ()
    batch_size: int = 16
    seed: int = 0
    jit_compile: bool = False

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "batch_size"):
            whole_number(getattr(self, name), name)
        if self.patience is not None:
            whole_number(self.patience, "patience")
        check_seed(self.seed)
        check_flag(self.jit_compile, "jit_compile")

    def loop(self, steps: int) -> LoopConfig:
        """Return the settings of the training loop for a number of steps."""
        return LoopConfig(
            num_steps=whole_number(steps, "steps"),
            evaluate_every_steps=int(self.evaluate_every),
            patience=int(self.patience or 0),
            jit_compile=self.jit_compile,
        )

    def listener(self) -> KerasCallbacks | None:
        """Return the callbacks as a listener of the training loop; None if there are none."""
        return KerasCallbacks(self.callbacks, self.evaluate_every) if self.callbacks != () else None


@takes(FitOptions)
def fit(
    model: Trainable,
    batches: BatchSource,
    *,
    steps: int,
    loss: Loss = negative_log_likelihood,
    optimizer: Any = ADAM,
    validation: BatchSource | None = None,
    workdir: str | Path | None = None,
    replicator: Replicator | None = None,
    log: Callable[[str], None] = print,
    **options: Any,
) -> Outcome:
    """Train a model's weights in place, or resume an earlier run.

    Args:
      model: an `Autoregressive` or a student. Its network is called in inference mode, without
        dropout. Variables that are not `trainable`, in TensorFlow or in their Keras layer, stay
        frozen; the log says how many.
      batches: elements [num, time], [num, time, channels] or [num, height, width, channels], a
        list of rows of different lengths, a pair of elements and condition (or conditions by
        name), a dict of arrays (`elements`, `condition`, `lengths` of padded rows), an iterable of
        these, a `tf.data` dataset, or a function from the step to a batch.
      steps: total number of updates, including those before a run was resumed.
      loss: function from the model and a batch to a scalar, or to a scalar and a dict of metrics.
        If replicas or microbatches share a batch, it must be a mean over rows, or have a method
        `global_inputs(model, batch, replicator)`, which returns values of the global batch by name,
        to be added to the batch.
      optimizer: a Keras optimiser or an `OptimizerConfig`; with the latter, the model has
        the averaged weights after training.
      validation: held-out data in any finite form of `batches` (a pair must be a tuple; a list
        contains batches). Its mean loss is the score; lower is better. Of a generator, or of
        another iterable whose length is unknown, only the first 16,384 rows are read.
      workdir: folder for checkpoints, metrics, events and `loss.png`, a plot of the losses that is
        updated with every score; a run found there is resumed exactly. None: nothing is stored.
      replicator: the Replicator in whose `scope` the network was created; None: one device. With
        `sharded`, use the model before and after training only inside its `gathered_variables()`.
      log: function that receives progress messages; a progress bar is shown on standard error.
      **options: `patience`, `batch_size`, `seed`, `callbacks` and the other fields of `FitOptions`.

    Returns:
      An `Outcome` with `step`, `reason`, `seconds`, `best_score`, `best_step` and `scores`.

    Raises:
      ValueError, UserError: an argument or a batch is invalid, training diverged, `workdir`
        contains a different run, or the trained network turns out not to be causal.
    """
    check_eager()
    # What shards hold cannot be traced alone.
    with contextlib.nullcontext() if replicator is None else replicator.gathered_variables():
        getattr(model, "follow", lambda by_trace: None)(by_trace=True)  # students have none
    asked = FitOptions(**options)
    if asked.jit_compile:
        check_compiler()
    read = _reader(model, int(asked.batch_size), int(asked.seed))
    training = _Fit(
        model, asked, asked.loop(steps), optimizer, read(batches), check_loss(loss, model)
    )
    score = held_out_score(model, training.loss_fn, read, validation, asked.evaluate, log)
    if asked.patience is not None and score is None:
        raise ValueError("`patience` needs scores: pass `validation`, or `evaluate`.")
    return training.run(score, workdir, replicator, log)


@dataclasses.dataclass(frozen=True)
class _Fit:
    model: Trainable
    asked: FitOptions
    loop: LoopConfig
    optimizer: Any
    source: Batches
    loss_fn: Any

    def run(self, score: Any, workdir: Any, replicator: Any, log: Any) -> Outcome:
        """Train the model, scoring it by `score`; the other arguments are those of `fit`."""
        model, listener = self.model, self.asked.listener()
        example = self.source.example()
        adam = self.optimizer if isinstance(self.optimizer, OptimizerConfig) else None
        with TrainingRun(workdir, replicator, log, len(example["elements"]), adam) as run:
            with run.variables():
                weights = _weights(model, example)
                if not weights.trained:
                    run.log(f"{_describe_weights(weights)}: nothing to train.")
                    return Outcome(0, NOTHING_TO_TRAIN, 0.0, None)
                feeds = getattr(model, "feeds", "")
                if feeds:
                    run.log(f"{feeds}.")
                state = self._state(weights, run.replicator)
            with run.replicator.gathered_variables():
                shares = run.replicator.num_devices * (adam.accumulate if adam else 1)
                check_mean_over_rows(self.loss_fn, example, shares)
            with run.preparing():
                unsaid = {} if adam is None else {"optimizer": defaults(adam)}
                run.claim(self._identity(state), ("loop",), unsaid)
            source, alone = self.source, is_single_device(run.replicator)
            given = (lambda step, *_: source.starting_at(step)) if alone else source.shard
            with self.source.raising_own_errors():
                outcome = run.train(
                    state,
                    self.loss_fn,
                    self.loop,
                    given,
                    lambda: score and scoring(score, state, workdir),
                    listener=listener,
                    description=_describe_weights(weights),
                )
            with run.replicator.gathered_variables():
                state.use_average()
                # Untrained weights, such as a head of zeros, may have hidden a look-ahead.
                # Students have no check.
                getattr(model, "check_causal", lambda: None)()
        return outcome

    def _state(self, weights: Weights, replicator: Replicator) -> TrainState:
        module, schedule = WeightsModule(weights.trained), self.asked.schedule
        if isinstance(self.optimizer, OptimizerConfig):
            return TrainState(module, self.optimizer, self.loop.num_steps, schedule)
        if schedule is not None:
            raise ValueError(
                "`schedule` requires the library's Adam; give Keras' optimiser its own."
            )
        if not is_single_device(replicator):
            raise ValueError("`optimizer` must be an OptimizerConfig on more than one device.")
        return _KerasState(module, self.optimizer, self.loop.num_steps)

    def _identity(self, state: TrainState) -> dict:
        adam, asked = self.optimizer, self.asked
        is_adam = isinstance(adam, OptimizerConfig)
        return {
            "kind": "fit",
            "optimizer": dataclasses.asdict(adam) if is_adam else type(adam).__name__,
            "weights": [list(weight.shape) for weight in state.weights],
            "batches": {"batch_size": int(asked.batch_size), "seed": int(asked.seed)},
            "loop": dataclasses.asdict(self.loop),
        }


def _reader(model: Trainable, rows: int, seed: int) -> Callable[..., Batches]:
    layout = getattr(model, "layout", Layout(model.order))  # a student has one channel
    check_length = getattr(model, "check_length", lambda sizes: None)

    def takes(length: int) -> bool:
        try:
            check_length((length,))
        except ValueError:
            return False
        return True

    options: dict[str, Any] = {"rows": rows, "seed": seed, "takes": takes}
    return functools.partial(Batches, codec=model.codec, layout=layout, **options)


def _weights(model: Trainable, example: dict[str, tf.Tensor]) -> Weights:
    elements, condition = example["elements"], nest_conditions(example).get("condition")
    network = getattr(model, "symbol_network", None)
    if getattr(network, "conditions", None):  # raises a clear error
        check_conditions(network, condition, model.order, elements.shape)
    symbols = model.codec.encode(elements)
    weights = model.weights_read(symbols, *([] if condition is None else [condition]))
    if not any(weights):
        raise ValueError("`model` must have trainable variables.")
    halves = [variable.dtype.name for variable in weights.trained if variable.dtype.size < 4]
    if halves:  # too coarse for Adam's moments and small updates
        raise ValueError(
            f"`model` must have weights in float32 or float64 to be trained, got {halves[0]}; build"
            ' its network under keras.config.set_floatx("float32"), its layers may be'
            " mixed_bfloat16."
        )
    return weights


def _describe_weights(weights: Weights) -> str:
    trained, frozen = (sum(math.prod(v.shape) for v in part) for part in weights)
    return f"{trained:,} weights" + (f" train, {frozen:,} are frozen" if frozen else "")
